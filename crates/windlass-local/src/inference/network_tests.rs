use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::inference::test_model::tiny_model;

fn network(family: &str, threads: usize) -> DecoderNetwork {
    DecoderNetwork::load(&mut tiny_model(family).file().expect("readable"), threads).expect("loaded")
}

fn read(network: &DecoderNetwork, cache: &mut KeyValueCache, tokens: &[u32]) -> Vec<f32> {
    network.forward(cache, tokens, &|| false).expect("not cancelled")
}

fn assert_close(one: &[f32], other: &[f32]) {
    assert_eq!(one.len(), other.len());
    for (one, other) in one.iter().zip(other) {
        assert!((one - other).abs() < 1e-3, "{one} is not {other}");
    }
}

/// A prompt gives the same logits in one part, in several, on several threads, and after a longer one was shortened.
#[test]
fn a_kept_prefix_gives_what_the_whole_prompt_gives() {
    let prompt: Vec<u32> = (0..40).map(|at| at * 7 % 256).collect();
    for family in ["llama", "qwen2", "qwen3"] {
        let network = network(family, 1);
        let mut whole = network.empty_cache();
        let expected = read(&network, &mut whole, &prompt);
        assert!(expected.iter().all(|logit| logit.is_finite()));
        assert!(expected.iter().any(|logit| (logit - expected[0]).abs() > 0.1), "{family}: all the same");
        let mut parts = network.empty_cache();
        for part in prompt.chunks(9) {
            read(&network, &mut parts, part);
        }
        parts.truncate(25);
        read(&network, &mut parts, &[1, 2, 3]);
        parts.truncate(25);
        assert_close(&read(&network, &mut parts, &prompt[25..]), &expected);
        let mut copy = whole.copy_prefix(10);
        assert_close(&read(&network, &mut copy, &prompt[10..]), &expected);
        let parallel = self::network(family, 3);
        assert_close(&read(&parallel, &mut parallel.empty_cache(), &prompt), &expected);
        let mut other = network.empty_cache();
        let different = read(&network, &mut other, &[&[200], &prompt[1..]].concat());
        assert!(different.iter().zip(&expected).any(|(one, other)| (one - other).abs() > 1e-3), "{family}");
    }
}

#[test]
fn a_cancelled_reading_leaves_the_cache_as_it_was() {
    let network = network("llama", 1);
    let mut cache = network.empty_cache();
    read(&network, &mut cache, &[1, 2, 3]);
    // The first layer has read the tokens when the second is cancelled.
    let asked = AtomicU32::new(0);
    let at_second = || asked.fetch_add(1, Ordering::Relaxed) == 1;
    assert_eq!(network.forward(&mut cache, &[4, 5], &at_second), Err(ForwardError::Cancelled));
    let mut fresh = network.empty_cache();
    read(&network, &mut fresh, &[1, 2, 3]);
    assert_close(&read(&network, &mut cache, &[6]), &read(&network, &mut fresh, &[6]));
}

#[test]
fn positions_beyond_4096_are_read() {
    let network = network("qwen2", 1);
    assert_eq!(network.context_length(), 16_384);
    // The state after 5,000 tokens, without reading them.
    let mut cache = network.empty_cache();
    cache.token_count = 5000;
    for (keys, values) in &mut cache.heads {
        (*keys, *values) = (vec![0.1; 5000 * 16], vec![0.2; 5000 * 16]);
    }
    assert!(read(&network, &mut cache, &[5, 6]).iter().all(|logit| logit.is_finite()));
    assert_eq!(cache.token_count, 5002);
    assert_eq!(cache.heads[0].0.len(), 5002 * 16);
}

#[test]
fn what_the_network_does_not_have_is_refused_by_name() {
    let refusal = |model: crate::inference::test_model::GgufBuilder| {
        DecoderNetwork::load(&mut model.file().expect("readable"), 1).map(|_| ()).expect_err("refused")
    };
    let tiny = || tiny_model("llama");
    assert!(refusal(tiny().text("general.architecture", "gemma3")).contains("`gemma3`"));
    assert!(refusal(tiny().number("llama.expert_count", 8)).contains("mixture of experts"));
    assert!(refusal(tiny().text("llama.rope.scaling.type", "yarn")).contains("`yarn`"));
    assert!(refusal(tiny().tensor("blk.0.attn_sinks.weight", &[2])).contains("`blk.0.attn_sinks.weight`"));
    assert!(refusal(tiny().number("llama.block_count", 3)).contains("`blk.2.attn_norm.weight`"));
    assert!(refusal(tiny().without("llama.context_length")).contains("`llama.context_length`"));
    assert!(refusal(tiny().number("llama.rope.dimension_count", 8)).contains("part of each head"));
    let coded = tiny().raw_tensor("output.weight", &[32, 266], 23, vec![0; 100]);
    assert!(refusal(coded).contains("IQ4_XS"));
}

/// Linear scaling and the factors of Llama 3 change the angles.
#[test]
fn positions_are_scaled_as_the_file_says() {
    let file =
        tiny_model("llama").float("llama.rope.scaling.factor", 4.0).float("llama.rope.freq_base", 100.0);
    let angles = rotation_angles(&file.file().expect("readable"), "llama", 16).expect("known");
    assert!((angles[0] - 0.25).abs() < 1e-6 && (angles[4] - 0.025).abs() < 1e-6, "{angles:?}");
    let factors: Vec<u8> = [2.0_f32; 8].iter().flat_map(|factor| factor.to_le_bytes()).collect();
    let halved = tiny_model("llama").raw_tensor("rope_freqs.weight", &[8], 0, factors);
    let network = DecoderNetwork::load(&mut halved.file().expect("readable"), 1).expect("loaded");
    assert!((network.angles[0] - 0.5).abs() < 1e-6, "{:?}", network.angles);
}
