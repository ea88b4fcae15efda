//! Comparison of Windlass with its peers: every case is measured with every peer, interleaved, each in its own
//! process. The results are a table and a chart.
//!
//! The peers are not part of this project. `--peers` names a folder with `peers.json` (the commands of the
//! runners), `workloads.json` (the cases) and `rust/target/release/fakeserver` (the server of the HTTP cases).

mod chart;
mod metrics;
mod peer;
mod table;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use self::metrics::MeasuredRows;
use self::peer::{HttpCaseServer, PeerCommand};

/// The options of `compare`.
struct CompareOptions {
    peers_dir: PathBuf,
    /// Folder for the table and the chart.
    docs_dir: PathBuf,
    /// File with earlier rows, to which new ones are appended.
    rows_file: Option<PathBuf>,
    rounds: usize,
    timeout_seconds: u64,
    only_peers: Vec<String>,
    case_ids: Vec<String>,
}

impl CompareOptions {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self {
            peers_dir: PathBuf::new(),
            docs_dir: PathBuf::from("docs"),
            rows_file: None,
            rounds: 3,
            timeout_seconds: 60,
            only_peers: Vec::new(),
            case_ids: metrics::case_ids(),
        };
        for pair in words.chunks(2) {
            let [name, value] = pair else { return Err(format!("`{}` needs a value", pair[0])) };
            let number = || value.parse().map_err(|_| format!("`{value}` is not a number"));
            let list = || value.split(',').map(str::to_owned).collect();
            match *name {
                "--peers" => options.peers_dir = PathBuf::from(value),
                "--docs" => options.docs_dir = PathBuf::from(value),
                "--rows" => options.rows_file = Some(PathBuf::from(value)),
                "--rounds" => options.rounds = number()?,
                "--seconds" => options.timeout_seconds = number()? as u64,
                "--only" => options.only_peers = list(),
                "--cases" => options.case_ids = list(),
                other => return Err(format!("`{other}` is not an option of compare")),
            }
        }
        if options.peers_dir.as_os_str().is_empty() {
            return Err("compare needs `--peers DIR`: a folder with peers.json and workloads.json".to_owned());
        }
        Ok(options)
    }
}

/// Measures all peers and writes `benchmarks.md` and `benchmarks.svg`.
pub fn run_comparison(words: &[&str]) -> Result<(), String> {
    let options = CompareOptions::parse(words)?;
    let root = options
        .peers_dir
        .canonicalize()
        .map_err(|error| format!("{}: {error}", options.peers_dir.display()))?;
    let mut rows = MeasuredRows::default();
    if let Some(text) = options.rows_file.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) {
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).for_each(|row| rows.add(row));
    }
    let peers = peer::load_peers(&root, &options.only_peers)?;
    let cases = load_cases(&root, &options.case_ids)?;
    let _server = HttpCaseServer::start(&root)?;
    let mut gone = BTreeSet::new();
    for round in 0..options.rounds {
        for (place, case) in cases.iter().enumerate() {
            for turn in 0..peers.len() {
                let peer = &peers[(round + place + turn) % peers.len()];
                let key = (peer.name.clone(), case["id"].to_string());
                if gone.contains(&key) || !peer.accepts_case(case) {
                    continue;
                }
                for row in measure_peer(peer, case, &options) {
                    if row.get("error").is_some() || row.get("skip").is_some() {
                        gone.insert(key.clone());
                    }
                    rows.add(row);
                }
                println!("round {round}, {}, {}", case["id"], peer.name);
            }
        }
    }
    let sizes = peers.iter().filter_map(|peer| Some((peer.name.clone(), peer.disk_size()?))).collect();
    table::write_docs(&options.docs_dir, &rows, &sizes).map_err(|error| error.to_string())
}

fn measure_peer(peer: &PeerCommand, case: &Value, options: &CompareOptions) -> Vec<Value> {
    let limit = Duration::from_secs(options.timeout_seconds);
    let rows = peer.run(case, limit).unwrap_or_else(|error| vec![json!({"error": error})]);
    let named = |mut row: Value| {
        row["peer"] = peer.name.clone().into();
        row["case"] = case["id"].clone();
        row
    };
    let rows: Vec<Value> = rows.into_iter().map(named).collect();
    if let Some(path) = &options.rows_file {
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

fn load_cases(root: &std::path::Path, wanted: &[String]) -> Result<Vec<Value>, String> {
    let all = peer::read_json(&root.join("workloads.json"))?;
    let is_wanted = |case: &&Value| {
        let id = case["id"].as_str().unwrap_or_default();
        wanted.iter().any(|wanted| id == wanted || id.starts_with(&format!("{wanted}.")))
    };
    Ok(all["cases"].as_array().into_iter().flatten().filter(is_wanted).cloned().collect())
}
