//! A network namespace for a place of a round. Packets between it and this machine can be lost silently, as they are behind a
//! switch that fails: no side learns of it before its own time limit.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

/// An address of the link layer that nobody has: what is sent to it is dropped.
const NOBODY: &str = "02:00:00:00:00:01";
/// Number of namespaces that a process numbers before it begins again.
const PLACES: u16 = 64;

/// A namespace, which is removed when the value is dropped.
pub struct NetworkNamespace {
    name: String,
    /// The end of the cable on this machine. The other end is `eth0`.
    device: String,
    here: Ipv4Addr,
    there: Ipv4Addr,
}

impl NetworkNamespace {
    /// Creates a namespace and a cable between it and this machine.
    ///
    /// # Errors
    /// Returns the reason why there is none: only root may create one, with iproute2.
    pub fn create() -> Result<Self, String> {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let place = COUNT.fetch_add(1, Ordering::Relaxed) % PLACES;
        let pid = std::process::id();
        // Tortures that run at the same time have other networks, as long as there are few of them.
        let network = u16::try_from(pid % 256).unwrap_or_default() * PLACES + place;
        let [high, low] = (network * 4).to_be_bytes();
        let [here, there] = [1, 2].map(|host| Ipv4Addr::new(10, 213, high, low + host));
        let namespace =
            Self { name: format!("torture-{pid}-{place}"), device: format!("wlt{network}"), here, there };
        let Self { name, device, .. } = &namespace;
        ip(&["netns", "add", name])?;
        ip(&["link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", name])?;
        ip(&["addr", "add", &format!("{here}/30"), "dev", device])?;
        ip(&["link", "set", device, "up"])?;
        ip(&["-n", name, "addr", "add", &format!("{there}/30"), "dev", "eth0"])?;
        ip(&["-n", name, "link", "set", "eth0", "up"])?;
        Ok(namespace)
    }

    /// Returns the address of this machine, as the namespace sees it.
    pub fn host_address(&self) -> Ipv4Addr {
        self.here
    }

    /// Returns a command that starts a program in the namespace, with the process id of the command.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Loses all packets from the namespace, and those to it if both directions are to be lost.
    ///
    /// # Errors
    /// Returns the message of the error.
    pub fn lose_packets(&self, is_both: bool) -> Result<(), String> {
        let Self { name, device, here, there } = self;
        let nobody = |address: &Ipv4Addr| [address.to_string(), "lladdr".to_owned(), NOBODY.to_owned()];
        let [address, word, link] = &nobody(here);
        ip(&["-n", name, "neigh", "replace", address, word, link, "dev", "eth0", "nud", "permanent"])?;
        if is_both {
            let [address, word, link] = &nobody(there);
            ip(&["neigh", "replace", address, word, link, "dev", device, "nud", "permanent"])?;
        }
        Ok(())
    }

    /// Delivers packets again.
    pub fn deliver_packets(&self) {
        let Self { name, device, here, there } = self;
        // There is no such entry if only one direction was lost.
        ip(&["-n", name, "neigh", "del", &here.to_string(), "dev", "eth0"]).ok();
        ip(&["neigh", "del", &there.to_string(), "dev", device]).ok();
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        // The cable goes with it.
        ip(&["netns", "del", &self.name]).ok();
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(arguments)
        .output()
        .map_err(|error| format!("`ip` cannot be run: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write, stderr};
    use std::net::TcpListener;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn packets_of_a_namespace_are_lost_and_delivered_again() {
        let namespace = match NetworkNamespace::create() {
            Ok(namespace) => namespace,
            Err(reason) => return writeln!(stderr(), "not shown: lost packets: {reason}").expect("stderr"),
        };
        let listener = TcpListener::bind((namespace.host_address(), 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let script = format!(
            "exec 3<>/dev/tcp/{}/{port}; for word in one two; do echo $word >&3; read -r go <&3; done",
            namespace.host_address()
        );
        let mut child = namespace.command("bash").args(["-c", &script]).spawn().expect("bash");
        let (mut client, _) = listener.accept().expect("a connection");
        let mut buffer = [0; 4];
        client.read_exact(&mut buffer).expect("the first word");
        assert_eq!(&buffer, b"one\n");
        namespace.lose_packets(false).expect("packets are lost");
        client.write_all(b"go\n").expect("it is sent");
        client.set_read_timeout(Some(Duration::from_millis(300))).expect("a limit");
        client.read_exact(&mut buffer).expect_err("the second word is lost on its way");
        namespace.deliver_packets();
        let started = Instant::now();
        while client.read_exact(&mut buffer).is_err() {
            assert!(started.elapsed() < Duration::from_secs(60), "the second word never arrives");
        }
        assert_eq!(&buffer, b"two\n");
        client.write_all(b"go\n").expect("it is sent");
        assert!(child.wait().expect("it ends").success());
    }
}
