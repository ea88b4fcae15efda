//! Embeddings of a fake provider: each word increments one dimension, so texts with common words have similar
//! vectors.

use serde_json::{Value, json};

/// Number of dimensions if the request names none.
const DEFAULT_DIMENSIONS: usize = 32;

pub(super) fn embeddings_body(request: &Value) -> Value {
    let texts: Vec<&str> = match &request["input"] {
        Value::String(text) => vec![text],
        Value::Array(texts) => texts.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let dimensions = request["dimensions"].as_u64().and_then(|count| usize::try_from(count).ok());
    let dimensions = dimensions.unwrap_or(DEFAULT_DIMENSIONS).max(1);
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let mut vector = vec![0.0f32; dimensions];
            for word in
                text.to_lowercase().split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty())
            {
                let hash = word
                    .bytes()
                    .fold(17usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(byte)));
                vector[hash % dimensions] += 1.0;
            }
            json!({ "object": "embedding", "index": index, "embedding": vector })
        })
        .collect();
    let tokens: usize = texts.iter().map(|text| text.len() / 4 + 1).sum();
    json!({
        "object": "list",
        "data": data,
        "model": request["model"],
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}
