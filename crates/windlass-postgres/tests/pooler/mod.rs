//! A pooler (PgBouncer) in transaction mode before a server.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::{TestServer, free_port, is_root, succeed};

/// A running pooler, which stops when the value is dropped.
pub(crate) struct TestPooler {
    _folder: tempfile::TempDir,
    process: Child,
    port: u16,
}

impl TestPooler {
    /// Starts a pooler with fewer connections to the server than it accepts. Returns `None`, and says so, if PgBouncer is
    /// not installed.
    pub(crate) fn start(server: &TestServer) -> Option<Self> {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer"];
        let Some(program) = program.into_iter().find(|path| std::path::Path::new(path).is_file()) else {
            writeln!(
                std::io::stderr(),
                "not shown: a pooler in transaction mode, because PgBouncer is not installed \
                 (Debian: apt-get install pgbouncer)"
            )
            .expect("stderr");
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let path = folder.path().display().to_string();
        let (host, server_port) = server
            .host_and_port()
            .split_once(':')
            .map(|(host, port)| (host.to_owned(), port.to_owned()))
            .expect("a port");
        let settings = format!(
            "[databases]\npostgres = host={host} port={server_port} dbname=postgres user=windlass\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 200\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("it can be written");
        let mut command = if is_root() {
            succeed(Command::new("chown").args(["-R", "postgres", &path]).output());
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups", program]);
            command
        } else {
            Command::new(program)
        };
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().expect("it starts");
        let pooler = Self { _folder: folder, process, port };
        let begun = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the pooler listens");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(pooler)
    }

    /// Returns the address of the database behind the pooler.
    pub(crate) fn address(&self) -> String {
        format!("postgres://windlass@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }
}

impl Drop for TestPooler {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
