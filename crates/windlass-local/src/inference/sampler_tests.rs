use super::*;

const GREEDY: SamplingSettings =
    SamplingSettings { temperature: 0.0, top_p: 1.0, frequency_penalty: 0.0, presence_penalty: 0.0, seed: 7 };

fn choices(settings: SamplingSettings, logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = TokenSampler::new(settings);
    (0..count).filter_map(|_| sampler.choose(logits, |_| true)).collect()
}

#[test]
fn without_a_temperature_the_most_likely_allowed_token_is_chosen() {
    let logits = [1.0, 3.0, 2.0];
    assert_eq!(choices(GREEDY, &logits, 3), [1, 1, 1]);
    assert_eq!(TokenSampler::new(GREEDY).choose(&logits, |token| token != 1), Some(2));
    assert_eq!(TokenSampler::new(GREEDY).choose(&logits, |_| false), None);
    let warm = SamplingSettings { temperature: 1.0, ..GREEDY };
    assert_eq!(TokenSampler::new(warm).choose(&logits, |_| false), None);
}

#[test]
fn a_temperature_chooses_by_probability_and_seed() {
    let logits = [0.0, 2.0_f32.ln(), f32::NEG_INFINITY];
    let warm = SamplingSettings { temperature: 1.0, ..GREEDY };
    let found = choices(warm.clone(), &logits, 3000);
    assert_eq!(found, choices(warm.clone(), &logits, 3000), "the seed decides");
    assert_ne!(found, choices(SamplingSettings { seed: 8, ..warm }, &logits, 3000));
    let second = found.iter().filter(|token| **token == 1).count();
    assert!((1850..2150).contains(&second), "two of three, not {second} of 3000");
    assert!(!found.contains(&2));
    let cold = choices(SamplingSettings { temperature: 0.01, ..warm }, &logits, 100);
    assert_eq!(cold, [1; 100]);
}

#[test]
fn top_p_leaves_out_the_unlikely() {
    let logits = [8.0_f32.ln(), 1.0_f32.ln(), 1.0_f32.ln()];
    let narrow = SamplingSettings { temperature: 1.0, top_p: 0.75, ..GREEDY };
    assert_eq!(choices(narrow.clone(), &logits, 200), [0; 200]);
    let wide = choices(SamplingSettings { top_p: 1.0, ..narrow }, &logits, 200);
    assert!(wide.contains(&1) && wide.contains(&2));
}

#[test]
fn penalties_lower_what_was_chosen() {
    let logits = [2.0, 1.5, 0.0];
    let by_count = SamplingSettings { frequency_penalty: 0.4, ..GREEDY };
    assert_eq!(choices(by_count, &logits, 4), [0, 0, 1, 0]);
    let by_presence = SamplingSettings { presence_penalty: 0.6, ..GREEDY };
    assert_eq!(choices(by_presence, &logits, 4), [0, 1, 0, 0]);
}
