//! Tests of the loop on decoders with planted faults.

#![allow(clippy::expect_used)]

use super::*;

/// Returns a target whose corpus is in a temporary folder, and that folder.
fn target(name: &str) -> (FuzzTarget, PathBuf) {
    let folder = std::env::temp_dir().join(format!("windlass-fuzz-test-{name}"));
    let target = FuzzTarget::new(folder.to_str().expect("a path"), name).seeds(["{\"a\": [1, 2]}", "boo"]);
    (target, folder)
}

/// Returns the message with which the parent fails, and the number of inputs that it kept.
fn failure(name: &str, test: &str, decode: impl Fn(&[u8])) -> Option<(String, usize)> {
    let (target, folder) = target(name);
    let is_child = std::env::var(CHILD_VARIABLE).is_ok();
    let ran = catch_unwind(AssertUnwindSafe(|| target.run(module_path!(), test, decode)));
    if is_child {
        // The child reports by its exit.
        assert!(ran.is_ok(), "the decoder failed");
        return None;
    }
    let kept = std::fs::read_dir(folder.join("tests/corpus").join(name)).map_or(0, Iterator::count);
    let _ = std::fs::remove_dir_all(folder);
    let message = ran.expect_err("the fault is found").downcast::<String>().expect("a message");
    Some((*message, kept))
}

#[test]
fn a_sound_decoder_passes() {
    let (target, _) = target("sound");
    target.run(module_path!(), "a_sound_decoder_passes", |input| _ = String::from_utf8_lossy(input));
}

#[test]
fn a_panic_is_found_and_its_input_kept() {
    let test = "a_panic_is_found_and_its_input_kept";
    let Some((message, kept)) = failure("panics", test, |input| {
        assert!(!input.windows(2).any(|pair| pair == b"[["), "a planted fault");
    }) else {
        return;
    };
    assert!(message.contains("a planted fault"), "{message}");
    assert_eq!(kept, 1, "{message}");
}

#[test]
fn memory_beyond_the_budget_is_found() {
    let Some((message, kept)) = failure("allocates", "memory_beyond_the_budget_is_found", |input| {
        if input.starts_with(b"boo") {
            let block = vec![1u8; 1 << 30];
            assert_eq!(std::hint::black_box(&block)[17], 1);
        }
    }) else {
        return;
    };
    assert!(message.contains("memory allocation"), "{message}");
    assert_eq!(kept, 1, "{message}");
}

#[test]
fn recursion_without_a_bound_is_found() {
    fn nest(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 64]);
        if depth == u64::MAX { 0 } else { nest(depth + 1) + room[7] }
    }
    let Some((message, kept)) = failure("nests", "recursion_without_a_bound_is_found", |input| {
        if input.starts_with(b"boo") {
            std::hint::black_box(nest(0));
        }
    }) else {
        return;
    };
    assert!(message.contains("signal"), "{message}");
    assert_eq!(kept, 1, "{message}");
}

#[test]
fn a_test_that_does_not_exist_is_found() {
    let (target, _) = target("absent");
    let ran = catch_unwind(AssertUnwindSafe(|| target.run(module_path!(), "no_such_test", |_| {})));
    let message = ran.expect_err("it is found").downcast::<String>().expect("a message");
    assert!(message.contains("ran no test"), "{message}");
}
