//! A server of Temporal for tests, in a folder of its own on a free port of this machine.

use std::path::PathBuf;
use std::process::Command;

use temporalio_client::{Client, ClientOptions, Connection, ConnectionOptions};
use windlass_engine_desk::{ChildProcess, free_port, say_not_shown, wait_for};

/// A running server, which stops when the value is dropped.
pub(crate) struct TestServer {
    program: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    process: Option<ChildProcess>,
}

impl TestServer {
    /// Starts a server. Returns `None`, and says so, if Temporal is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let program = std::env::var_os("WINDLASS_TEMPORAL").map(PathBuf::from).filter(|path| path.is_file());
        let Some(program) = program else {
            say_not_shown(
                "runs dispatched by Temporal, because WINDLASS_TEMPORAL does not name the program (.ci/run installs it)",
            );
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = Self { program, folder, port: free_port(), process: None };
        server.resume().await;
        Some(server)
    }

    /// Kills the server, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    /// Starts the server again, and waits until it answers.
    pub(crate) async fn resume(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--log-level", "error"]);
        command.args(["--port", &self.port.to_string(), "--db-filename", "temporal.db"]);
        for attribute in ["WindlassAgent", "WindlassStatus"] {
            command.args(["--search-attribute", &format!("{attribute}=Keyword")]);
        }
        command.current_dir(self.folder.path()).env("HOME", self.folder.path());
        self.process = Some(ChildProcess::start(&mut command, &self.folder.path().join("log")));
        wait_for("the server answers", async || {
            self.run_command(&["operator", "cluster", "health"]).is_some()
        })
        .await;
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Runs a command of the client, and returns its output if it succeeds.
    pub(crate) fn run_command(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(&self.program);
        command.args(arguments).args(["--address", &format!("127.0.0.1:{}", self.port)]);
        let output = command.env("HOME", self.folder.path()).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Connects to a server.
pub(crate) async fn connect(address: &str) -> Client {
    let address: url::Url = address.parse().expect("an address");
    let connection = Connection::connect(ConnectionOptions::new(address).build()).await.expect("it answers");
    Client::new(connection, ClientOptions::new("default").build()).expect("a client")
}
