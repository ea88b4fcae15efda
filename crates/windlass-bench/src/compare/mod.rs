//! Windlass and its peers side by side: every case by every peer, interleaved, each in a process of its own, and
//! what came of it as a table and a chart.
//!
//! The peers are not part of this project. `--peers` names a folder that has `peers.json` (how each runner is
//! started), `workloads.json` (the cases) and `rust/target/release/fakeserver` (the server of the HTTP cases).

mod chart;
mod figures;
mod peer;
mod table;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use self::figures::Rows;
use self::peer::{Peer, Server};

/// What to compare.
struct Options {
    peers: PathBuf,
    /// Where the table and the chart go.
    docs: PathBuf,
    /// Rows that there are already, and where new ones are added.
    rows: Option<PathBuf>,
    rounds: usize,
    seconds: u64,
    only: Vec<String>,
    cases: Vec<String>,
}

impl Options {
    fn read(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            peers: PathBuf::new(),
            docs: PathBuf::from("docs"),
            rows: None,
            rounds: 3,
            seconds: 60,
            only: Vec::new(),
            cases: figures::cases(),
        };
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` needs a value", pair[0])) };
            let number = || value.parse().map_err(|_| format!("`{value}` is not a number"));
            let list = || value.split(',').map(str::to_owned).collect();
            match *name {
                "--peers" => options.peers = PathBuf::from(value),
                "--docs" => options.docs = PathBuf::from(value),
                "--rows" => options.rows = Some(PathBuf::from(value)),
                "--rounds" => options.rounds = number()?,
                "--seconds" => options.seconds = number()? as u64,
                "--only" => options.only = list(),
                "--cases" => options.cases = list(),
                other => return Err(format!("`{other}` is not an option of compare")),
            }
        }
        if options.peers.as_os_str().is_empty() {
            return Err("compare needs `--peers DIR`: a folder with peers.json and workloads.json".to_owned());
        }
        Ok(options)
    }
}

/// Compares, and writes `benchmarks.md` and `benchmarks.svg`.
pub fn run(words: &[&str]) -> Result<(), String> {
    let options = Options::read(words)?;
    let root =
        options.peers.canonicalize().map_err(|error| format!("{}: {error}", options.peers.display()))?;
    let mut rows = Rows::default();
    if let Some(text) = options.rows.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) {
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|row| rows.add(row));
    }
    let peers = peer::all(&root, &options.only)?;
    let cases = cases(&root, &options.cases)?;
    let _server = Server::start(&root)?;
    let mut gone = BTreeSet::new();
    for round in 0..options.rounds {
        for (place, case) in cases.iter().enumerate() {
            for turn in 0..peers.len() {
                let peer = &peers[(round + place + turn) % peers.len()];
                let key = (peer.name.clone(), case["id"].to_string());
                if gone.contains(&key) || !peer.takes(case) {
                    continue;
                }
                for row in measured(peer, case, &options) {
                    if row.get("error").is_some() || row.get("skip").is_some() {
                        gone.insert(key.clone());
                    }
                    rows.add(row);
                }
                println!("round {round}, {}, {}", case["id"], peer.name);
            }
        }
    }
    let sizes = peers.iter().filter_map(|peer| Some((peer.name.clone(), peer.size()?))).collect();
    table::write(&options.docs, &rows, &sizes).map_err(|error| error.to_string())
}

fn measured(peer: &Peer, case: &Value, options: &Options) -> Vec<Value> {
    let limit = Duration::from_secs(options.seconds);
    let rows = peer.run(case, limit).unwrap_or_else(|error| vec![json!({"error": error})]);
    let named = |mut row: Value| {
        row["peer"] = peer.name.clone().into();
        row["case"] = case["id"].clone();
        row
    };
    let rows: Vec<Value> = rows.into_iter().map(named).collect();
    if let Some(path) = &options.rows {
        let kept = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .and_then(|mut file| rows.iter().try_for_each(|row| writeln!(file, "{row}")));
        if let Err(error) = kept {
            eprintln!("{}: {error}", path.display());
        }
    }
    rows
}

fn cases(root: &std::path::Path, wanted: &[String]) -> Result<Vec<Value>, String> {
    let all = peer::json(&root.join("workloads.json"))?;
    let is_wanted = |case: &&Value| {
        let id = case["id"].as_str().unwrap_or_default();
        wanted.iter().any(|wanted| id == wanted || id.starts_with(&format!("{wanted}.")))
    };
    Ok(all["cases"].as_array().into_iter().flatten().filter(is_wanted).cloned().collect())
}
