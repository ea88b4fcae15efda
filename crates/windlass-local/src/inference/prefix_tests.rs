use super::*;

/// A state that records which tokens it knows, to be compared with those of its prefix.
#[derive(Clone, Debug, Default, PartialEq)]
struct Known(Vec<u32>);

impl PrefixState for Known {
    fn truncate(&mut self, token_count: usize) {
        self.0.truncate(token_count);
    }

    fn copy_prefix(&self, token_count: usize) -> Self {
        Self(self.0[..token_count].to_vec())
    }
}

/// Reads a prompt and a response, and returns the number of tokens of the prompt that were new.
fn read(cache: &mut PrefixCache<Known>, prompt: &[u32], response: &[u32]) -> usize {
    let mut prefix = cache.take(prompt, Known::default);
    assert_eq!(prefix.tokens, prefix.state.0, "the state is that of the tokens");
    assert_eq!(prefix.tokens, prompt[..prefix.tokens.len()], "a prefix of the prompt");
    let new = prompt.len() - prefix.tokens.len();
    prefix.tokens = [prompt, response].concat();
    prefix.state = Known(prefix.tokens.clone());
    cache.put(prefix);
    new
}

fn tokens(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

#[test]
fn a_run_of_ten_turns_reads_only_what_is_new() {
    let mut cache = PrefixCache::new(4, 10_000);
    let mut prompt = tokens(0, 400);
    assert_eq!(read(&mut cache, &prompt, &[9000]), 400);
    for turn in 1..10 {
        // The response is in the next prompt, and then the tool's result.
        prompt.push(9000);
        prompt.extend(tokens(1000 * turn, 30));
        assert_eq!(read(&mut cache, &prompt, &[9000]), 30, "turn {turn}");
    }
}

#[test]
fn the_last_token_is_always_read() {
    let mut cache = PrefixCache::new(4, 10_000);
    assert_eq!(read(&mut cache, &tokens(0, 50), &[]), 50);
    assert_eq!(read(&mut cache, &tokens(0, 50), &[]), 1);
    assert_eq!(read(&mut cache, &[0], &[]), 1);
    assert!(cache.take(&[], Known::default).tokens.is_empty());
}

#[test]
fn runs_in_turn_do_not_take_each_others_prompts() {
    let mut cache = PrefixCache::new(4, 10_000);
    let instructions = tokens(0, 200);
    let mut runs: Vec<Vec<u32>> =
        (1..4).map(|run| [instructions.clone(), tokens(run * 10_000, 50)].concat()).collect();
    assert_eq!(read(&mut cache, &runs[0], &[]), 250);
    assert_eq!(read(&mut cache, &runs[1], &[]), 50, "the instructions are shared");
    assert_eq!(read(&mut cache, &runs[2], &[]), 50);
    for turn in 0..3 {
        for run in &mut runs {
            run.extend(tokens(50_000 + turn * 100, 10));
            assert_eq!(read(&mut cache, run, &[]), 10);
        }
    }
}

#[test]
fn memory_is_bounded() {
    let mut cache = PrefixCache::new(2, 300);
    for run in 0..3 {
        read(&mut cache, &tokens(run * 1000, 100), &[]);
    }
    assert_eq!(cache.kept.len(), 2);
    assert_eq!(read(&mut cache, &tokens(0, 100), &[]), 100, "the oldest was forgotten");
    assert_eq!(read(&mut cache, &tokens(2000, 100), &[]), 1);
    read(&mut cache, &tokens(5000, 250), &[]);
    assert_eq!(cache.kept.len(), 1, "two prompts are too long together");
    let mut none = PrefixCache::new(0, 300);
    assert_eq!(read(&mut none, &tokens(0, 100), &[]), 100);
    assert_eq!(read(&mut none, &tokens(0, 100), &[]), 100);
}
