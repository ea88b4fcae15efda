//! A server of Restate for tests, in a folder of its own on free ports of this machine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use windlass_engine_desk::{ChildProcess, free_port, say_not_shown, wait_for};

/// A running server of one node or of several, which stops when the value is dropped.
pub(crate) struct TestServer {
    program: PathBuf,
    folder: tempfile::TempDir,
    nodes: Vec<ServerNode>,
    /// The node that clients talk to. In a cluster it does not lead the partition.
    front: usize,
}

/// A node of a server.
struct ServerNode {
    port: u16,
    ingress: u16,
    admin: u16,
    process: Option<ChildProcess>,
}

impl TestServer {
    /// Starts a server with so many nodes. Returns `None`, and says so, if Restate is not installed.
    pub(crate) async fn start(count: usize) -> Option<Self> {
        let Some(program) = find_program() else {
            say_not_shown(
                "runs dispatched by Restate, because WINDLASS_RESTATE names no folder with the server (.ci/run installs it)",
            );
            return None;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let addresses: Vec<String> =
            ports.iter().map(|port| format!("\"http://127.0.0.1:{port}\"")).collect();
        let mut nodes = Vec::new();
        for (number, port) in ports.iter().enumerate() {
            let (ingress, admin) = (free_port(), free_port());
            let settings = format!(
                "node-name = \"node-{number}\"\ncluster-name = \"test\"\nbase-dir = \"{}\"\n\
                 bind-ip = \"127.0.0.1\"\nbind-port = {port}\nadvertised-host = \"127.0.0.1\"\n\
                 listen-mode = \"tcp\"\ndisable-telemetry = true\nauto-provision = {}\n\
                 default-num-partitions = 1\ndefault-replication = {}\nrocksdb-total-memory-size = \"256MiB\"\n\
                 [metadata-client]\naddresses = [{}]\n[bifrost]\ndefault-provider = \"replicated\"\n[ingress]\nbind-port = {ingress}\n[admin]\nbind-port = {admin}\n",
                folder.path().join(format!("data-{number}")).display(),
                number == 0,
                count.min(2),
                addresses.join(", "),
            );
            std::fs::write(folder.path().join(format!("node-{number}.toml")), settings)
                .expect("it is written");
            nodes.push(ServerNode { port: *port, ingress, admin, process: None });
        }
        let mut server = Self { program, folder, nodes, front: 0 };
        for number in 0..count {
            server.start_node(number);
        }
        server.wait_until_healthy().await;
        let leader = server.wait_for_leader().await;
        server.front = (0..count).find(|number| *number != leader).unwrap_or(leader);
        Some(server)
    }

    fn start_node(&mut self, number: usize) {
        let mut command = Command::new(&self.program);
        command.arg("--no-logo").arg("-c").arg(self.folder.path().join(format!("node-{number}.toml")));
        command.current_dir(self.folder.path()).env("DO_NOT_TRACK", "1");
        let log = self.folder.path().join(format!("log-{number}"));
        self.nodes[number].process = Some(ChildProcess::start(&mut command, &log));
    }

    async fn wait_until_healthy(&self) {
        wait_for("the server answers", async || {
            let is_healthy = |port, path| matches!(request(port, "GET", path, None), Some((200, _)));
            self.nodes
                .iter()
                .all(|node| is_healthy(node.admin, "/health") && is_healthy(node.ingress, "/restate/health"))
        })
        .await;
    }

    /// Waits until a running node leads the only partition, and returns its number.
    pub(crate) async fn wait_for_leader(&self) -> usize {
        let find = || self.nodes.iter().position(ServerNode::is_leader);
        wait_for("a node leads the partition", async || find().is_some()).await;
        find().expect("a node leads the partition")
    }

    /// Kills the node that leads the partition, as a crash does, and returns its number.
    pub(crate) async fn kill_leader(&mut self) -> usize {
        let leader = self.wait_for_leader().await;
        assert!(
            self.nodes.len() == 1 || leader != self.front,
            "the partition has moved to the node of the clients"
        );
        self.nodes[leader].process.take().expect("it runs").kill();
        leader
    }

    /// Starts a node again, and waits until it answers.
    pub(crate) async fn resume(&mut self, number: usize) {
        self.start_node(number);
        self.wait_until_healthy().await;
    }

    fn front_node(&self) -> &ServerNode {
        &self.nodes[self.front]
    }

    /// Returns the address of the ingress.
    pub(crate) fn ingress_address(&self) -> String {
        format!("http://127.0.0.1:{}", self.front_node().ingress)
    }

    /// Returns the address of the admin API.
    pub(crate) fn admin_address(&self) -> String {
        format!("http://127.0.0.1:{}", self.front_node().admin)
    }

    /// Counts the invocations of `drive` that are in a state.
    pub(crate) fn count_segments(&self, status: &str) -> usize {
        self.segment_starts(status).len()
    }

    /// Returns the time of the last attempt of each invocation of `drive` that is in a state.
    pub(crate) fn segment_starts(&self, status: &str) -> Vec<Value> {
        let query = format!(
            "select last_start_at from sys_invocation where target_handler_name = 'drive' and status = '{status}'"
        );
        let body = json!({ "query": query }).to_string();
        let answer = request(self.front_node().admin, "POST", "/query", Some(&body));
        let rows = answer.filter(|(status, _)| *status == 200);
        let rows = rows.and_then(|(_, body)| serde_json::from_str::<Value>(&body).ok());
        let rows = rows.and_then(|rows| rows["rows"].as_array().cloned()).unwrap_or_default();
        rows.iter().map(|row| row["last_start_at"].clone()).collect()
    }
}

impl ServerNode {
    /// Returns true if this node runs and leads the only partition.
    fn is_leader(&self) -> bool {
        let metrics = self.process.as_ref().and_then(|_| request(self.port, "GET", "/metrics", None));
        metrics.is_some_and(|(_, text)| {
            let line = text.lines().find(|line| line.starts_with("restate_num_active_partition_leaders{"));
            line.is_some_and(|line| line.ends_with(" 1"))
        })
    }
}

/// Sends a request, and returns the status and the body of the answer; `None` if the server does not answer.
fn request(port: u16, method: &str, path: &str, body: Option<&str>) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let body = body.unwrap_or_default();
    let text = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\nAccept: application/json\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split_whitespace().nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}

fn find_program() -> Option<PathBuf> {
    let modules = std::env::var_os("WINDLASS_RESTATE").map(PathBuf::from)?;
    let program = modules.join("node_modules/@restatedev/restate-server-linux-x64/bin/restate-server");
    program.is_file().then_some(program)
}
