//! File search: how fast an index is made and searched, and what it holds in memory.
//!
//! The text is a folder of yours, or made up: words with the frequencies that words have (Zipf's law), in files of
//! about ten chunks, each about one of many subjects, from a fixed seed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass_search::{Index, Signals};

use crate::durable::Scratch;
use crate::measure::{Clock, peak_rss_kb, rss_kb};

const WORDS: usize = 60_000;
/// Words of one subject, which its files have more often than others.
const SUBJECT: usize = 40;
const SUBJECTS: usize = 2000;
const WORDS_IN_FILE: usize = 2250;
const CHUNKS_IN_FILE: usize = 10;
const QUESTIONS: usize = 200;

/// Measures one index after another: of so many chunks, or of a folder.
pub fn run(what: &[&str]) -> Result<(), String> {
    if what.is_empty() {
        return Err("say how many chunks, or which folder".to_owned());
    }
    for what in what {
        let done = match what.parse() {
            Ok(chunks) => made_up(chunks),
            Err(_) => folder(Path::new(what)),
        };
        done.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn made_up(chunks: usize) -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let docs = scratch.path().join("docs");
    let mut random = Random(42);
    for at in 0..chunks.div_ceil(CHUNKS_IN_FILE) {
        let part = docs.join(format!("part{}", at / 1000));
        std::fs::create_dir_all(&part)?;
        std::fs::write(part.join(format!("file{at}.txt")), text(&mut random))?;
    }
    let mut random = Random(7);
    let questions = (0..QUESTIONS).map(|_| {
        let subject = random.below(SUBJECTS);
        (0..5).map(|_| random.word(subject)).collect::<Vec<_>>().join(" ")
    });
    measure(&scratch, &docs, &questions.collect::<Vec<_>>())
}

fn folder(docs: &Path) -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    // Questions are pieces of what is there.
    let mut questions = Vec::new();
    let index = Index::options().without_vectors().open(scratch.path().join("questions.index"))?;
    index.add(docs).run()?;
    for word in ["the", "a", "of", "and", "to", "in", "is", "for", "with", "not"] {
        for hit in index.search(word).signals(Signals::Words).max_results(50).run()?.hits {
            let words: Vec<&str> = hit.text.split_whitespace().skip(7).take(6).collect();
            questions.push(words.join(" "));
        }
    }
    questions.truncate(QUESTIONS);
    measure(&scratch, docs, &questions)
}

fn measure(scratch: &Scratch, docs: &Path, questions: &[String]) -> Result<(), Box<dyn Error>> {
    let path: PathBuf = scratch.path().join("speed.index");
    let before = rss_kb();
    let index = Index::open(&path)?;
    let clock = Clock::start();
    let report = index.add(docs).run()?;
    let took = clock.stop();
    let megabytes = report.bytes as f64 / 1e6;
    println!(
        "{} chunks of {} files, {megabytes:.1} MB: {:.0} files/s, {:.1} MB/s ({:.1} s by the wall, {:.1} s of the processor); \
         the index has {:.1} MB",
        report.chunks,
        report.added,
        report.added as f64 / took.wall,
        megabytes / took.wall,
        took.wall,
        took.cpu,
        std::fs::metadata(&path)?.len() as f64 / 1e6,
    );
    let clock = Clock::start();
    index.add(docs).run()?;
    println!("  nothing changed: looked at in {:.2} s", clock.stop().wall);
    println!("  memory while indexing: {:.1} MB at its highest, {:.1} before", mb(peak_rss_kb()), mb(before));
    drop(index);

    let began = Instant::now();
    let index = Index::open(&path)?;
    let opened = began.elapsed();
    let began = Instant::now();
    index.search(questions.first().map_or("x", String::as_str)).run()?;
    println!("  opened in {opened:.1?}, first search after {:.1?}", began.elapsed());
    for (name, signals) in [("words", Signals::Words), ("vectors", Signals::Vectors), ("all", Signals::All)] {
        let mut times: Vec<Duration> = Vec::with_capacity(questions.len());
        let clock = Clock::start();
        for question in questions {
            let began = Instant::now();
            index.search(question.as_str()).signals(signals).run()?;
            times.push(began.elapsed());
        }
        let took = clock.stop();
        times.sort();
        let at = |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default();
        println!(
            "  {name:<8} {:>7.0} questions/s, half within {:.2?}, 95 of 100 within {:.2?}; {:.2} ms of the processor each",
            times.len() as f64 / took.wall,
            at(50),
            at(95),
            took.cpu * 1e3 / times.len().max(1) as f64,
        );
    }
    println!(
        "  memory: {:.1} MB held by the index; the process has {:.1} MB",
        index.memory() as f64 / 1e6,
        mb(rss_kb())
    );
    Ok(())
}

fn mb(kb: u64) -> f64 {
    kb as f64 / 1e3
}

fn text(random: &mut Random) -> String {
    let subject = random.below(SUBJECTS);
    let mut text = String::new();
    for at in 0..WORDS_IN_FILE {
        text.push_str(&random.word(subject));
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
    fn part(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, most: usize) -> usize {
        (self.part() * most as f64) as usize
    }

    /// A word of a subject, one time in four; or any, the first ones far more often than the last.
    fn word(&mut self, subject: usize) -> String {
        if self.part() < 0.25 {
            return word(500 + (subject * 29 + self.below(SUBJECT)) % (WORDS - 500));
        }
        word(((WORDS as f64).powf(self.part()) - 1.0) as usize)
    }
}
