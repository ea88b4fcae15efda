//! Adding, finding, changing and removing files; unreadable files are reported and the rest is indexed.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::fs;
use std::path::Path;

use windlass_search::{
    AttributeFilter, ChunkingOptions, DocumentFormat, HybridWeights, Index, IndexDocument, IndexingLimits,
    RankingOptions, SearchError, SearchSignals,
};

fn open_index(folder: &Path) -> Index {
    Index::open(folder.join("test.index")).expect("opens")
}

fn search_names(index: &Index, question: &str) -> Vec<String> {
    index.search(question).run().expect("searches").hits.into_iter().map(|hit| hit.file_name).collect()
}

#[test]
fn files_of_a_folder_are_found_with_their_place() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir_all(docs.join("deep/er")).expect("made");
    fs::write(
        docs.join("pumps.md"),
        "# Pumps\n\nIntro.\n\n## Winter\n\nBleed the pump before frost comes.\n",
    )
    .expect("written");
    fs::write(docs.join("page.html"), "<html><head><title>Valves</title><style>p{}</style></head><body><h1>Valves</h1>\n<p>Grease &amp; turn the brass valve.</p></body></html>")
        .expect("written");
    fs::write(
        docs.join("deep/er/engine.rs"),
        "fn start_engine() {\n    ignite();\n}\n\nfn parseHttpHeader() {}\n",
    )
    .expect("written");
    let index = open_index(folder.path());
    let mut told = Vec::new();
    let report = index
        .add_path(&docs)
        .progress(|progress| told.push((progress.files_done, progress.total_files)))
        .run()
        .expect("runs");
    assert_eq!((report.added, report.problems.len()), (3, 0), "{report}");
    assert_eq!(told, [(1, 3), (2, 3), (3, 3)]);

    let found = index.search("frost pump").run().expect("searches");
    let hit = &found.hits[0];
    assert_eq!(hit.file_name, "pumps.md");
    assert!(hit.text.contains("Bleed the pump"), "{hit:?}");
    assert!(
        hit.location.first_line >= 1 && hit.location.last_line >= hit.location.first_line,
        "{:?}",
        hit.location
    );
    assert!(hit.score > 0.5 && hit.score <= 1.0, "{}", hit.score);

    assert_eq!(search_names(&index, "greasing brass valves")[0], "page.html");
    assert_eq!(search_names(&index, "start_engine")[0], "engine.rs");
    assert_eq!(search_names(&index, "http header")[0], "engine.rs", "parts of an identifier are words");
    assert_eq!(search_names(&index, "parseHttpHeader")[0], "engine.rs");
    assert_eq!(search_names(&index, "pmup forst")[0], "pumps.md", "words that are nearly right");
}

#[test]
fn only_what_changed_is_read_again_and_what_is_gone_is_taken_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).expect("made");
    for name in ["one", "two", "three"] {
        fs::write(docs.join(format!("{name}.txt")), format!("the {name} lantern glows")).expect("written");
    }
    let index = open_index(folder.path());
    assert_eq!(index.add_path(&docs).run().expect("runs").added, 3);
    let again = index.refresh().expect("runs");
    assert_eq!((again.added, again.changed, again.unchanged, again.removed), (0, 0, 3, 0));

    fs::write(docs.join("two.txt"), "a zeppelin came instead").expect("written");
    fs::remove_file(docs.join("three.txt")).expect("removed");
    let later = index.refresh().expect("runs");
    assert_eq!((later.added, later.changed, later.unchanged, later.removed), (0, 1, 1, 1));
    let words = |question: &str| {
        let found = index.search(question).signals(SearchSignals::Bm25Only).run().expect("searches");
        found.hits.into_iter().map(|hit| hit.file_name).collect::<Vec<_>>()
    };
    assert_eq!(words("zeppelin"), ["two.txt"]);
    assert_eq!(words("lantern"), ["one.txt"], "the old text of two and all of three are gone");

    // A change of attributes alone does not index a file again, and filters see the new attributes.
    let told = index.add_path(&docs).attribute("year", 2024).run().expect("runs");
    assert_eq!((told.changed, told.unchanged, told.chunks_written), (0, 2, 0));
    let found = index.search("lantern").filter(AttributeFilter::eq("year", 2024)).run().expect("searches");
    assert_eq!(found.hits[0].file_name, "one.txt");

    assert!(matches!(index.add_path(folder.path().join("never")).run(), Err(SearchError::PathAccess { .. })));
}

#[test]
fn filters_are_looked_at_before_ranking() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    let documents = (0..300).map(|at| {
        let text = if at < 290 {
            "harbour harbour harbour harbour"
        } else {
            "a harbour among many other things to see"
        };
        let team = if at < 290 { "many" } else { "few" };
        IndexDocument::new(format!("d{at}.txt"), text).attribute("team", team).attribute("at", at)
    });
    index.put_documents(documents).expect("put");
    let few = index
        .search("harbour")
        .filter(AttributeFilter::eq("team", "few"))
        .max_results(50)
        .run()
        .expect("searches");
    assert_eq!(few.hits.len(), 10, "though 290 others rank higher");
    let some = AttributeFilter::and([
        AttributeFilter::gte("at", 10),
        AttributeFilter::lt("at", 13),
        AttributeFilter::none_of("at", [11]),
    ]);
    let mut names: Vec<String> = index
        .search("harbour")
        .filter(some)
        .run()
        .expect("searches")
        .hits
        .into_iter()
        .map(|hit| hit.file_name)
        .collect();
    names.sort();
    assert_eq!(names, ["d10.txt", "d12.txt"]);
}

#[test]
fn bad_files_are_reported_and_the_rest_is_indexed() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).expect("made");
    fs::write(docs.join("good.txt"), "the quiet heron").expect("written");
    fs::write(docs.join("latin.txt"), b"caf\xe9 au lait for the heron").expect("written");
    fs::write(docs.join("binary.txt"), [0u8, 1, 2, 3, 255, 0, 7]).expect("written");
    fs::write(docs.join("archive.zip"), b"PK\x03\x04\x14\x00\x00\x00\x08\x00rest").expect("written");
    fs::write(docs.join("empty.md"), "  \n").expect("written");
    fs::write(docs.join("line.txt"), "heron ".repeat(100_000)).expect("written");
    fs::write(docs.join("word.txt"), "x".repeat(500_000)).expect("written");
    let log = fs::File::create(docs.join("huge.log")).expect("made");
    log.set_len(1 << 30).expect("a gigabyte that takes no room");
    #[cfg(unix)]
    std::os::unix::fs::symlink(&docs, docs.join("loop")).expect("linked");
    let index = open_index(folder.path());
    let report = index.add_path(&docs).run().expect("runs");
    assert_eq!(report.added, 4, "{report}");
    let why = |name: &str| {
        let found = report.problems.iter().find(|problem| problem.path.ends_with(name));
        found.map(|problem| problem.reason.clone()).unwrap_or_default()
    };
    assert!(why("huge.log").contains("1024 MB"), "{report}");
    assert!(why("binary.txt").contains("not text"), "{report}");
    assert!(why("archive.zip").contains("not text"), "{report}");
    assert!(why("empty.md").contains("no text"), "{report}");
    #[cfg(unix)]
    assert!(why("loop").contains("link"), "{report}");
    assert_eq!(search_names(&index, "cafe heron")[0], "latin.txt");
    let longest = index.search("heron").run().expect("searches").hits.iter().map(|hit| hit.text.len()).max();
    assert!(longest.is_some_and(|longest| longest < 4000), "a line of any length is cut: {longest:?}");

    let again = index.refresh().expect("runs");
    assert_eq!((again.unchanged, again.problems.len()), (4, report.problems.len()), "told again: {again}");
}

#[test]
fn limits_cut_what_is_too_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = IndexingLimits { max_text_bytes: 1000, ..IndexingLimits::default() };
    let index = Index::options().limits(limits).open(folder.path().join("x.index")).expect("opens");
    let text = format!("beginning {} ending", "middle ".repeat(1000));
    let report = index.put_documents([IndexDocument::new("long.txt", text)]).expect("put");
    assert!(report.problems[0].reason.contains("first 1000 bytes"), "{report}");
    assert_eq!(
        index.search("ending").signals(SearchSignals::Bm25Only).run().expect("searches").hits.len(),
        0
    );
}

#[test]
fn options_are_checked_and_obeyed() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    index
        .put_documents([
            IndexDocument::new("a.txt", "the boiler needs descaling every spring"),
            IndexDocument::new("b.txt", "an unrelated tale of dragons"),
        ])
        .expect("put");
    assert!(index.search("x").max_results(51).run().is_err());
    assert!(index.search("x").score_threshold(1.5).run().is_err());
    let strict = index.search("boiler descaling").score_threshold(0.8).run().expect("searches");
    assert_eq!(strict.hits.len(), 1);
    let nothing =
        index.search("quantum chromodynamics of gluons").score_threshold(0.8).run().expect("searches");
    assert_eq!(nothing.hits.len(), 0, "the best of nothing is not good: {nothing:?}");
    let words_only = RankingOptions {
        ranker: Some("none".into()),
        hybrid_search: Some(HybridWeights { embedding_weight: 0.0, text_weight: 1.0 }),
        ..RankingOptions::default()
    };
    let found = index.search("dragons").ranking(words_only).run().expect("searches");
    assert_eq!(found.hits.len(), 1);
    let both = index.search("boiler").add_query("dragons").run().expect("searches");
    assert_eq!(both.hits.len(), 2);
    let small = ChunkingOptions { max_tokens: 20, overlap_tokens: 0 };
    assert!(Index::options().chunking(small).open(folder.path().join("y.index")).is_err());
    assert_eq!(index.search("").run().expect("searches").hits.len(), 0);
    assert_eq!(
        index.search("the of and").signals(SearchSignals::Bm25Only).run().expect("searches").hits.len(),
        2
    );
}

#[test]
fn other_scripts_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    let texts = [
        ("de.txt", "Die Müllabfuhr kommt am Freitag in die Straße"),
        ("ja.txt", "東京タワーは港区にあります"),
        ("ru.txt", "Кот сидит на окне"),
        ("ar.txt", "ذهب الوَلَدُ إلى المدرسة"),
    ];
    index
        .put_documents(texts.map(|(name, text)| IndexDocument::new(name, text).format(DocumentFormat::Text)))
        .expect("put");
    for (question, name) in
        [("mullabfuhr strasse", "de.txt"), ("東京", "ja.txt"), ("кот на окне", "ru.txt"), ("الولد", "ar.txt")]
    {
        assert_eq!(search_names(&index, question)[0], name, "{question}");
    }
}

#[test]
fn files_of_others_are_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.db");
    rusqlite::Connection::open(&path).expect("opens").execute_batch("CREATE TABLE mine (x)").expect("made");
    let before = fs::read(&path).expect("read");
    assert!(matches!(Index::open(&path), Err(SearchError::NotAnIndex { .. })));
    assert_eq!(fs::read(&path).expect("read"), before);
    fs::write(folder.path().join("text.index"), "not a database at all, but a text that is long enough")
        .expect("written");
    assert!(matches!(Index::open(folder.path().join("text.index")), Err(SearchError::Sqlite { .. })));

    let index = open_index(folder.path());
    drop(index);
    struct DifferentEmbedder;
    impl windlass_search::Embedder for DifferentEmbedder {
        fn name(&self) -> &str {
            "other"
        }
        fn dimensions(&self) -> usize {
            2
        }
        fn embed(
            &self,
            texts: &[&str],
            _: windlass_search::EmbeddingPurpose,
        ) -> Result<Vec<Vec<f32>>, windlass_search::EmbedError> {
            Ok(texts.iter().map(|text| vec![text.len() as f32, 1.0]).collect())
        }
    }
    let other = Index::options().embedder(DifferentEmbedder).open(folder.path().join("test.index"));
    assert!(matches!(other, Err(SearchError::EmbedderMismatch { .. })));
    let own =
        Index::options().embedder(DifferentEmbedder).open(folder.path().join("own.index")).expect("opens");
    own.put_documents([IndexDocument::new("a.txt", "something")]).expect("put");
    assert_eq!(own.search("nothing alike").run().expect("searches").hits.len(), 1, "its vectors are used");
}

#[test]
fn chunks_follow_structure_and_overlap() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = |name: &str, overlap_tokens| {
        let chunking = ChunkingOptions { max_tokens: 100, overlap_tokens };
        Index::options().chunking(chunking).open(folder.path().join(name)).expect("opens")
    };
    // Each line has ten words, one of them unique.
    let text: String =
        (0..60).map(|at| format!("unique{at} and nine more words that fill a line\n")).collect();
    let found = |index: &Index, at: usize| {
        let found =
            index.search(format!("unique{at}")).signals(SearchSignals::Bm25Only).max_results(50).run();
        found.expect("searches").hits
    };
    let (apart, lapped) = (open("apart.index", 0), open("lapped.index", 50));
    for index in [&apart, &lapped] {
        index.put_documents([IndexDocument::new("long.txt", text.as_str())]).expect("put");
    }
    let times = |index: &Index| (0..60).map(|at| found(index, at).len()).collect::<Vec<_>>();
    assert!(times(&apart).iter().all(|times| *times == 1), "every line is in one chunk: {:?}", times(&apart));
    let lapped_times = times(&lapped);
    assert!(lapped_times.iter().all(|times| (1..=2).contains(times)), "{lapped_times:?}");
    let twice = lapped_times.iter().filter(|times| **times == 2).count();
    assert!((20..=50).contains(&twice), "about half of the lines are in two chunks: {lapped_times:?}");
    assert!(lapped.chunk_count().expect("counts") > apart.chunk_count().expect("counts"));

    let section =
        |name: &str| format!("# {name}\n\n{}\n\n", format!("about {name} in so many words. ").repeat(12));
    apart.put_documents([IndexDocument::new("two.md", section("Pumps") + &section("Valves"))]).expect("put");
    let hits = apart.search("pumps").signals(SearchSignals::Bm25Only).run().expect("searches").hits;
    assert_eq!(hits[0].location.heading, "Pumps");
    assert!(hits.iter().all(|hit| !hit.text.contains("Valves")), "a section begins a chunk: {hits:?}");
}

#[test]
fn every_filter_says_yes_and_no() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    index
        .put_documents([
            IndexDocument::new("a.txt", "harbour").attribute("n", 1).attribute("s", "x").attribute("b", true),
            IndexDocument::new("b.txt", "harbour")
                .attribute("n", 2)
                .attribute("s", "y")
                .attribute("b", false),
            IndexDocument::new("c.txt", "harbour"),
        ])
        .expect("put");
    let both = || [AttributeFilter::eq("n", 1), AttributeFilter::eq("s", "y")];
    for (filter, expected) in [
        (AttributeFilter::eq("n", 1), "a"),
        (AttributeFilter::eq("n", "1"), ""),
        (AttributeFilter::eq("b", false), "b"),
        (AttributeFilter::ne("n", 1), "bc"),
        (AttributeFilter::gt("n", 1), "b"),
        (AttributeFilter::gte("n", 1), "ab"),
        (AttributeFilter::lt("n", 2), "a"),
        (AttributeFilter::lte("n", 2), "ab"),
        (AttributeFilter::gt("s", "x"), "b"),
        (AttributeFilter::one_of("s", ["x", "z"]), "a"),
        (AttributeFilter::none_of("s", ["x", "z"]), "bc"),
        (AttributeFilter::and(both()), ""),
        (AttributeFilter::or(both()), "ab"),
        (AttributeFilter::and([AttributeFilter::or(both()), AttributeFilter::ne("b", true)]), "b"),
    ] {
        // The filter must survive a round trip through the JSON format of the hosted tool.
        let text = serde_json::to_string(&filter).expect("writes");
        let read: AttributeFilter = serde_json::from_str(&text).expect("reads");
        for filter in [filter, read] {
            let found = index.search("harbour").filter(filter).run().expect("searches");
            let mut names: Vec<String> =
                found.hits.into_iter().map(|hit| hit.file_name.replace(".txt", "")).collect();
            names.sort();
            assert_eq!(names.concat(), expected, "{text}");
        }
    }
    assert!(serde_json::from_str::<AttributeFilter>(r#"{"type":"like","key":"n","value":1}"#).is_err());
}

/// A disk that is not mounted looks the same as a folder that was deleted.
#[test]
fn a_missing_root_keeps_its_files_until_somebody_says_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let (docs, more) = (folder.path().join("docs"), folder.path().join("more"));
    for (root, text) in [(&docs, "the quiet heron"), (&more, "the loud crow")] {
        fs::create_dir(root).expect("made");
        fs::write(root.join("bird.txt"), text).expect("written");
    }
    let index = open_index(folder.path());
    for root in [&docs, &more] {
        index.add_path(root).run().expect("runs");
    }
    fs::remove_dir_all(&docs).expect("removed");
    fs::write(more.join("owl.txt"), "the wise owl").expect("written");
    let found = |question: &str| {
        index.search(question).signals(SearchSignals::Bm25Only).run().expect("searches").hits.len()
    };
    for refused in [index.refresh(), index.add_path(&docs).run()] {
        match refused {
            Err(error @ SearchError::MissingRoot { file_count: 1, .. }) => {
                assert!(error.to_string().contains("remove_if_missing"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((found("heron"), found("owl")), (1, 1), "its files stay, and the other root is updated");
    assert_eq!(index.add_path(&docs).remove_if_missing().run().expect("runs").removed, 1);
    assert_eq!(found("heron"), 0);
}

/// The mount point of a disk that is not mounted is an empty folder.
#[test]
fn an_empty_mount_point_keeps_its_files_until_somebody_says_otherwise() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir_all(docs.join("birds")).expect("made");
    let index = open_index(folder.path());
    assert_eq!(index.add_path(&docs).run().expect("an empty folder can be added").added, 0);
    index.refresh().expect("it was empty before");
    for name in ["birds/heron.txt", "crow.txt"] {
        fs::write(docs.join(name), "the quiet heron").expect("written");
    }
    index.add_path(&docs).run().expect("runs");
    fs::remove_file(docs.join("crow.txt")).expect("removed");
    assert_eq!(index.refresh().expect("one file is left").removed, 1);
    fs::remove_dir_all(docs.join("birds")).expect("removed");
    for refused in [index.refresh(), index.add_path(&docs).run()] {
        assert!(matches!(refused, Err(SearchError::MissingRoot { file_count: 1, .. })), "{refused:?}");
    }
    assert_eq!(index.search("heron").run().expect("searches").hits.len(), 1, "its files stay");
    assert_eq!(index.add_path(&docs).remove_if_missing().run().expect("runs").removed, 1);
    index.refresh().expect("somebody has said so");
}

/// A process that was stopped keeps its claims, for it may go on.
#[test]
fn a_file_that_a_stopped_process_has_claimed_is_waited_for_within_a_bound() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).expect("made");
    for name in ["heron.txt", "crow.txt"] {
        fs::write(docs.join(name), "a bird").expect("written");
    }
    let limits = IndexingLimits { max_claim_wait: std::time::Duration::ZERO, ..IndexingLimits::default() };
    let path = folder.path().join("test.index");
    let index = Index::options().limits(limits).open(&path).expect("opens");
    let claimed = docs.join("heron.txt").display().to_string();
    let db = rusqlite::Connection::open(&path).expect("opens");
    db.execute("INSERT INTO claims VALUES ('vs_default', ?1, 'stopped')", [&claimed]).expect("claimed");
    drop(db);
    let mut lock_path = path.into_os_string();
    lock_path.push("-worker-stopped");
    let lock = fs::File::create(&lock_path).expect("made");
    lock.lock().expect("locked");
    let report = index.add_path(&docs).run().expect("runs");
    assert_eq!((report.added, report.problems.len()), (1, 1), "{report}");
    assert_eq!(report.problems[0].path, docs.join("heron.txt"), "{report}");
    assert!(report.problems[0].reason.contains("another process has claimed"), "{report}");
    drop(lock);
    assert_eq!(index.add_path(&docs).run().expect("runs").added, 1, "its process is gone");
}

#[test]
fn everything_that_is_left_out_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    for path in ["target/goals.md", ".github/ci.yml", ".hidden.txt", "good.md"] {
        let path = docs.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, "the quiet heron").expect("written");
    }
    fs::create_dir_all(docs.join("node_modules/big")).expect("made");
    for at in 0..40 {
        fs::write(docs.join(format!("node_modules/big/{at}.js")), "x").expect("written");
    }
    let index = open_index(folder.path());
    let report = index.add_path(&docs).run().expect("runs");
    assert_eq!(report.added, 1, "{report}");
    let mut named: Vec<String> = report
        .problems
        .iter()
        .map(|problem| {
            assert!(problem.reason.contains("left out"), "{problem}");
            problem.path.strip_prefix(&docs).expect("is inside").display().to_string()
        })
        .collect();
    named.sort();
    assert_eq!(named, [".github/ci.yml", ".hidden.txt", "node_modules", "target/goals.md"]);
    // A left-out folder can be added by its own path, and an update of the parent leaves it alone.
    assert_eq!(index.add_path(docs.join("target")).run().expect("runs").added, 1);
    assert_eq!(index.add_path(&docs).run().expect("runs").removed, 0);
}

#[test]
fn versions_phrases_and_identifiers_are_told_apart_by_their_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    index
        .put_documents([
            IndexDocument::new(
                "old.txt",
                "Release 2.11.3 of the runtime. Version 2.11.3 is old. See 2.11.3.",
            ),
            IndexDocument::new(
                "new.txt",
                "Release 3.11.2 of the runtime, with a long list of many other changes.",
            ),
            IndexDocument::new("pool.txt", "The connection pool is limited to a size that fits."),
            IndexDocument::new(
                "swim.txt",
                "A pool of water, and pool rules; the train connection to the pool.",
            ),
            IndexDocument::new("snake.py", "def parse_http_header(line): return line"),
            IndexDocument::new("parts.py", "http http header header parse parse: http, parse, header"),
            IndexDocument::new("hamlet.txt", "To be, or not to be, that is the question."),
            IndexDocument::new(
                "other.txt",
                "It is not that, or to be it; the question is to be, to be, or not.",
            ),
        ])
        .expect("put");
    for (question, name) in [
        ("3.11.2", "new.txt"),
        ("2.11.3", "old.txt"),
        ("python 3.11.2 changes", "new.txt"),
        ("connection pool", "pool.txt"),
        ("parseHttpHeader", "snake.py"),
        ("\"or not to be that\"", "hamlet.txt"),
    ] {
        for signals in [SearchSignals::Bm25Only, SearchSignals::Hybrid] {
            let hits = index.search(question).signals(signals).run().expect("searches").hits;
            assert_eq!(hits[0].file_name, name, "{question}, {signals:?}");
        }
    }
}

/// Positions survive merges of segments and deletions.
#[test]
fn phrases_are_found_after_merges() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    for at in 0..40 {
        let text = format!("release {at}.7.{} and release 7.{at}.5", at + 1);
        index.put_documents([IndexDocument::new(format!("d{at}.txt"), text)]).expect("put");
        if at % 3 == 0 {
            index.remove_path(format!("d{at}.txt")).expect("removed");
        }
    }
    for at in (0..40).filter(|at| at % 3 != 0) {
        let found = index.search(format!("{at}.7.{}", at + 1)).signals(SearchSignals::Bm25Only).run();
        assert_eq!(found.expect("searches").hits[0].file_name, format!("d{at}.txt"));
    }
}

#[test]
fn long_questions_are_weighed_and_not_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = open_index(folder.path());
    let mut documents =
        vec![IndexDocument::new("pump.md", "Bleed the pump through its upper screw before the frost.")];
    documents.extend((0..120).map(|at| {
        let text = format!(
            "The worker {at} took the job from the queue and wrote its status to the log of the day."
        );
        IndexDocument::new(format!("filler{at}.md"), text)
    }));
    index.put_documents(documents).expect("put");
    let question = "How do I bleed the pump before frost?";
    let log: String = (0..60)
        .map(|at| format!("2026-01-02 10:00:{at:02} INFO worker {at} took job {at} from the queue\n"))
        .collect();
    for query in [
        format!("{}{question}", "please look at the status and the log of the worker ".repeat(26)),
        format!("{log}\n{question}"),
        format!("{question}\n{log}"),
    ] {
        assert!(query.split_whitespace().count() > 260);
        for signals in [SearchSignals::Bm25Only, SearchSignals::Hybrid] {
            let hits = index.search(query.as_str()).signals(signals).run().expect("searches").hits;
            assert_eq!(hits[0].file_name, "pump.md", "{signals:?}: {query}");
        }
    }
}

#[test]
fn text_is_found_in_every_form_and_encoding() {
    let folder = tempfile::tempdir().expect("a folder");
    let docs = folder.path().join("docs");
    fs::create_dir(&docs).expect("made");
    let chinese = "冬天来临之前必须给水泵放气，否则管道里的水会结冰并使管道破裂。请每年检查两次。";
    let russian = "Насос нужно продуть перед зимой, иначе вода в трубах замёрзнет и разорвёт их.";
    fs::write(docs.join("gbk.txt"), encoding_rs::GBK.encode(chinese).0).expect("written");
    fs::write(docs.join("koi8.txt"), encoding_rs::KOI8_R.encode(russian).0).expect("written");
    let page = format!("<html><meta charset=windows-1251><p>{russian} &Zcaron;ivot &hearts;");
    fs::write(docs.join("page.html"), encoding_rs::WINDOWS_1251.encode(&page).0).expect("written");
    // Decomposed Vietnamese, as macOS writes file contents and names.
    fs::write(docs.join("vi.txt"), "Tie\u{302}\u{301}ng Vie\u{323}\u{302}t").expect("written");
    // Decomposed Korean, whose parts are letters and no marks.
    let korean = "\u{1112}\u{1161}\u{11ab}\u{1100}\u{116e}\u{11a8}\u{110b}\u{1165}";
    fs::write(docs.join("ko.txt"), korean).expect("written");
    let index = open_index(folder.path());
    let report = index.add_path(&docs).run().expect("runs");
    assert_eq!(report.added, 5, "{report}");
    assert!(report.to_string().contains("it was read as KOI8"), "{report}");
    for (question, name) in [
        ("泵", "gbk.txt"),
        ("水泵放气", "gbk.txt"),
        ("насос", "koi8.txt"),
        ("Život", "page.html"),
        ("Tiếng Việt", "vi.txt"),
        ("한국어", "ko.txt"),
    ] {
        let hits = index.search(question).signals(SearchSignals::Bm25Only).run().expect("searches").hits;
        assert!(hits.iter().any(|hit| hit.file_name == name), "{question}: {hits:?}");
    }
    let hits = index.search("насос").run().expect("searches").hits;
    assert!(hits.iter().filter(|hit| hit.text.contains(russian)).count() >= 2, "{hits:?}");
}

/// Runs its body in a process that may not write the index.
#[cfg(unix)]
#[test]
fn an_index_that_cannot_be_written_can_be_searched() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const VARIABLE: &str = "WINDLASS_TEST_READ_ONLY";
    if let Ok(path) = std::env::var(VARIABLE) {
        let index = Index::open(&path).expect("opens");
        assert!(index.is_read_only());
        assert_eq!(search_names(&index, "heron"), ["bird.txt"]);
        let put = index.put_documents([IndexDocument::new("a.txt", "x")]);
        assert!(matches!(put, Err(SearchError::ReadOnly { .. })), "{put:?}");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("kept here");
    fs::create_dir(&kept).expect("made");
    let path = kept.join("test.index");
    let index = Index::open(&path).expect("opens");
    index.put_documents([IndexDocument::new("bird.txt", "the quiet heron")]).expect("put");
    drop(index);
    let is_root =
        fs::metadata("/proc/self").is_ok_and(|facts| std::os::unix::fs::MetadataExt::uid(&facts) == 0);
    // The test program must be readable for the other user, too.
    let program = folder.path().join("program");
    fs::copy(std::env::current_exe().expect("has a path"), &program).expect("copied");
    let before = fs::read(&path).expect("read");
    for (folder_mode, file_mode) in [(0o555, 0o444), (0o755, 0o444), (0o555, 0o644)] {
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("set");
        fs::set_permissions(&path, fs::Permissions::from_mode(file_mode)).expect("set");
        fs::set_permissions(&kept, fs::Permissions::from_mode(folder_mode)).expect("set");
        let mut child = std::process::Command::new(&program);
        child
            .args(["--exact", "an_index_that_cannot_be_written_can_be_searched"])
            .env(VARIABLE, &path)
            .current_dir(folder.path());
        if is_root {
            child.uid(65_534).gid(65_534);
        } else if folder_mode == 0o555 && file_mode == 0o644 {
            // The owner can write the file itself.
            continue;
        }
        let output = child.output().expect("runs");
        fs::set_permissions(&kept, fs::Permissions::from_mode(0o755)).expect("set");
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{folder_mode:o} {file_mode:o}: {said}");
    }
    assert_eq!(fs::read(&path).expect("read"), before);
    let index = Index::options().read_only().open(&path).expect("opens");
    assert_eq!(search_names(&index, "heron"), ["bird.txt"]);
    assert!(Index::options().read_only().open(kept.join("never.index")).is_err());
    assert!(!kept.join("never.index").exists());
}
