//! The network between one process and the server of its store: a proxy on this machine that cuts, delays and half-closes
//! connections.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windlass_sim::SimRng;

use crate::namespace::NetworkNamespace;

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToProcess,
}

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkFault {
    /// All connections are reset, whatever they were doing.
    Reset,
    /// The next bytes in a direction are cut in the middle, and their connection is reset.
    Tear(Direction),
    /// A direction of all connections is closed. The other one stays open.
    HalfClose(Direction),
    /// A direction is held up for a while. What was sent arrives then.
    HoldOne(Direction),
    /// Both directions are held up for a while.
    HoldBoth,
    /// All bytes that are sent for a while are lost, and the connections are reset after it.
    Lose,
    /// Packets of the process are lost for a while, and those to it, too, if the direction is `ToProcess`. They are sent
    /// again, if no side has given up.
    LosePackets(Direction),
}

/// The flow of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LinkFlow {
    #[default]
    Open,
    Held(Direction),
    HeldBoth,
    Lost,
}

/// The state of a network. The numbers count the faults that hit the connections which exist at that time.
#[derive(Clone, Copy, Debug, Default)]
struct LinkState {
    flow: LinkFlow,
    resets: u64,
    tears: [u64; 2],
    half_closes: [u64; 2],
    loses_packets: bool,
}

impl LinkState {
    fn is_held(&self, direction: Direction) -> bool {
        self.flow == LinkFlow::HeldBoth || self.flow == LinkFlow::Held(direction)
    }
}

/// The network of one process. It ends when the value is dropped.
pub struct NetworkLink {
    address: SocketAddr,
    /// The namespace of the process, if it has one of its own.
    namespace: Option<NetworkNamespace>,
    state: watch::Sender<LinkState>,
    accepting: JoinHandle<()>,
}

impl NetworkLink {
    /// Starts to forward connections to a server on this machine.
    ///
    /// # Errors
    /// Returns the error of the listener.
    pub fn open(runtime: &Handle, server_port: u16, namespace: Option<NetworkNamespace>) -> io::Result<Self> {
        let _runtime = runtime.enter();
        let here = namespace.as_ref().map_or(Ipv4Addr::LOCALHOST, NetworkNamespace::host_address);
        let listener = std::net::TcpListener::bind((here, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let listener = TcpListener::from_std(listener)?;
        let (state, watched) = watch::channel(LinkState::default());
        let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server_port));
        let accepting = runtime.spawn(async move {
            loop {
                // A process that has too many files open has some fewer soon.
                match listener.accept().await {
                    Ok((process, _)) => drop(tokio::spawn(connect(process, server, watched.clone()))),
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
        Ok(Self { address, namespace, state, accepting })
    }

    /// Returns the address at which the process reaches the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a command that starts a program behind this network.
    pub fn command(&self, program: &Path) -> Command {
        match &self.namespace {
            Some(namespace) => namespace.command(program),
            None => Command::new(program),
        }
    }

    /// Injects a fault that the generator chooses. Returns the time after which the network is to be [healed](Self::heal),
    /// if the fault lasts.
    ///
    /// # Errors
    /// Returns the message of an error of the namespace.
    pub fn cut(
        &self,
        rng: &mut SimRng,
        long_chance: u64,
        long: Duration,
    ) -> Result<Option<Duration>, String> {
        let direction = *rng.pick(&[Direction::ToServer, Direction::ToProcess]);
        let mut faults = vec![
            NetworkFault::Reset,
            NetworkFault::Tear(direction),
            NetworkFault::HalfClose(direction),
            NetworkFault::HoldOne(direction),
            NetworkFault::HoldBoth,
            NetworkFault::Lose,
        ];
        if self.namespace.is_some() {
            faults.extend([NetworkFault::LosePackets(direction); 2]);
        }
        let fault = *rng.pick(&faults);
        if let (NetworkFault::LosePackets(direction), Some(namespace)) = (fault, &self.namespace) {
            namespace.lose_packets(direction == Direction::ToProcess)?;
        }
        let short = Duration::from_millis(5 + rng.below(300));
        let lasting = if rng.chance(long_chance) { long } else { short };
        self.state.send_modify(|state| match fault {
            NetworkFault::Reset => state.resets += 1,
            NetworkFault::Tear(direction) => state.tears[direction as usize] += 1,
            NetworkFault::HalfClose(direction) => state.half_closes[direction as usize] += 1,
            NetworkFault::HoldOne(direction) => state.flow = LinkFlow::Held(direction),
            NetworkFault::HoldBoth => state.flow = LinkFlow::HeldBoth,
            NetworkFault::Lose => state.flow = LinkFlow::Lost,
            NetworkFault::LosePackets(_) => state.loses_packets = true,
        });
        Ok(match fault {
            NetworkFault::HoldOne(_)
            | NetworkFault::HoldBoth
            | NetworkFault::Lose
            | NetworkFault::LosePackets(_) => Some(lasting),
            NetworkFault::Reset | NetworkFault::Tear(_) | NetworkFault::HalfClose(_) => None,
        })
    }

    /// Ends a fault that lasts.
    pub fn heal(&self) {
        if let Some(namespace) = self.namespace.as_ref().filter(|_| self.state.borrow().loses_packets) {
            namespace.deliver_packets();
        }
        self.state.send_modify(|state| {
            state.loses_packets = false;
            // Neither side would ever learn that bytes are missing.
            state.resets += u64::from(state.flow == LinkFlow::Lost);
            state.flow = LinkFlow::Open;
        });
    }
}

impl Drop for NetworkLink {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// The end of one direction of a connection by a fault.
struct ConnectionLost;

/// Forwards a connection until it ends or is reset.
async fn connect(mut process: TcpStream, server: SocketAddr, mut state: watch::Receiver<LinkState>) {
    let begun = *state.borrow_and_update();
    // A new connection is not made while the network is cut.
    let is_open = |state: &LinkState| state.flow == LinkFlow::Open || state.resets != begun.resets;
    if !state.wait_for(is_open).await.is_ok_and(|state| state.resets == begun.resets) {
        return;
    }
    // The server may be down.
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let is_reset = {
        let (from_process, to_process) = process.split();
        let (from_server, to_server) = server.split();
        let requests = forward(Direction::ToServer, from_process, to_server, begun, state.clone());
        let answers = forward(Direction::ToProcess, from_server, to_process, begun, state.clone());
        tokio::select! {
            ended = async { tokio::try_join!(requests, answers) } => ended.is_err(),
            _ = state.wait_for(|state| state.resets != begun.resets) => true,
        }
    };
    if is_reset {
        // The socket is closed with RST if the system supports it, and without a shutdown in any case.
        process.set_zero_linger().ok();
        server.set_zero_linger().ok();
    }
}

/// Forwards one direction of a connection. `begun` has the faults that came before the connection.
async fn forward(
    direction: Direction,
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    begun: LinkState,
    mut state: watch::Receiver<LinkState>,
) -> Result<(), ConnectionLost> {
    let place = direction as usize;
    let mut buffer = vec![0; 65_536];
    let mut is_closed = false;
    loop {
        let now = *state.borrow_and_update();
        if !is_closed && now.half_closes[place] != begun.half_closes[place] {
            is_closed = true;
            to.shutdown().await.ok();
        }
        let count = tokio::select! {
            changed = state.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return Err(ConnectionLost),
            },
            // Bytes that are held up stay in the buffers of the sockets.
            read = from.read(&mut buffer), if !now.is_held(direction) => read.map_err(|_| ConnectionLost)?,
        };
        if count == 0 {
            to.shutdown().await.ok();
            return Ok(());
        }
        // The flow may have changed while this task waited.
        let now = *state.borrow();
        if is_closed || now.flow == LinkFlow::Lost {
            continue;
        }
        let is_torn = now.tears[place] != begun.tears[place];
        let kept = if is_torn { count / 2 } else { count };
        let written = to.write_all(&buffer[..kept]).await;
        if is_torn || written.is_err() {
            return Err(ConnectionLost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each line with the same line, and a connection to it through a link.
    async fn connected() -> (NetworkLink, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut buffer = [0; 64];
                    while let Ok(count @ 1..) = client.read(&mut buffer).await {
                        client.write_all(&buffer[..count]).await.ok();
                    }
                });
            }
        });
        let link = NetworkLink::open(&Handle::current(), port, None).expect("a link");
        let client = TcpStream::connect(link.address()).await.expect("a connection");
        (link, client)
    }

    /// Returns what comes back for a word: its bytes, none at an end of the connection, or an error.
    async fn echo(client: &mut TcpStream) -> io::Result<Vec<u8>> {
        let mut buffer = [0; 64];
        client.write_all(b"word").await?;
        let count = client.read(&mut buffer).await?;
        Ok(buffer[..count].to_vec())
    }

    #[tokio::test]
    async fn a_reset_breaks_the_connections_that_exist() {
        let (link, mut client) = connected().await;
        assert_eq!(echo(&mut client).await.expect("an answer"), b"word");
        link.state.send_modify(|state| state.resets += 1);
        let broken = client.read(&mut [0; 8]).await.expect_err("a reset");
        assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
        let mut client = TcpStream::connect(link.address()).await.expect("a new one");
        assert_eq!(echo(&mut client).await.expect("an answer"), b"word");
    }

    #[tokio::test]
    async fn bytes_are_torn_and_directions_are_closed() {
        let (link, mut client) = connected().await;
        assert_eq!(echo(&mut client).await.expect("an answer"), b"word");
        link.state.send_modify(|state| state.half_closes[Direction::ToProcess as usize] += 1);
        assert_eq!(client.read(&mut [0; 8]).await.expect("an end"), 0);
        client.write_all(b"word").await.expect("the other direction is open");

        let (link, mut client) = connected().await;
        assert_eq!(echo(&mut client).await.expect("an answer"), b"word");
        link.state.send_modify(|state| state.tears[Direction::ToProcess as usize] += 1);
        client.write_all(b"word").await.expect("it is sent");
        let mut got = Vec::new();
        client.read_to_end(&mut got).await.ok();
        assert!(got.len() < 4, "half of an answer at most, not {got:?}");
    }

    #[tokio::test]
    async fn what_is_held_up_arrives_and_what_is_lost_does_not() {
        let (link, mut client) = connected().await;
        assert_eq!(echo(&mut client).await.expect("an answer"), b"word");
        link.state.send_modify(|state| state.flow = LinkFlow::HeldBoth);
        client.write_all(b"held").await.expect("it is sent");
        link.heal();
        let mut got = [0; 4];
        client.read_exact(&mut got).await.expect("it arrives");
        assert_eq!(&got, b"held");
        link.state.send_modify(|state| state.flow = LinkFlow::Lost);
        client.write_all(b"lost").await.expect("it is sent");
        tokio::time::sleep(Duration::from_millis(20)).await;
        link.heal();
        let broken = client.read(&mut got).await.expect_err("a reset");
        assert_eq!(broken.kind(), io::ErrorKind::ConnectionReset);
    }
}
