//! How well an index finds: on a public test collection where it is at hand, and on small checks everywhere.

use std::io::Write;
use std::path::PathBuf;

use windlass_search::{Document, Index, Kind};

#[path = "../examples/retrieval_quality/measure.rs"]
mod measure;

/// Words, vectors and both on Cranfield (1,400 abstracts, 225 questions). Set WINDLASS_CRANFIELD to a folder in BEIR's
/// layout.
#[test]
fn fused_is_better_than_words_alone_on_cranfield() {
    let Some(folder) = std::env::var_os("WINDLASS_CRANFIELD").map(PathBuf::from) else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: quality on Cranfield, because WINDLASS_CRANFIELD does not say where it is"
        );
        return;
    };
    let [words, vectors, fused] = measure::measure(&folder, Index::options()).expect("measures");
    println!("words {words:?}, vectors {vectors:?}, fused {fused:?}");
    assert!(fused.gain > 0.38, "{fused:?}");
    assert!(fused.gain >= words.gain && fused.recall >= words.recall, "{fused:?} {words:?}");
    assert!(fused.gain >= vectors.gain, "{fused:?} {vectors:?}");
}

#[test]
fn small_checks() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("small.index")).expect("opens");
    let mut documents = vec![
        Document::new("car.txt", "The automobile would not start because its battery was dead."),
        Document::new("cook.txt", "Simmer the onions slowly in butter until they are golden."),
        Document::new("doctor.txt", "The physician prescribed antibiotics for the infection."),
        Document::new("error.rs", "fn open() -> Result<(), E0499> { retry_with_backoff(MAX_ATTEMPTS) }"),
        Document::new("code.py", "def parseConfigFile(path):\n    return yaml.safe_load(open(path))\n"),
        Document::new("part.txt", "Order part number XJ-2291-B from the warehouse."),
    ];
    // Company that has nothing to do with any of it.
    documents.extend((0..200).map(|at| {
        Document::new(
            format!("filler{at}.txt"),
            format!("Minutes of meeting {at}: budget, rooms and the next date."),
        )
        .kind(Kind::Text)
    }));
    index.put(documents).expect("put");
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
            found.hits.first().map(|hit| hit.name.as_str()),
            Some(name),
            "{question}: {:?}",
            found.hits
        );
    }
}
