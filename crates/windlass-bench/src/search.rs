//! File search: the speed of indexing and searching, and the memory of an index.
//!
//! The text is a given folder or synthetic: words with Zipf-distributed frequencies in files of about ten chunks,
//! each file about one of many subjects, from a fixed seed.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use windlass_search::{Index, SearchSignals};

use crate::durable::ScratchDir;
use crate::measure::{BenchClock, peak_rss_kb, rss_kb};

const VOCABULARY_SIZE: usize = 60_000;
/// Number of words that are frequent in the files of one subject.
const WORDS_PER_SUBJECT: usize = 40;
const SUBJECT_COUNT: usize = 2000;
const WORDS_PER_FILE: usize = 2250;
const CHUNKS_PER_FILE: usize = 10;
const QUERY_COUNT: usize = 200;

/// Measures one index for each argument: a number of chunks of synthetic text, or a folder.
pub fn run_search_bench(what: &[&str]) -> Result<(), String> {
    if what.is_empty() {
        return Err("`search` needs a number of chunks or a folder".to_owned());
    }
    for what in what {
        let done = match what.parse() {
            Ok(chunks) => measure_synthetic(chunks),
            Err(_) => measure_folder(Path::new(what)),
        };
        done.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn measure_synthetic(chunks: usize) -> Result<(), Box<dyn Error>> {
    let scratch = ScratchDir::new()?;
    let docs = scratch.path().join("docs");
    let mut random = CorpusRandom(42);
    for at in 0..chunks.div_ceil(CHUNKS_PER_FILE) {
        let part = docs.join(format!("part{}", at / 1000));
        std::fs::create_dir_all(&part)?;
        std::fs::write(part.join(format!("file{at}.txt")), synthetic_text(&mut random))?;
    }
    let mut random = CorpusRandom(7);
    let questions = (0..QUERY_COUNT).map(|_| {
        let subject = random.next_below(SUBJECT_COUNT);
        (0..5).map(|_| random.next_word(subject)).collect::<Vec<_>>().join(" ")
    });
    measure_index(&scratch, &docs, &questions.collect::<Vec<_>>())
}

fn measure_folder(docs: &Path) -> Result<(), Box<dyn Error>> {
    let scratch = ScratchDir::new()?;
    // The queries are excerpts of the indexed text.
    let mut questions = Vec::new();
    let index = Index::options().without_vectors().open(scratch.path().join("questions.index"))?;
    index.add_path(docs).run()?;
    for word in ["the", "a", "of", "and", "to", "in", "is", "for", "with", "not"] {
        for hit in index.search(word).signals(SearchSignals::Bm25Only).max_results(50).run()?.hits {
            let words: Vec<&str> = hit.text.split_whitespace().skip(7).take(6).collect();
            questions.push(words.join(" "));
        }
    }
    questions.truncate(QUERY_COUNT);
    measure_index(&scratch, docs, &questions)
}

fn measure_index(scratch: &ScratchDir, docs: &Path, questions: &[String]) -> Result<(), Box<dyn Error>> {
    let path: PathBuf = scratch.path().join("speed.index");
    let before = rss_kb();
    let index = Index::open(&path)?;
    let clock = BenchClock::start();
    let report = index.add_path(docs).run()?;
    let took = clock.stop();
    let megabytes = report.bytes_read as f64 / 1e6;
    println!(
        "{} chunks of {} files, {megabytes:.1} MB: {:.0} files/s, {:.1} MB/s ({:.1} s by the wall, {:.1} s of the processor); \
         the index has {:.1} MB",
        report.chunks_written,
        report.added,
        report.added as f64 / took.wall,
        megabytes / took.wall,
        took.wall,
        took.cpu,
        std::fs::metadata(&path)?.len() as f64 / 1e6,
    );
    let clock = BenchClock::start();
    index.add_path(docs).run()?;
    println!("  nothing changed: looked at in {:.2} s", clock.stop().wall);
    println!(
        "  memory while indexing: {:.1} MB at its highest, {:.1} before",
        kb_to_mb(peak_rss_kb()),
        kb_to_mb(before)
    );
    drop(index);

    let began = Instant::now();
    let index = Index::open(&path)?;
    let opened = began.elapsed();
    let began = Instant::now();
    index.search(questions.first().map_or("x", String::as_str)).run()?;
    println!("  opened in {opened:.1?}, first search after {:.1?}", began.elapsed());
    for (name, signals) in [
        ("words", SearchSignals::Bm25Only),
        ("vectors", SearchSignals::VectorsOnly),
        ("all", SearchSignals::Hybrid),
    ] {
        let mut times: Vec<Duration> = Vec::with_capacity(questions.len());
        let clock = BenchClock::start();
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
        index.memory_bytes() as f64 / 1e6,
        kb_to_mb(rss_kb())
    );
    Ok(())
}

fn kb_to_mb(kb: u64) -> f64 {
    kb as f64 / 1e3
}

fn synthetic_text(random: &mut CorpusRandom) -> String {
    let subject = random.next_below(SUBJECT_COUNT);
    let mut text = String::new();
    for at in 0..WORDS_PER_FILE {
        text.push_str(&random.next_word(subject));
        text.push_str(if at % 12 == 11 { ".\n" } else { " " });
        if at % 60 == 59 {
            text.push('\n');
        }
    }
    text
}

/// Returns the word with this frequency rank; frequent words are short.
fn word_of_rank(mut rank: usize) -> String {
    const SYLLABLES: [&str; 20] = [
        "ba", "ce", "di", "fo", "gu", "ha", "je", "ki", "lo", "mu", "na", "pe", "ri", "so", "tu", "va", "we",
        "xi", "yo", "zu",
    ];
    let mut word = String::new();
    loop {
        word.push_str(SYLLABLES[rank % 20]);
        rank /= 20;
        if rank == 0 {
            return word;
        }
        rank -= 1;
    }
}

struct CorpusRandom(u64);

impl CorpusRandom {
    fn next_fraction(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn next_below(&mut self, most: usize) -> usize {
        (self.next_fraction() * most as f64) as usize
    }

    /// Returns a word of the subject with probability 1/4, otherwise a Zipf-distributed word.
    fn next_word(&mut self, subject: usize) -> String {
        if self.next_fraction() < 0.25 {
            return word_of_rank(
                500 + (subject * 29 + self.next_below(WORDS_PER_SUBJECT)) % (VOCABULARY_SIZE - 500),
            );
        }
        word_of_rank(((VOCABULARY_SIZE as f64).powf(self.next_fraction()) - 1.0) as usize)
    }
}
