//! Establishing a connection: the transport, the handshake, and the authorisation if the server requires it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rmcp::model::ProtocolVersion;
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService,
};
use rmcp::transport::Transport;
use rmcp::transport::auth::AuthClient;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use super::child::{self, ServerProcess};
use super::connection::{McpConnectError, error_chain_text};
use super::handler::McpClientHandler;
use super::http::{McpHttpClient, McpHttpError, build_transport};
use super::legacy_sse::LegacySseTransport;
use super::stdio::{HandshakeFilter, LineTransport};
use super::{McpAuth, ProtocolEra};
use crate::config::{HttpDialect, HttpTransportConfig, McpServerConfig, McpTransport, StdioTransportConfig};

/// The HTTP client of a server that required authorisation.
pub(super) type AuthorisedClient = AuthClient<McpHttpClient>;

/// A service that answers, and its child process.
pub(super) struct OpenedConnection {
    pub(super) service: RunningService<RoleClient, McpClientHandler>,
    pub(super) process: Option<ServerProcess>,
}

/// Connects to a server and completes the handshake.
pub(super) async fn open_connection(
    config: &McpServerConfig,
    handler: &McpClientHandler,
    auth_client: &mut Option<AuthorisedClient>,
) -> Result<OpenedConnection, McpConnectError> {
    let opened = match &config.transport {
        McpTransport::Stdio(stdio) => open_stdio(config, stdio, handler).await?,
        McpTransport::Http(http) => {
            let service = open_http(config, http, handler, auth_client).await?;
            OpenedConnection { service, process: None }
        }
    };
    let version = opened.service.peer().peer_info().map(|info| info.protocol_version.clone());
    match version {
        Some(version) if !ProtocolVersion::KNOWN_VERSIONS.contains(&version) => {
            let known: Vec<&str> =
                ProtocolVersion::KNOWN_VERSIONS.iter().map(ProtocolVersion::as_str).collect();
            Err(handshake_error(format!(
                "it speaks version `{version}` of the protocol, which is not known here; known are {}",
                known.join(", ")
            )))
        }
        Some(_) | None => Ok(opened),
    }
}

fn handshake_error(reason: String) -> McpConnectError {
    McpConnectError::Handshake { reason, stderr: String::new() }
}

fn lifecycle_mode(era: Option<ProtocolEra>) -> ClientLifecycleMode {
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    match era {
        None => ClientLifecycleMode::Auto { preferred_versions, legacy_version: None },
        Some(ProtocolEra::Modern) => ClientLifecycleMode::Discover { preferred_versions },
        Some(ProtocolEra::Legacy) => ClientLifecycleMode::Initialize,
    }
}

async fn open_stdio(
    config: &McpServerConfig,
    stdio: &StdioTransportConfig,
    handler: &McpClientHandler,
) -> Result<OpenedConnection, McpConnectError> {
    let filter = HandshakeFilter::default();
    let late_discovery = filter.late_discovery();
    let opened = start_process(config, stdio, handler, config.era, filter).await;
    match opened {
        // The server speaks the modern protocol but was slow to say so, and then refused the legacy handshake.
        Err(McpConnectError::Handshake { .. })
            if config.era.is_none() && late_discovery.load(Ordering::Relaxed) =>
        {
            start_process(config, stdio, handler, Some(ProtocolEra::Modern), HandshakeFilter::default()).await
        }
        opened => opened,
    }
}

async fn start_process(
    config: &McpServerConfig,
    stdio: &StdioTransportConfig,
    handler: &McpClientHandler,
    era: Option<ProtocolEra>,
    filter: HandshakeFilter,
) -> Result<OpenedConnection, McpConnectError> {
    let (process, output, input) = child::spawn_server(stdio).map_err(|error| McpConnectError::Spawn {
        command: stdio.command.clone(),
        reason: error.to_string(),
    })?;
    let stderr = process.stderr_tail();
    let transport = LineTransport::new(output, input, filter);
    let timeout = config.connect_timeout;
    // If the handshake fails, dropping the process kills it.
    let serving = handler.clone().serve_with_lifecycle(transport, lifecycle_mode(era));
    match tokio::time::timeout(timeout, serving).await {
        Ok(Ok(service)) => Ok(OpenedConnection { service, process: Some(process) }),
        Ok(Err(error)) => Err(McpConnectError::Handshake {
            reason: describe_handshake_error(&error),
            stderr: stderr.text_at_exit().await,
        }),
        Err(_) => Err(McpConnectError::TimedOut { timeout, stderr: stderr.text() }),
    }
}

async fn open_http(
    config: &McpServerConfig,
    http: &HttpTransportConfig,
    handler: &McpClientHandler,
    auth_client: &mut Option<AuthorisedClient>,
) -> Result<RunningService<RoleClient, McpClientHandler>, McpConnectError> {
    let client = McpHttpClient::new(http);
    let timeout = config.connect_timeout;
    if http.dialect == HttpDialect::LegacySse {
        return open_legacy_sse(http, &client, handler, timeout).await.map_err(handshake_error);
    }
    if auth_client.is_none()
        && let Some(McpAuth::OAuth(oauth)) = &http.auth
    {
        *auth_client = oauth.restore(&http.url, &client).await.map_err(handshake_error)?;
    }
    let mut served = serve_http(config, http, handler, auth_client.as_ref(), &client).await?;
    if let (Err(error), Some(McpAuth::OAuth(oauth))) = (&served, &http.auth)
        && let Some(challenge) = error.auth_challenge()
    {
        // A person may have to consent, so no timeout applies here; the visit callback may set one.
        let before = auth_client.take();
        let authorised = oauth.authorise(&http.url, &client, challenge, before.as_ref()).await;
        *auth_client = Some(authorised.map_err(handshake_error)?);
        served = serve_http(config, http, handler, auth_client.as_ref(), &client).await?;
    }
    let error = match served {
        Ok(service) => return Ok(service),
        Err(error) => error,
    };
    let reason = describe_handshake_error(&error);
    if config.era == Some(ProtocolEra::Modern) || !is_refused_by_status(&error) {
        return Err(handshake_error(reason));
    }
    // A server from before streamable HTTP refuses the handshake and offers an event stream instead.
    match open_legacy_sse(http, &client, handler, timeout).await {
        Ok(service) => Ok(service),
        Err(older) => {
            Err(handshake_error(format!("{reason}; as a server with the older HTTP+SSE transport: {older}")))
        }
    }
}

type Handshake = Result<RunningService<RoleClient, McpClientHandler>, ClientInitializeError>;

async fn serve_http(
    config: &McpServerConfig,
    http: &HttpTransportConfig,
    handler: &McpClientHandler,
    authorised: Option<&AuthorisedClient>,
    client: &McpHttpClient,
) -> Result<Handshake, McpConnectError> {
    let mode = lifecycle_mode(config.era);
    let timeout = config.connect_timeout;
    let served = match authorised {
        Some(client) => {
            let transport = build_transport(http, client.clone()).map_err(handshake_error)?;
            serve_within(timeout, handler, transport, mode).await
        }
        None => {
            let transport = build_transport(http, client.clone()).map_err(handshake_error)?;
            serve_within(timeout, handler, transport, mode).await
        }
    };
    served.ok_or(McpConnectError::TimedOut { timeout, stderr: String::new() })
}

/// Completes the handshake, or returns `None` after the timeout.
async fn serve_within<T: Transport<RoleClient> + 'static>(
    timeout: Duration,
    handler: &McpClientHandler,
    transport: T,
    mode: ClientLifecycleMode,
) -> Option<Handshake> {
    tokio::time::timeout(timeout, handler.clone().serve_with_lifecycle(transport, mode)).await.ok()
}

async fn open_legacy_sse(
    http: &HttpTransportConfig,
    client: &McpHttpClient,
    handler: &McpClientHandler,
    timeout: Duration,
) -> Result<RunningService<RoleClient, McpClientHandler>, String> {
    let opening = async {
        let transport = LegacySseTransport::open(http, client).await?;
        let serving = handler.clone().serve_with_lifecycle(transport, ClientLifecycleMode::Initialize).await;
        serving.map_err(|error| describe_handshake_error(&error))
    };
    let late = |_| format!("it did not answer within {} ms", timeout.as_millis());
    tokio::time::timeout(timeout, opening).await.map_err(late)?
}

/// Returns true if the server refused the handshake with an HTTP status.
fn is_refused_by_status(error: &ClientInitializeError) -> bool {
    let transport = match error {
        ClientInitializeError::LegacyFallbackFailed { discover, fallback } => {
            return is_refused_by_status(discover) || is_refused_by_status(fallback);
        }
        ClientInitializeError::TransportError { error, .. } => error,
        _ => return false,
    };
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(transport.error.as_ref());
    while let Some(error) = cause {
        if let Some(StreamableHttpError::Client(error)) =
            error.downcast_ref::<StreamableHttpError<McpHttpError>>()
        {
            return matches!(error, McpHttpError::Refused { .. });
        }
        cause = error.source();
    }
    false
}

/// Describes a failed handshake with all causes.
fn describe_handshake_error(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::LegacyFallbackFailed { discover, fallback } => format!(
            "the handshake failed: {}; the probe for the protocol from 2026 failed before: {}",
            describe_handshake_error(fallback),
            describe_handshake_error(discover)
        ),
        ClientInitializeError::ConnectionClosed(when) => format!("it closed the connection ({when})"),
        ClientInitializeError::JsonRpcError(error) => {
            let data = super::call::error_data_suffix(error.data.as_ref());
            format!("it answered with error {}: {}{data}", error.code.0, error.message)
        }
        other => error_chain_text(other),
    }
}
