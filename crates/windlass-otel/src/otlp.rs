//! Export with OTLP over HTTP, set up by the `OTEL_*` variables.

use std::time::Duration;

use async_trait::async_trait;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;
use windlass_net::{DecodedBody, HttpClient as NetHttpClient, HttpTransport, ReplaySafety, TransportOptions};

use crate::export::{DEFAULT_EXPORT_TIMEOUT, SpanSender};
use crate::journal_spans::TraceContent;

/// Maximum size of a collector's response in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Settings of an export with OTLP over HTTP, in protobuf.
///
/// | variable | meaning |
/// | --- | --- |
/// | `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | address of the collector |
/// | `OTEL_EXPORTER_OTLP_HEADERS`, `…_TIMEOUT` and their `…_TRACES_…` forms | headers, such as a key; time in milliseconds that the export of a batch may take, with retries (10,000) |
/// | `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | the service that the spans belong to |
/// | `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG` | `always_on`, `always_off`, `traceidratio` and their `parentbased_` forms |
/// | `OTEL_SDK_DISABLED=true`, `OTEL_TRACES_EXPORTER=none` | no export |
/// | `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true` | arguments, outputs and messages in spans |
#[derive(Clone, Debug, Default)]
pub struct OtlpSettings {
    endpoint: Option<String>,
    content: TraceContent,
    ratio: Option<f64>,
    /// The time that the export of a batch may take; read from the environment if absent.
    timeout: Option<Duration>,
}

/// An error in the settings of an export.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpSettingsError {
    /// A variable has a value that is not supported.
    #[error("{variable} is `{value}`: {expected}")]
    UnsupportedValue {
        /// Name of the variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The values that are supported.
        expected: &'static str,
    },
    /// The exporter could not be built.
    #[error("the OTLP exporter cannot be used: {0}")]
    Exporter(String),
}

impl OtlpSettings {
    /// Creates settings for a collector at this address, such as `http://localhost:4318/v1/traces`. The other variables
    /// are read when the export connects.
    pub fn new(endpoint: impl Into<String>) -> Self {
        Self { endpoint: Some(endpoint.into()), ..Self::default() }
    }

    /// Reads the settings from variables. Returns `None` if no address is set or the export is switched off.
    ///
    /// # Errors
    ///
    /// Returns an error if a variable has a value that is not supported.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, OtlpSettingsError> {
        let var = |name: &str| var(name).filter(|value| !value.trim().is_empty());
        let is_true = |name: &str| var(name).is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
        let exporter = var("OTEL_TRACES_EXPORTER");
        if is_true("OTEL_SDK_DISABLED") || exporter.as_deref() == Some("none") {
            return Ok(None);
        }
        let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        if endpoints.into_iter().all(|name| var(name).is_none()) {
            return Ok(None);
        }
        for (variable, expected, supported) in [
            ("OTEL_TRACES_EXPORTER", "only `otlp` and `none` are supported", "otlp"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "only `http/protobuf` is supported", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "only `http/protobuf` is supported", "http/protobuf"),
        ] {
            if let Some(value) = var(variable).filter(|value| value != supported) {
                return Err(OtlpSettingsError::UnsupportedValue { variable, value, expected });
            }
        }
        let content = match is_true("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT") {
            true => TraceContent::Included,
            false => TraceContent::LeftOut,
        };
        let ratio = sampling_ratio(var("OTEL_TRACES_SAMPLER"), var("OTEL_TRACES_SAMPLER_ARG"))?;
        Ok(Some(Self { endpoint: None, content, ratio, timeout: export_timeout(var) }))
    }

    /// Reads the settings from the environment: see [`OtlpSettings::from_vars`].
    ///
    /// # Errors
    ///
    /// Returns an error if a variable has a value that is not supported.
    pub fn from_env() -> Result<Option<Self>, OtlpSettingsError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Sets the content of the conversation in spans.
    #[must_use]
    pub fn content(mut self, content: TraceContent) -> Self {
        self.content = content;
        self
    }

    /// Starts the export. It must be called within a tokio runtime. The collector is contacted with the first spans.
    ///
    /// # Errors
    ///
    /// Returns an error if the address or a header is malformed.
    pub fn connect(self) -> Result<SpanSender, OtlpSettingsError> {
        let client = CollectorClient(NetHttpClient::new());
        let mut builder =
            SpanExporter::builder().with_http().with_http_client(client).with_protocol(Protocol::HttpBinary);
        if let Some(endpoint) = self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let mut exporter = builder.build().map_err(|error| OtlpSettingsError::Exporter(error.to_string()))?;
        exporter.set_resource(&Resource::builder().build());
        let timeout = self.timeout.or_else(|| export_timeout(|name| std::env::var(name).ok()));
        let sender = SpanSender::start_with_timeout(exporter, timeout.unwrap_or(DEFAULT_EXPORT_TIMEOUT));
        Ok(sender.content(self.content).sampling_ratio(self.ratio.unwrap_or(1.0)))
    }
}

/// Reads the time that the export of a batch may take. What is no number of milliseconds is ignored, as the exporter
/// does.
fn export_timeout(var: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let names = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
    let value = names.into_iter().find_map(|name| var(name)?.trim().parse().ok());
    value.map(Duration::from_millis)
}

fn sampling_ratio(
    sampler: Option<String>,
    argument: Option<String>,
) -> Result<Option<f64>, OtlpSettingsError> {
    let Some(sampler) = sampler else { return Ok(None) };
    match sampler.strip_prefix("parentbased_").unwrap_or(&sampler) {
        "always_on" => Ok(Some(1.0)),
        "always_off" => Ok(Some(0.0)),
        "traceidratio" => {
            let text = argument.unwrap_or_else(|| "1".to_owned());
            let ratio = text.trim().parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.map(Some).ok_or(OtlpSettingsError::UnsupportedValue {
                variable: "OTEL_TRACES_SAMPLER_ARG",
                value: text,
                expected: "a number from 0 to 1 is expected",
            })
        }
        _ => Err(OtlpSettingsError::UnsupportedValue {
            variable: "OTEL_TRACES_SAMPLER",
            value: sampler,
            expected: "`always_on`, `always_off`, `traceidratio` and their `parentbased_` forms are supported",
        }),
    }
}

/// The HTTP client of the network layer, with its proxies and TLS, as the client of a collector.
#[derive(Debug)]
struct CollectorClient(NetHttpClient);

#[async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // A collector that receives a batch twice recognises its spans by their ids.
        let options = TransportOptions::new(ReplaySafety::Safe);
        let (head, body) = self.0.send(request, options).await?.into_parts();
        let bytes = DecodedBody::new(body, &head.headers).read_all(MAX_RESPONSE_BYTES).await?;
        Ok(Response::from_parts(head, bytes.into()))
    }
}
