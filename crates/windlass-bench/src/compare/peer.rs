//! Peers: external runners that take a case as JSON and print a line of JSON for every repetition.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The command that starts a peer's runner.
pub(super) struct PeerCommand {
    pub(super) name: String,
    command: Vec<String>,
    env: Vec<(String, String)>,
    /// The cases that the peer supports; all if empty.
    only_cases: Vec<String>,
    size_paths: Vec<PathBuf>,
    root: PathBuf,
}

static SERVER_PORT: OnceLock<u16> = OnceLock::new();

pub(super) fn read_json(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the installed peers, including Windlass. Peers that are not installed are skipped with a message.
pub(super) fn load_peers(root: &Path, only: &[String]) -> Result<Vec<PeerCommand>, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let filled = |text: &str| {
        text.replace("{root}", &root.to_string_lossy()).replace("{windlass}", &own.to_string_lossy())
    };
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(filled).collect()
    };
    let mut peers = Vec::new();
    for peer in read_json(&root.join("peers.json"))?["peers"].as_array().into_iter().flatten() {
        let name = peer["peer"].as_str().unwrap_or_default().to_owned();
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        let command = texts(&peer["cmd"]);
        if command.first().is_none_or(|program| !Path::new(program).exists()) {
            println!("{name} is not installed here and is skipped");
            continue;
        }
        let env = peer["env"].as_object().into_iter().flatten();
        let env = env.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
        peers.push(PeerCommand {
            name,
            command,
            env: env.collect(),
            only_cases: texts(&peer["only"]),
            size_paths: texts(&peer["size"]).into_iter().map(PathBuf::from).collect(),
            root: root.to_owned(),
        });
    }
    Ok(peers)
}

impl PeerCommand {
    pub(super) fn accepts_case(&self, case: &Value) -> bool {
        let id = case["id"].as_str().unwrap_or_default();
        let fits = |only: &String| id == only || id.starts_with(&format!("{only}."));
        self.only_cases.is_empty() || self.only_cases.iter().any(fits)
    }

    /// Returns the size of the peer on disk in bytes, if it is known.
    pub(super) fn disk_size(&self) -> Option<u64> {
        (!self.size_paths.is_empty()).then(|| self.size_paths.iter().map(|path| disk_bytes(path)).sum())
    }

    /// Measures one case in a new process and returns its rows.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if the process fails, prints no row, or runs longer than `limit`.
    pub(super) fn run(&self, case: &Value, limit: Duration) -> Result<Vec<Value>, String> {
        let began = Instant::now();
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .arg(case.to_string())
            .envs(self.env.iter().cloned())
            .env("PERF_ROOT", &self.root)
            .env(
                "PERF_BASE_URL",
                format!("http://127.0.0.1:{}/v1", SERVER_PORT.get().copied().unwrap_or(18080)),
            )
            .env("OPENAI_API_KEY", "x")
            .current_dir(&self.root)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let Some(out) = child.stdout.take() else { return Err("it has no output".to_owned()) };
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.map(|line| (began.elapsed(), line)).collect::<Vec<_>>()
        });
        while !matches!(child.try_wait(), Ok(Some(_)) | Err(_)) {
            if began.elapsed() > limit {
                child.kill().map_err(|error| error.to_string())?;
                child.wait().map_err(|error| error.to_string())?;
                return Err(format!("no answer in {} s", limit.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let lines = lines.join().map_err(|_| "its output could not be read".to_owned())?;
        let rows: Vec<Value> = lines
            .iter()
            .filter_map(|(at, line)| Some((at, serde_json::from_str::<Value>(line).ok()?)))
            .filter_map(|(at, row)| match row["ev"].as_str() {
                None => Some(row),
                Some("tool") => Some(json!({"ms_to_tool": at.as_secs_f64() * 1e3})),
                Some(_) => None,
            })
            .collect();
        if rows.is_empty() { Err("it printed nothing".to_owned()) } else { Ok(rows) }
    }
}

fn disk_bytes(path: &Path) -> u64 {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
            entries.map(|entry| disk_bytes(&entry.path())).sum()
        }
        Ok(found) if found.is_file() => found.len(),
        Ok(_) | Err(_) => 0,
    }
}

/// The running server of the HTTP cases. Dropping it stops the server.
pub(super) struct HttpCaseServer(Option<Child>);

impl HttpCaseServer {
    pub(super) fn start(root: &Path) -> Result<Self, String> {
        let program = root.join("rust/target/release/fakeserver");
        if !program.exists() {
            println!("there is no server for the HTTP cases here");
            return Ok(Self(None));
        }
        // The port is free now; the server binds it immediately afterwards.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = free.map_err(|error| error.to_string())?.port();
        let server = Command::new(program)
            .arg(format!("127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let server = Self(Some(server));
        let port = *SERVER_PORT.get_or_init(|| port);
        for _ in 0..100 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("the server of the HTTP cases did not start".to_owned())
    }
}

impl Drop for HttpCaseServer {
    fn drop(&mut self) {
        if let Some(server) = &mut self.0 {
            let _gone = server.kill();
            let _reaped = server.wait();
        }
    }
}
