//! Retrieval quality: on a public test collection if it is available, and on small built-in checks.

use std::io::Write;
use std::path::PathBuf;

use windlass_search::{DocumentFormat, Index, IndexDocument};

#[path = "../examples/retrieval_quality/measure.rs"]
mod measure_quality;

use measure_quality::{compare_paired, mean};

/// Measures BM25, vectors and hybrid search on Cranfield (1,400 abstracts, 225 queries). Set WINDLASS_CRANFIELD
/// to a folder in the BEIR layout.
#[test]
fn fused_is_better_than_words_alone_on_cranfield() {
    let Some(folder) = std::env::var_os("WINDLASS_CRANFIELD").map(PathBuf::from) else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: quality on Cranfield, because WINDLASS_CRANFIELD does not say where it is"
        );
        return;
    };
    let [words, vectors, fused] =
        measure_quality::measure_quality(&folder, Index::options()).expect("measures");
    let [words, vectors, fused] =
        [words, vectors, fused].map(|one| [mean(&one.ndcg_at_10), mean(&one.recall_at_100)]);
    println!("words {words:?}, vectors {vectors:?}, fused {fused:?}");
    assert!(fused[0] > 0.38, "{fused:?}");
    assert!(fused[0] >= words[0] && fused[1] >= words[1], "{fused:?} {words:?}");
    assert!(fused[0] >= vectors[0], "{fused:?} {vectors:?}");
}

/// Compares fused search with words alone on sets that `python/make_sets.py` makes from documentation packages. The
/// packages of this test never influence a parameter. Set WINDLASS_RETRIEVAL_SETS to a folder of sets in the BEIR layout.
#[test]
fn fused_is_never_significantly_below_words() {
    let Some(folder) = std::env::var_os("WINDLASS_RETRIEVAL_SETS").map(PathBuf::from) else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: fused search against words alone on documentation packages, because WINDLASS_RETRIEVAL_SETS \
             does not say where the sets are"
        );
        return;
    };
    let mut sets: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("lists")
        .map(|entry| entry.expect("reads").path())
        .filter(|path| path.join("corpus.jsonl").is_file())
        .collect();
    sets.sort();
    assert!(!sets.is_empty(), "the folder has no sets");
    let (mut failed, mut is_compared) = (Vec::new(), false);
    for set in sets {
        let [words, _, fused] = measure_quality::measure_quality(&set, Index::options()).expect("measures");
        let by = compare_paired(&fused.ndcg_at_10, &words.ndcg_at_10);
        let line = format!(
            "{}: words {:.3}, fused {:.3}, difference {:+.3} [{:+.3}, {:+.3}]",
            set.file_name().unwrap_or_default().to_string_lossy(),
            mean(&words.ndcg_at_10),
            mean(&fused.ndcg_at_10),
            by.mean,
            by.lower,
            by.upper
        );
        println!("{line}");
        is_compared |= fused.ndcg_at_10 != words.ndcg_at_10;
        if by.upper < 0.0 {
            failed.push(line);
        }
    }
    // Questions without vectors of their language are ranked by words alone.
    assert!(is_compared, "no set has questions for which fused search differs from words");
    assert!(failed.is_empty(), "below words with 95 % confidence: {failed:#?}");
}

#[test]
fn small_checks() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("small.index")).expect("opens");
    let mut documents = vec![
        IndexDocument::new("car.txt", "The automobile would not start because its battery was dead."),
        IndexDocument::new("cook.txt", "Simmer the onions slowly in butter until they are golden."),
        IndexDocument::new("doctor.txt", "The physician prescribed antibiotics for the infection."),
        IndexDocument::new("error.rs", "fn open() -> Result<(), E0499> { retry_with_backoff(MAX_ATTEMPTS) }"),
        IndexDocument::new("code.py", "def parseConfigFile(path):\n    return yaml.safe_load(open(path))\n"),
        IndexDocument::new("part.txt", "Order part number XJ-2291-B from the warehouse."),
    ];
    // Unrelated documents as distractors.
    documents.extend((0..200).map(|at| {
        IndexDocument::new(
            format!("filler{at}.txt"),
            format!("Minutes of meeting {at}: budget, rooms and the next date."),
        )
        .format(DocumentFormat::Text)
    }));
    index.put_documents(documents).expect("put");
    for (question, name) in [
        ("car trouble with the battery", "car.txt"),
        ("vehicle engine does not start", "car.txt"),
        ("medicine against an infection by a doctor", "doctor.txt"),
        ("recipe for frying onions", "cook.txt"),
        ("E0499", "error.rs"),
        ("MAX_ATTEMPTS", "error.rs"),
        ("retry backoff", "error.rs"),
        ("parse config file", "code.py"),
        ("parseConfigFile", "code.py"),
        ("XJ-2291-B", "part.txt"),
        ("antibiotcs infecton", "doctor.txt"),
    ] {
        let found = index.search(question).run().expect("searches");
        assert_eq!(
            found.hits.first().map(|hit| hit.file_name.as_str()),
            Some(name),
            "{question}: {:?}",
            found.hits
        );
    }
}
