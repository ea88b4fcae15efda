//! How fast an index is made and searched, and what it holds in memory. Give numbers of chunks:
//!
//! ```sh
//! cargo run --release -p windlass-search --example search_speed -- 10000 250000
//! ```
//!
//! The text is made up: words with the frequencies that words have (Zipf's law), from a fixed seed.

use std::error::Error;
use std::time::{Duration, Instant};

use windlass_search::{Index, Signals};

const WORDS: usize = 60_000;
const WORDS_IN_CHUNK: usize = 180;
const CHUNKS_IN_FILE: usize = 10;
const QUESTIONS: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    for size in if sizes.is_empty() { vec![1000] } else { sizes } {
        measure(size)?;
    }
    Ok(())
}

fn measure(chunks: usize) -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let docs = folder.path().join("docs");
    std::fs::create_dir(&docs)?;
    let mut random = Random(42);
    let (files, mut bytes) = (chunks.div_ceil(CHUNKS_IN_FILE), 0);
    for at in 0..files {
        let text = text(&mut random);
        bytes += text.len();
        let part = docs.join(format!("part{}", at / 1000));
        std::fs::create_dir_all(&part)?;
        std::fs::write(part.join(format!("file{at}.txt")), text)?;
    }
    let path = folder.path().join("speed.index");
    let index = Index::open(&path)?;
    let began = Instant::now();
    let report = index.add(&docs).run()?;
    let taken = began.elapsed().as_secs_f64();
    let megabytes = bytes as f64 / 1e6;
    println!(
        "{} chunks of {files} files, {megabytes:.1} MB: indexed in {taken:.1} s, {:.0} files/s, {:.1} MB/s; the index has {:.1} MB",
        report.chunks,
        files as f64 / taken,
        megabytes / taken,
        std::fs::metadata(&path)?.len() as f64 / 1e6,
    );
    let began = Instant::now();
    index.add(&docs).run()?;
    println!("  nothing changed: looked at in {:.2} s", began.elapsed().as_secs_f64());
    drop(index);

    let began = Instant::now();
    let index = Index::open(&path)?;
    let opened = began.elapsed();
    let began = Instant::now();
    index.search("ba").run()?;
    println!("  opened in {opened:.1?}, first search after {:.1?}", began.elapsed());
    for (name, signals) in [("words", Signals::Words), ("vectors", Signals::Vectors), ("all", Signals::All)] {
        let mut random = Random(7);
        let mut times: Vec<Duration> = Vec::with_capacity(QUESTIONS);
        for _ in 0..QUESTIONS {
            let question: Vec<String> = (0..5).map(|_| word(random.rank())).collect();
            let began = Instant::now();
            index.search(question.join(" ")).signals(signals).run()?;
            times.push(began.elapsed());
        }
        times.sort();
        let whole: Duration = times.iter().sum();
        println!(
            "  {name:<8} {:>7.0} questions/s, half within {:.2?}, 95 of 100 within {:.2?}",
            QUESTIONS as f64 / whole.as_secs_f64(),
            times[QUESTIONS / 2],
            times[QUESTIONS * 95 / 100],
        );
    }
    println!("  memory: {:.1} MB held by the index; {}", index.memory() as f64 / 1e6, resident());
    Ok(())
}

fn text(random: &mut Random) -> String {
    let mut text = String::new();
    for at in 0..WORDS_IN_CHUNK * CHUNKS_IN_FILE {
        text.push_str(&word(random.rank()));
        text.push_str(if at % 12 == 11 { ".\n" } else { " " });
        if at % 60 == 59 {
            text.push('\n');
        }
    }
    text
}

/// A word by its rank: short ones come first.
fn word(mut rank: usize) -> String {
    const SOUNDS: [&str; 20] = [
        "ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va", "we",
        "xi", "yo", "zu",
    ];
    let mut word = String::new();
    loop {
        word.push_str(SOUNDS[rank % 20]);
        rank /= 20;
        if rank == 0 {
            return word;
        }
        rank -= 1;
    }
}

struct Random(u64);

impl Random {
    /// A rank, the first ones far more often than the last.
    fn rank(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (self.0 >> 11) as f64 / (1u64 << 53) as f64;
        ((WORDS as f64).powf(part) - 1.0) as usize
    }
}

/// What the system says that the process has in memory, where it says so.
fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines = status.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("VmHWM"));
    let words: Vec<String> =
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    if words.is_empty() {
        "the system does not say what the process has".to_owned()
    } else {
        words.join(", ")
    }
}
