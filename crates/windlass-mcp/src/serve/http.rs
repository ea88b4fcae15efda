//! A server at an address.

use std::future::Future;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::handler::Handler;
use super::{McpServer, ServeError};

/// How many connections are served at once. More wait.
const MOST_CONNECTIONS: usize = 256;

impl<C: Send + Sync + 'static> McpServer<C> {
    /// Serves clients by streamable HTTP until `stop`, on every path of the listener's address. Only requests that were
    /// meant for this machine are taken, and of pages in a browser only those that were served at the same address:
    /// whoever serves others puts a proxy that knows its clients in front.
    pub async fn serve_http(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let served = Arc::new(self.served());
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
            move || Ok(Handler::new(served.clone())),
            Arc::new(LocalSessionManager::default()),
            config,
        );
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
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
