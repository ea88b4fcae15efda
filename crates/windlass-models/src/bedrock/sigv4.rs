//! Signatures of AWS (version 4) over requests.

use std::fmt;
use std::future::Future;
use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use bytes::Bytes;
use hyper::Request;

use crate::api_key::ApiKey;
use crate::renewal::RenewedSecret;
use crate::signer::{RequestSigner, SignError};
use windlass_net::BoxFuture;

/// The name of the service in signatures.
const BEDROCK_SERVICE: &str = "bedrock";

/// Credentials of AWS.
#[derive(Clone, Debug)]
pub struct AwsCredentials {
    access_key_id: String,
    secret_access_key: ApiKey,
    session_token: Option<ApiKey>,
    valid_for: Option<Duration>,
}

impl AwsCredentials {
    /// Creates credentials without a session.
    pub fn new(access_key_id: &str, secret_access_key: impl Into<ApiKey>) -> Self {
        Self {
            access_key_id: access_key_id.to_owned(),
            secret_access_key: secret_access_key.into(),
            session_token: None,
            valid_for: None,
        }
    }

    /// Sets the time for which the credentials are valid from now on. It counts for [`SigV4Signer::renewing`].
    #[must_use]
    pub fn valid_for(mut self, time: Duration) -> Self {
        self.valid_for = Some(time);
        self
    }

    /// Sets the token of a temporary session.
    #[must_use]
    pub fn session_token(mut self, token: impl Into<ApiKey>) -> Self {
        self.session_token = Some(token.into());
        self
    }

    /// Returns the credentials in `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`, if they are set.
    pub(super) fn from_vars(var: &impl Fn(&str) -> Option<String>) -> Option<Self> {
        let (id, secret) = (var("AWS_ACCESS_KEY_ID")?, var("AWS_SECRET_ACCESS_KEY")?);
        let credentials = Self::new(&id, ApiKey::new(secret));
        Some(Self { session_token: var("AWS_SESSION_TOKEN").map(ApiKey::new), ..credentials })
    }
}

/// A signer with AWS credentials. It signs the method, the address, all headers and the body.
///
/// The credentials of a role or of a session expire, often within an hour, and a run may take longer. A function fetches
/// new ones in time:
///
/// ```
/// use std::time::Duration;
/// use windlass_models::{AwsCredentials, SigV4Signer};
///
/// let signer = SigV4Signer::renewing("eu-central-1", || async {
///     // From STS, from the metadata of the machine, or from the SDK of AWS.
///     let credentials = AwsCredentials::new("ASIA…", "secret").session_token("token");
///     Ok(credentials.valid_for(Duration::from_secs(3600)))
/// });
/// ```
#[derive(Clone)]
pub struct SigV4Signer {
    region: String,
    credentials: CredentialSource,
    clock: fn() -> SystemTime,
}

/// The source of credentials.
#[derive(Clone)]
enum CredentialSource {
    Fixed(AwsCredentials),
    Renewed(RenewedSecret<AwsCredentials>),
}

impl fmt::Debug for SigV4Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigV4Signer").field("region", &self.region).finish_non_exhaustive()
    }
}

impl SigV4Signer {
    /// Creates a signer for Bedrock in a region.
    pub fn new(region: &str, credentials: AwsCredentials) -> Self {
        let credentials = CredentialSource::Fixed(credentials);
        Self { region: region.to_owned(), credentials, clock: SystemTime::now }
    }

    /// Creates a signer for Bedrock in a region, whose credentials a function fetches: for every request, or before the
    /// old ones expire if it says when that is ([`AwsCredentials::valid_for`]). Concurrent requests wait for one fetch.
    pub fn renewing<F>(region: &str, fetch: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<AwsCredentials, SignError>> + Send + 'static,
    {
        let credentials = CredentialSource::Renewed(RenewedSecret::new(fetch));
        Self { region: region.to_owned(), credentials, clock: SystemTime::now }
    }

    /// Sets the clock, for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> SystemTime) -> Self {
        self.clock = clock;
        self
    }

    fn sign_with(&self, credentials: &AwsCredentials, request: &mut Request<Bytes>) -> Result<(), SignError> {
        let AwsCredentials { access_key_id, secret_access_key, session_token, .. } = credentials;
        let token = session_token.as_ref().map(|token| token.reveal().to_owned());
        let identity =
            Credentials::new(access_key_id, secret_access_key.reveal(), token, None, "windlass").into();
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(BEDROCK_SERVICE)
            .time((self.clock)())
            .settings(SigningSettings::default())
            .build()?
            .into();
        let mut headers = Vec::with_capacity(request.headers().len());
        for (name, value) in request.headers() {
            headers.push((name.as_str(), value.to_str()?));
        }
        let signable = SignableRequest::new(
            request.method().as_str(),
            request.uri().to_string(),
            headers.into_iter(),
            SignableBody::Bytes(request.body()),
        )?;
        let (instructions, _) = sign(signable, &params)?.into_parts();
        instructions.apply_to_request_http1x(request);
        Ok(())
    }
}

impl RequestSigner for SigV4Signer {
    fn sign<'a>(&'a self, request: &'a mut Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>> {
        Box::pin(async move {
            match &self.credentials {
                CredentialSource::Fixed(credentials) => self.sign_with(credentials, request),
                CredentialSource::Renewed(source) => {
                    let credentials = source.current(|credentials| credentials.valid_for).await?;
                    self.sign_with(&credentials, request)
                }
            }
        })
    }
}
