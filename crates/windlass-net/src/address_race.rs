//! Attempts to connect to the addresses of one host, beside one another (RFC 8305, "Happy Eyeballs").
//!
//! An address that does not answer delays the next one by [`ATTEMPT_DELAY`], not by its whole timeout. The first
//! connection wins, and the other attempts are dropped.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Delay after which the next address is tried beside those that have not answered.
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Connects to the first address that accepts.
///
/// # Errors
///
/// Returns the error of the last attempt that failed, if all failed.
pub(crate) async fn connect_to_first<S, F: Future<Output = io::Result<S>>>(
    addresses: &[SocketAddr],
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<S> {
    let mut waiting = interleave_families(addresses).into_iter();
    let mut attempts: Vec<Pin<Box<F>>> = Vec::new();
    let mut last_error = io::Error::new(io::ErrorKind::AddrNotAvailable, "the host has no address");
    loop {
        attempts.extend(waiting.next().map(|address| Box::pin(connect(address))));
        if attempts.is_empty() {
            return Err(last_error);
        }
        let has_more = waiting.len() > 0;
        tokio::select! {
            biased;
            result = poll_fn(|cx| poll_first(&mut attempts, cx)) => match result {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = error,
            },
            () = tokio::time::sleep(ATTEMPT_DELAY), if has_more => {}
        }
    }
}

/// Polls the attempts, and removes the first that has ended.
fn poll_first<S, F: Future<Output = io::Result<S>>>(
    attempts: &mut Vec<Pin<Box<F>>>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<S>> {
    let ended =
        attempts.iter_mut().enumerate().find_map(|(place, attempt)| match attempt.as_mut().poll(cx) {
            Poll::Ready(result) => Some((place, result)),
            Poll::Pending => None,
        });
    match ended {
        Some((place, result)) => {
            drop(attempts.remove(place));
            Poll::Ready(result)
        }
        None => Poll::Pending,
    }
}

/// Returns the addresses so that those of IPv6 and IPv4 alternate, beginning with the first, in the order of the resolver.
fn interleave_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_first_ipv6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (mut first, mut second): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.iter().partition(|address| address.is_ipv6() == is_first_ipv6);
    first.reverse();
    second.reverse();
    let mut ordered = Vec::with_capacity(addresses.len());
    while !(first.is_empty() && second.is_empty()) {
        ordered.extend(first.pop());
        ordered.extend(second.pop());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::time::Duration;

    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().expect("an address")).collect()
    }

    /// A port of 1 is a black hole, one of 2 refuses, and all others accept after 10 ms.
    async fn connect(address: SocketAddr) -> io::Result<SocketAddr> {
        match address.port() {
            1 => std::future::pending().await,
            2 => Err(io::ErrorKind::ConnectionRefused.into()),
            _ => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(address)
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_never_answers_delays_the_next_one_only_a_little() {
        let hosts = addresses(&["[::1]:1", "[::2]:1", "127.0.0.1:80"]);
        let start = tokio::time::Instant::now();
        assert_eq!(connect_to_first(&hosts, connect).await.expect("a connection"), hosts[2]);
        // The clock of the test is virtual.
        assert_eq!(start.elapsed(), Duration::from_millis(260));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_starts_the_next_attempt_at_once() {
        let hosts = addresses(&["[::1]:2", "127.0.0.1:80", "127.0.0.2:80"]);
        let started = RefCell::new(Vec::new());
        let start = tokio::time::Instant::now();
        let won = connect_to_first(&hosts, |address| {
            started.borrow_mut().push(address);
            connect(address)
        });
        assert_eq!(won.await.expect("a connection"), hosts[1]);
        assert_eq!(start.elapsed(), Duration::from_millis(10));
        assert_eq!(*started.borrow(), hosts[..2], "no attempt is made that is not needed");
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_is_that_of_an_attempt() {
        let refused = connect_to_first(&addresses(&["[::1]:2", "127.0.0.1:2"]), connect).await;
        assert_eq!(refused.expect_err("refused").kind(), io::ErrorKind::ConnectionRefused);
        let nowhere = connect_to_first(&[], connect).await;
        assert_eq!(nowhere.expect_err("nowhere").kind(), io::ErrorKind::AddrNotAvailable);
    }

    #[test]
    fn families_alternate_in_the_order_of_the_resolver() {
        let given = addresses(&["[::1]:80", "[::2]:80", "[::3]:80", "127.0.0.1:80", "127.0.0.2:80"]);
        let expected = addresses(&["[::1]:80", "127.0.0.1:80", "[::2]:80", "127.0.0.2:80", "[::3]:80"]);
        assert_eq!(interleave_families(&given), expected);
    }
}
