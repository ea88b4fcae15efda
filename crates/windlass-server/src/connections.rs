//! Connections: accepted up to a limit, each with time limits for its headers and for a peer that does not read, and drained
//! when the server stops.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::server::ServerLimits;
use crate::stalled_write::ImpatientStream;

/// Time that a client has to send the headers of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time that open requests have to end when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of the headers of a request.
const MAX_HEADER_BYTES: usize = 32 * 1024;

/// Accepts connections until the server stops, then lets open requests end.
pub(crate) async fn accept_connections(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let tracker = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accept_one(&listener, &slots) => accepted,
        };
        let Some((stream, peer, slot)) = accepted else { continue };
        stream.set_nodelay(true).ok();
        let service = TowerToHyperService::new(router.clone().layer(axum::Extension(ConnectInfo(peer))));
        let stop = stop.clone();
        tracker.spawn(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_TIMEOUT)
                .max_buf_size(MAX_HEADER_BYTES)
                .serve_connection(TokioIo::new(ImpatientStream::new(stream, limits.write_timeout)), service);
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%peer, %error, "a connection has failed");
            }
            drop(slot);
        });
    }
    tracker.close();
    tokio::time::timeout(DRAIN_TIMEOUT, tracker.wait()).await.ok();
}

type AcceptedConnection = (tokio::net::TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit);

/// Accepts a connection when there is room for one.
async fn accept_one(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<AcceptedConnection> {
    let slot = slots.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer, slot)),
        Err(error) => {
            // Too many open files, for example: waiting is better than spinning.
            tracing::warn!(%error, "a connection cannot be accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}
