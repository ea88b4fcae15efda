//! The streamable HTTP transport of the server.

use std::future::Future;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::handler::McpServerHandler;
use super::{McpServeError, McpServer};

/// Maximum number of concurrent connections; further ones wait.
const MAX_CONNECTIONS: usize = 256;

impl<C: Send + Sync + 'static> McpServer<C> {
    /// Serves clients over streamable HTTP until `stop` completes, on every path of the listener's address.
    ///
    /// Only requests with a loopback `Host` are accepted, and browser requests only with a loopback `Origin`
    /// of the same port. To serve remote clients, put an authenticating reverse proxy in front.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener fails.
    pub async fn serve_http(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), McpServeError> {
        let served = Arc::new(self.into_shared());
        let stopping = CancellationToken::new();
        let _stopped = stopping.clone().drop_guard();
        let port = listener.local_addr()?.port();
        let config = StreamableHttpServerConfig::default()
            .with_cancellation_token(stopping.clone())
            .with_allowed_origins(
                ["127.0.0.1", "localhost", "[::1]"].map(|host| format!("http://{host}:{port}")),
            )
            .enforce_origin_validation();
        let service = StreamableHttpService::new(
            move || Ok(McpServerHandler::new(served.clone())),
            Arc::new(LocalSessionManager::default()),
            config,
        );
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut stop = std::pin::pin!(stop);
        loop {
            let place = tokio::select! {
                () = &mut stop => return Ok(()),
                place = places.clone().acquire_owned() => place,
            };
            let stream = tokio::select! {
                () = &mut stop => return Ok(()),
                accepted = listener.accept() => accepted?.0,
            };
            let (service, stopping) = (service.clone(), stopping.clone());
            tokio::spawn(async move {
                let _place = place;
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
                tokio::select! {
                    () = stopping.cancelled() => {}
                    ended = connection => {
                        if let Err(error) = ended {
                            tracing::debug!(%error, "a connection ended early");
                        }
                    }
                }
            });
        }
    }
}
