//! GGUF files that tests write: a tiny network with random weights and a vocabulary of bytes.

use std::collections::HashMap;
use std::io::Cursor;

use super::gguf::GgufFile;
use super::tokeniser::byte_letters;

/// The vocabulary of the tiny model begins with the 256 bytes.
pub(crate) const MERGES: [&str; 6] = ["h e", "l l", "he ll", "hell o", "Ġ w", "a a"];
/// The control tokens follow the merged tokens.
pub(crate) const CONTROL_TOKENS: [&str; 4] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"];
pub(crate) const CHAT_TEMPLATE: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// A GGUF file under construction.
#[derive(Clone, Default)]
pub(crate) struct GgufBuilder {
    values: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text_bytes(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

impl GgufBuilder {
    pub(crate) fn value(mut self, name: &str, kind: u32, bytes: &[u8]) -> Self {
        self.values.retain(|(known, _)| known != name);
        self.values.push((name.to_owned(), [&kind.to_le_bytes(), bytes].concat()));
        self
    }

    pub(crate) fn text(self, name: &str, text: &str) -> Self {
        self.value(name, 8, &text_bytes(text))
    }

    pub(crate) fn number(self, name: &str, number: u32) -> Self {
        self.value(name, 4, &number.to_le_bytes())
    }

    pub(crate) fn float(self, name: &str, number: f32) -> Self {
        self.value(name, 6, &number.to_le_bytes())
    }

    pub(crate) fn flag(self, name: &str, flag: bool) -> Self {
        self.value(name, 7, &[u8::from(flag)])
    }

    pub(crate) fn texts(self, name: &str, texts: &[String]) -> Self {
        let mut bytes = [8_u32.to_le_bytes().as_slice(), &(texts.len() as u64).to_le_bytes()].concat();
        texts.iter().for_each(|text| bytes.extend(text_bytes(text)));
        self.value(name, 9, &bytes)
    }

    pub(crate) fn numbers(self, name: &str, numbers: &[i32]) -> Self {
        let mut bytes = [5_u32.to_le_bytes().as_slice(), &(numbers.len() as u64).to_le_bytes()].concat();
        numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        self.value(name, 9, &bytes)
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.values.retain(|(known, _)| known != name);
        self
    }

    /// Adds a tensor of random numbers, which depend on its name.
    pub(crate) fn tensor(self, name: &str, dimensions: &[u64]) -> Self {
        let mut random = name.bytes().fold(1_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        let count: u64 = dimensions.iter().product();
        let is_norm = name.contains("norm");
        let mut bytes = Vec::new();
        for _ in 0..count {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = ((random >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.8;
            bytes.extend(if is_norm { 1.0 + number } else { number }.to_le_bytes());
        }
        self.raw_tensor(name, dimensions, 0, bytes)
    }

    pub(crate) fn raw_tensor(mut self, name: &str, dimensions: &[u64], kind: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.to_owned(), dimensions.to_vec(), kind, bytes));
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(3_u32.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.values.len() as u64).to_le_bytes());
        for (name, value) in &self.values {
            file.extend(text_bytes(name));
            file.extend(value);
        }
        let mut offset = 0_u64;
        for (name, dimensions, kind, bytes) in &self.tensors {
            file.extend(text_bytes(name));
            file.extend((dimensions.len() as u32).to_le_bytes());
            dimensions.iter().for_each(|length| file.extend(length.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset += (bytes.len() as u64).next_multiple_of(32);
        }
        file.resize(file.len().next_multiple_of(32), 0);
        for (_, _, _, bytes) in &self.tensors {
            file.extend(bytes);
            file.resize(file.len().next_multiple_of(32), 0);
        }
        file
    }

    pub(crate) fn file(&self) -> Result<GgufFile<Cursor<Vec<u8>>>, String> {
        GgufFile::read(Cursor::new(self.bytes()))
    }
}

/// Returns a builder with a vocabulary.
pub(crate) fn vocabulary(pre: &str) -> GgufBuilder {
    let letters: HashMap<u8, char> =
        byte_letters().into_iter().map(|(letter, byte)| (byte, letter)).collect();
    let mut tokens: Vec<String> = (0..=255).map(|byte: u8| letters[&byte].to_string()).collect();
    tokens.extend(MERGES.map(|merge| merge.replace(' ', "")));
    let mut kinds = vec![1; tokens.len()];
    tokens.extend(CONTROL_TOKENS.map(str::to_owned));
    kinds.resize(tokens.len() - 1, 3);
    kinds.push(4);
    GgufBuilder::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &tokens)
        .numbers("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &MERGES.map(str::to_owned))
        .number("tokenizer.ggml.bos_token_id", control_id("<|endoftext|>"))
        .number("tokenizer.ggml.eos_token_id", control_id("<|im_end|>"))
        .text("tokenizer.chat_template", CHAT_TEMPLATE)
}

/// Returns the id of a control token.
pub(crate) fn control_id(name: &str) -> u32 {
    let at = CONTROL_TOKENS.iter().position(|token| *token == name).expect("a control token");
    (256 + MERGES.len() + at) as u32
}

/// Returns a tiny model of a family: two layers of width 32.
pub(crate) fn tiny_model(family: &str) -> GgufBuilder {
    let count = (256 + MERGES.len() + CONTROL_TOKENS.len()) as u64;
    let key = |name: &str| format!("{family}.{name}");
    let mut model = vocabulary("smollm")
        .text("general.architecture", family)
        .number(&key("embedding_length"), 32)
        .number(&key("block_count"), 2)
        .number(&key("feed_forward_length"), 64)
        .number(&key("attention.head_count"), 2)
        .number(&key("attention.head_count_kv"), 1)
        .number(&key("context_length"), 16_384)
        .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .tensor("token_embd.weight", &[32, count])
        .tensor("output_norm.weight", &[32]);
    for layer in 0..2 {
        let name = |part: &str| format!("blk.{layer}.{part}");
        model = model
            .tensor(&name("attn_norm.weight"), &[32])
            .tensor(&name("attn_q.weight"), &[32, 32])
            .tensor(&name("attn_k.weight"), &[32, 16])
            .tensor(&name("attn_v.weight"), &[32, 16])
            .tensor(&name("attn_output.weight"), &[32, 32])
            .tensor(&name("ffn_norm.weight"), &[32])
            .tensor(&name("ffn_gate.weight"), &[32, 64])
            .tensor(&name("ffn_up.weight"), &[32, 64])
            .tensor(&name("ffn_down.weight"), &[64, 32]);
        model = match family {
            "qwen2" => model
                .tensor(&name("attn_q.bias"), &[32])
                .tensor(&name("attn_k.bias"), &[16])
                .tensor(&name("attn_v.bias"), &[16]),
            "qwen3" => {
                model.tensor(&name("attn_q_norm.weight"), &[16]).tensor(&name("attn_k_norm.weight"), &[16])
            }
            _ => model,
        };
    }
    model
}
