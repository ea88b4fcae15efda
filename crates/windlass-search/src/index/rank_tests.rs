use std::path::Path;

use super::super::{codec, schema};
use super::*;
use crate::embed::quantise;

const DIMENSIONS: usize = 192;
const TOPICS: usize = 300;
const SEGMENTS: u32 = 3;
const IN_SEGMENT: u32 = 7000;

struct Random(u64);

impl Random {
    /// About normal, around 0.
    fn next(&mut self) -> f32 {
        (0..4).map(|_| self.part()).sum::<f32>() - 2.0
    }

    fn part(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// A vector about a topic. Its first numbers are larger than its last, as those of real vectors are.
fn about(topics: &[Vec<f32>], random: &mut Random) -> Vec<f32> {
    let topic = &topics[(random.part() * TOPICS as f32) as usize % TOPICS];
    topic.iter().enumerate().map(|(at, value)| (value + random.next()) / (1.0 + at as f32 / 48.0)).collect()
}

/// Segments of vectors, as an index keeps them.
fn large(path: &Path, topics: &[Vec<f32>], random: &mut Random) -> (Connection, Snapshot) {
    let db = schema::open(path).expect("opens");
    for segment in 0..SEGMENTS {
        let first = segment * IN_SEGMENT;
        let (mut scales, mut values) = (Vec::new(), Vec::new());
        for _ in 0..IN_SEGMENT {
            let small = quantise(&about(topics, random));
            scales.extend(small.scale.to_le_bytes());
            values.extend(small.values.iter().map(|value| value.cast_unsigned()));
        }
        scales.append(&mut values);
        let ids = || codec::write_all(first + 1..first + 1 + IN_SEGMENT);
        db.execute(
            "INSERT INTO segments (count, words, ids, lengths, files) VALUES (?1, ?1, ?2, ?2, ?2)",
            (IN_SEGMENT, ids()),
        )
        .expect("written");
        db.execute("INSERT INTO vectors VALUES (?1, ?2)", (db.last_insert_rowid(), scales)).expect("written");
    }
    let snapshot = Snapshot::read(&db, 1, None).expect("reads");
    (db, snapshot)
}

#[test]
fn signs_find_what_a_whole_scan_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = Random(3);
    let topics: Vec<Vec<f32>> =
        (0..TOPICS).map(|_| (0..DIMENSIONS).map(|_| random.next()).collect()).collect();
    let (db, snapshot) = large(&folder.path().join("large.index"), &topics, &mut random);
    assert!(snapshot.total >= LARGE, "or it would not be the large index that this is about");
    let few: Allowed = Some((1..SEGMENTS * IN_SEGMENT).filter(|id| id % 50 == 0).collect());
    for (allowed, least) in [(None, 0.95), (few, 1.0)] {
        let (mut found, mut all) = (0, 0);
        for _ in 0..8 {
            let wanted = quantise(&about(&topics, &mut random));
            let exact = by_bytes(&db, &snapshot, &wanted, &allowed, 100).expect("scans");
            let quick = by_vector(&db, &snapshot, &wanted, &allowed, 100).expect("scans");
            assert_eq!(exact.len(), quick.len());
            assert_eq!(exact[..5], quick[..5], "the best are the same, with the same scores");
            assert!(quick.windows(2).all(|two| two[0].score >= two[1].score));
            found += quick.iter().filter(|one| exact.contains(one)).count();
            all += exact.len();
        }
        let part = found as f64 / all as f64;
        assert!(part >= least, "{part} of what a whole scan finds");
    }
    // A vector of nothing is near nothing, and what was deleted is not found.
    let nothing = quantise(&[0.0; DIMENSIONS]);
    assert!(by_vector(&db, &snapshot, &nothing, &None, 10).expect("scans").is_empty());
    let wanted = quantise(&about(&topics, &mut random));
    let best = by_vector(&db, &snapshot, &wanted, &None, 10).expect("scans");
    let (segment, at) = snapshot.locate(best[0].slot);
    db.execute("INSERT INTO dead VALUES (?1)", [segment.ids[at]]).expect("written");
    let later = Snapshot::read(&db, 2, Some(&snapshot)).expect("reads");
    assert_eq!(by_vector(&db, &later, &wanted, &None, 9).expect("scans"), best[1..]);
}
