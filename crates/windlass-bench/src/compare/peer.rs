//! A peer: a runner that takes a case as JSON and prints a line for every repetition.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How a peer is started.
pub(super) struct Peer {
    pub(super) name: String,
    command: Vec<String>,
    env: Vec<(String, String)>,
    /// The cases that it is for; all, where this is empty.
    only: Vec<String>,
    size: Vec<PathBuf>,
    root: PathBuf,
}

static PORT: OnceLock<u16> = OnceLock::new();

pub(super) fn json(path: &Path) -> Result<Value, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

/// The peers that are here, Windlass among them. One that is not set up is left out, and that is said.
pub(super) fn all(root: &Path, only: &[String]) -> Result<Vec<Peer>, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let filled = |text: &str| {
        text.replace("{root}", &root.to_string_lossy()).replace("{windlass}", &own.to_string_lossy())
    };
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(filled).collect()
    };
    let mut peers = Vec::new();
    for peer in json(&root.join("peers.json"))?["peers"].as_array().into_iter().flatten() {
        let name = peer["peer"].as_str().unwrap_or_default().to_owned();
        if !only.is_empty() && !only.contains(&name) {
            continue;
        }
        let command = texts(&peer["cmd"]);
        if command.first().is_none_or(|program| !Path::new(program).exists()) {
            println!("{name} is not set up here, and is left out");
            continue;
        }
        let env = peer["env"].as_object().into_iter().flatten();
        let env = env.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
        peers.push(Peer {
            name,
            command,
            env: env.collect(),
            only: texts(&peer["only"]),
            size: texts(&peer["size"]).into_iter().map(PathBuf::from).collect(),
            root: root.to_owned(),
        });
    }
    Ok(peers)
}

impl Peer {
    pub(super) fn takes(&self, case: &Value) -> bool {
        let id = case["id"].as_str().unwrap_or_default();
        let fits = |only: &String| id == only || id.starts_with(&format!("{only}."));
        self.only.is_empty() || self.only.iter().any(fits)
    }

    /// How many bytes it takes on the disk.
    pub(super) fn size(&self) -> Option<u64> {
        (!self.size.is_empty()).then(|| self.size.iter().map(|path| bytes(path)).sum())
    }

    /// One case in a process of its own.
    pub(super) fn run(&self, case: &Value, limit: Duration) -> Result<Vec<Value>, String> {
        let began = Instant::now();
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .arg(case.to_string())
            .envs(self.env.iter().cloned())
            .env("PERF_ROOT", &self.root)
            .env("PERF_BASE_URL", format!("http://127.0.0.1:{}/v1", PORT.get().copied().unwrap_or(18080)))
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

fn bytes(path: &Path) -> u64 {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => {
            let entries = std::fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
            entries.map(|entry| bytes(&entry.path())).sum()
        }
        Ok(found) if found.is_file() => found.len(),
        Ok(_) | Err(_) => 0,
    }
}

/// The server that the HTTP cases ask, for as long as this is here.
pub(super) struct Server(Option<Child>);

impl Server {
    pub(super) fn start(root: &Path) -> Result<Self, String> {
        let program = root.join("rust/target/release/fakeserver");
        if !program.exists() {
            println!("there is no server for the HTTP cases here");
            return Ok(Self(None));
        }
        // The port is free now, and taken by the server at once.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = free.map_err(|error| error.to_string())?.port();
        let server = Command::new(program)
            .arg(format!("127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let server = Self(Some(server));
        let port = *PORT.get_or_init(|| port);
        for _ in 0..100 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err("the server of the HTTP cases did not come up".to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(server) = &mut self.0 {
            let _gone = server.kill();
            let _reaped = server.wait();
        }
    }
}
