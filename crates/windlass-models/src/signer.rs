//! Signers: authorisation that is computed for each request, such as short-lived tokens or signatures over the body.

use std::fmt;

use bytes::Bytes;
use hyper::Request;

use windlass_net::BoxFuture;

/// A signer of requests. It runs for every attempt, just before the request is sent, so that it can fetch a fresh
/// token (Entra, Google) or sign the method, the address, the headers and the body (AWS SigV4).
///
/// ```
/// use windlass_models::net::{BoxFuture, Bytes, http};
/// use windlass_models::{ModelProvider, RequestSigner, SignError, protocol::ResponsesProtocol};
///
/// #[derive(Debug)]
/// struct TokenSigner;
///
/// impl RequestSigner for TokenSigner {
///     fn sign<'a>(&'a self, request: &'a mut http::Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>> {
///         Box::pin(async move {
///             let token = "fetched or renewed here";
///             let value = format!("Bearer {token}").parse()?;
///             request.headers_mut().insert(http::header::AUTHORIZATION, value);
///             Ok(())
///         })
///     }
/// }
///
/// # fn main() -> Result<(), windlass_models::SetupError> {
/// let provider = ModelProvider::new("azure", "https://me.openai.azure.com/openai/v1").signer(TokenSigner);
/// let model = provider.model(ResponsesProtocol::default(), "gpt-5.2")?;
/// # Ok(()) }
/// ```
pub trait RequestSigner: fmt::Debug + Send + Sync + 'static {
    /// Adds authorisation to a request. The body is final; the signer may change the address and the headers.
    ///
    /// # Errors
    ///
    /// Returns an error if the request cannot be authorised. The request is not sent then.
    fn sign<'a>(&'a self, request: &'a mut Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>>;
}

/// The error of a signer.
pub type SignError = Box<dyn std::error::Error + Send + Sync>;
