use std::path::Path;

use super::super::{codec, schema};
use super::*;
use crate::embed::quantise;

const DIMENSIONS: usize = 192;
const TOPICS: usize = 300;
const SEGMENTS: u32 = 3;
const CHUNKS_PER_SEGMENT: u32 = 7000;

struct SeededRandom(u64);

impl SeededRandom {
    /// Returns an approximately normal number with mean 0.
    fn next_normal(&mut self) -> f32 {
        (0..4).map(|_| self.next_uniform()).sum::<f32>() - 2.0
    }

    fn next_uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 24) as f32
    }
}

/// Returns a random vector near a topic. Its first dimensions have the largest variance, as in real embeddings.
fn topic_vector(topics: &[Vec<f32>], random: &mut SeededRandom) -> Vec<f32> {
    let topic = &topics[(random.next_uniform() * TOPICS as f32) as usize % TOPICS];
    topic
        .iter()
        .enumerate()
        .map(|(at, value)| (value + random.next_normal()) / (1.0 + at as f32 / 48.0))
        .collect()
}

/// Builds an index file that holds only segments of vectors.
fn build_large_index(
    path: &Path,
    topics: &[Vec<f32>],
    random: &mut SeededRandom,
) -> (Connection, IndexSnapshot) {
    let db = schema::open_database(path).expect("opens");
    for segment in 0..SEGMENTS {
        let first = segment * CHUNKS_PER_SEGMENT;
        let (mut scales, mut values) = (Vec::new(), Vec::new());
        for _ in 0..CHUNKS_PER_SEGMENT {
            let small = quantise(&topic_vector(topics, random));
            scales.extend(small.scale.to_le_bytes());
            values.extend(small.values.iter().map(|value| value.cast_unsigned()));
        }
        scales.append(&mut values);
        let ids = || codec::encode_u32s(first + 1..first + 1 + CHUNKS_PER_SEGMENT);
        db.execute(
            "INSERT INTO segments (count, words, ids, lengths, files) VALUES (?1, ?1, ?2, ?2, ?2)",
            (CHUNKS_PER_SEGMENT, ids()),
        )
        .expect("written");
        db.execute("INSERT INTO vectors VALUES (?1, ?2)", (db.last_insert_rowid(), scales)).expect("written");
    }
    let snapshot = IndexSnapshot::load(&db, 1, None).expect("reads");
    (db, snapshot)
}

#[test]
fn signs_find_what_a_whole_scan_finds() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut random = SeededRandom(3);
    let topics: Vec<Vec<f32>> =
        (0..TOPICS).map(|_| (0..DIMENSIONS).map(|_| random.next_normal()).collect()).collect();
    let (db, snapshot) = build_large_index(&folder.path().join("large.index"), &topics, &mut random);
    assert!(
        snapshot.chunk_count >= SIGN_SCAN_MIN_CHUNKS,
        "or it would not be the large index that this is about"
    );
    let few: AllowedFiles = Some((1..SEGMENTS * CHUNKS_PER_SEGMENT).filter(|id| id % 50 == 0).collect());
    for (allowed, least) in [(None, 0.95), (few, 1.0)] {
        let (mut found, mut all) = (0, 0);
        for _ in 0..8 {
            let wanted = quantise(&topic_vector(&topics, &mut random));
            let exact = scan_exact(&db, &snapshot, &wanted, &allowed, 100).expect("scans");
            let quick = rank_by_vector(&db, &snapshot, &wanted, &allowed, 100).expect("scans");
            assert_eq!(exact.len(), quick.len());
            assert_eq!(exact[..5], quick[..5], "the best are the same, with the same scores");
            assert!(quick.windows(2).all(|two| two[0].score >= two[1].score));
            found += quick.iter().filter(|one| exact.contains(one)).count();
            all += exact.len();
        }
        let part = found as f64 / all as f64;
        assert!(part >= least, "{part} of what a whole scan finds");
    }
    // A zero vector has no neighbours, and a deleted chunk is not found.
    let nothing = quantise(&[0.0; DIMENSIONS]);
    assert!(rank_by_vector(&db, &snapshot, &nothing, &None, 10).expect("scans").is_empty());
    let wanted = quantise(&topic_vector(&topics, &mut random));
    let best = rank_by_vector(&db, &snapshot, &wanted, &None, 10).expect("scans");
    let (segment, at) = snapshot.locate_chunk(best[0].chunk_ordinal);
    db.execute("INSERT INTO deleted_chunks VALUES (?1)", [segment.chunk_ids[at]]).expect("written");
    let later = IndexSnapshot::load(&db, 2, Some(&snapshot)).expect("reads");
    assert_eq!(rank_by_vector(&db, &later, &wanted, &None, 9).expect("scans"), best[1..]);
}
