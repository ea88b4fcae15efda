//! Tests of the loop on decoders with planted faults.

#![allow(clippy::expect_used)]

use super::*;

/// Returns a target whose corpus is in a temporary folder, and that folder.
fn target(name: &str) -> (FuzzTarget, PathBuf) {
    let folder = std::env::temp_dir().join(format!("windlass-fuzz-test-{name}"));
    let target = FuzzTarget::new(folder.to_str().expect("a path"), name).seeds(["{\"a\": [1, 2]}", "boo"]);
    let target = match name {
        "waits" => target.max_wait(Duration::from_secs(20)),
        "busy" => target.max_cpu_time(Duration::from_millis(500)),
        _ => target,
    };
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

/// A decoder may work on a thread of its own and report a panic there as an ordinary error.
#[test]
fn a_panic_of_another_thread_is_found() {
    let Some((message, kept)) = failure("threads", "a_panic_of_another_thread_is_found", |input| {
        let is_boo = input.starts_with(b"boo");
        let _ = std::thread::spawn(move || assert!(!is_boo, "a planted fault")).join();
    }) else {
        return;
    };
    assert!(message.contains("a planted fault"), "{message}");
    assert_eq!(kept, 1, "{message}");
}

#[test]
fn work_of_another_thread_counts() {
    let Some((message, kept)) = failure("busy", "work_of_another_thread_counts", |input| {
        let is_boo = input.starts_with(b"boo");
        let work = move || {
            let begin = cpu_time();
            while is_boo && cpu_time().saturating_sub(begin) < Duration::from_secs(1) {
                std::hint::black_box(is_boo);
            }
        };
        std::thread::spawn(work).join().expect("it works");
    }) else {
        return;
    };
    assert!(message.contains("busy took"), "{message}");
    assert_eq!(kept, 1, "{message}");
}

#[test]
fn an_input_that_waits_for_ever_is_found() {
    let Some((message, kept)) = failure("waits", "an_input_that_waits_for_ever_is_found", |input| {
        while input.starts_with(b"boo") {
            std::thread::park();
        }
    }) else {
        return;
    };
    assert!(message.contains("did not return"), "{message}");
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
