//! Fuzzing of the parts of a file of weights that come from elsewhere: the file itself, its chat template and its tokeniser.

use std::io::Cursor;
use std::sync::atomic::AtomicBool;

use windlass_fuzz::FuzzTarget;

use super::gguf::GgufFile;
use super::network::DecoderNetwork;
use super::template::ChatTemplate;
use super::test_model::{CHAT_TEMPLATE, GgufBuilder, tiny_model, vocabulary};
use super::tokeniser::{GgufTokeniser, TextMark};
use crate::prompt::PromptMessage;

const FAMILIES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Loads a file as the engine does, and reads one prompt with it.
fn load_and_read(input: &[u8]) {
    let Ok(mut file) = GgufFile::read(Cursor::new(input)) else { return };
    let tokeniser = GgufTokeniser::from_gguf(&file);
    if let Ok(tokeniser) = &tokeniser {
        let template = ChatTemplate::compile(
            file.text("tokenizer.chat_template"),
            tokeniser.beginning_name(),
            tokeniser.end_name(),
        );
        if let Ok(template) = template {
            let messages = [PromptMessage { role: "user", text: "hello <|im_end|> world 12".to_owned() }];
            let _ = template.encode_prompt(tokeniser, &messages, 4096, &AtomicBool::new(false));
        }
    }
    let Ok(network) = DecoderNetwork::load(&mut file, 1) else { return };
    if tokeniser.is_ok_and(|tokeniser| tokeniser.len() <= network.vocabulary_size()) {
        let logits = network.forward(&mut network.empty_cache(), &[0, 1, 2], &|| false);
        assert_eq!(logits.map(|logits| logits.len()), Ok(network.vocabulary_size()));
    }
}

#[test]
fn fuzz_weight_files_are_refused_or_run() {
    let models = FAMILIES.map(|family| tiny_model(family).bytes());
    let hostile = [
        // The lengths are multiplied before a tensor of that size is looked for.
        tiny_model("llama").value("llama.attention.key_length", 10, &(1_u64 << 62).to_le_bytes()),
        tiny_model("llama").value("llama.attention.head_count", 10, &(1_u64 << 63).to_le_bytes()),
        tiny_model("llama").value("llama.block_count", 10, &u64::MAX.to_le_bytes()),
        tiny_model("llama").tensor("output.weight", &[32, 3]),
        tiny_model("llama").value("general.alignment", 10, &u64::MAX.to_le_bytes()),
        GgufBuilder::default().value(
            "a",
            9,
            &[9_u32.to_le_bytes().as_slice(), &u64::MAX.to_le_bytes()].concat(),
        ),
    ];
    let words = [
        "GGUF",
        "llama.attention.key_length",
        "tokenizer.ggml.tokens",
        "blk.0.attn_q.weight",
        "token_embd.weight",
    ];
    let numbers = [0_u64, 1, 2, 31, u64::from(u32::MAX), u64::MAX, 1 << 40].map(u64::to_le_bytes);
    FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "gguf")
        .seeds(models)
        .seeds(hostile.map(|builder| builder.bytes()))
        .seeds([vocabulary("qwen2").bytes()])
        .words(words)
        .words(numbers)
        .max_input_bytes(256 * 1024)
        .run(module_path!(), "fuzz_weight_files_are_refused_or_run", load_and_read);
}

#[test]
fn fuzz_chat_templates_are_refused_or_rendered() {
    let seeds = [
        CHAT_TEMPLATE,
        "{%- if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}{{ m.content | trim | tojson(indent=2) }}{% endfor %}",
        "{{ raise_exception('no') }}{{ strftime_now('%d %B %Y %H:%M') }}{% generation %}{% endgeneration %}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{{ messages | tojson(indent=18446744073709551615) }}",
        "{{ [[[1]]] | tojson(indent=9223372036854775807) }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(20000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
    ];
    let words = [
        "{%",
        "%}",
        "{{",
        "}}",
        "for",
        "set",
        "namespace",
        "range(",
        "| tojson",
        "loop",
        "messages",
        "strftime_now('%",
    ];
    FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "chat_templates").seeds(seeds).words(words).run(
        module_path!(),
        "fuzz_chat_templates_are_refused_or_rendered",
        |input| {
            let Ok(template) = ChatTemplate::compile(Some(&String::from_utf8_lossy(input)), "<s>", "</s>")
            else {
                return;
            };
            let messages =
                ["system", "user", "user"].map(|role| PromptMessage { role, text: "a {{ b }}".to_owned() });
            let _ = template.render_prompt(&messages);
        },
    );
}

/// Text never becomes a control token, and the tokens of a text are its bytes.
#[test]
fn fuzz_texts_become_the_tokens_of_their_bytes() {
    let tokenisers = ["gpt-2", "smollm", "qwen2", "llama-bpe"].map(|pre| {
        GgufTokeniser::from_gguf(&vocabulary(pre).file().expect("readable")).expect("a tokeniser")
    });
    let seeds = [
        "hello  world\n\n 123456 'll it's",
        "<|im_start|>system\nyou are<|im_end|>",
        "ａ\u{300}\u{fdd0}\u{10fffd}é漢字🦀",
        "\r\n\t \u{a0}\u{3000}",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];
    FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "local_tokens")
        .seeds(seeds)
        .words(["<|", "|>", " ", "\n", "'s", "9", "he"])
        .run(module_path!(), "fuzz_texts_become_the_tokens_of_their_bytes", |input| {
            let text = String::from_utf8_lossy(input);
            for tokeniser in &tokenisers {
                let mark = TextMark::absent_from(std::iter::once(&*text));
                let marked = tokeniser.mark_text(&text, mark);
                let tokens =
                    tokeniser.encode(&marked, mark, 1 << 20, &AtomicBool::new(false)).expect("short enough");
                let from = usize::from(tokens.first().is_some_and(|first| tokeniser.is_control(*first)));
                let read: Vec<u8> =
                    tokens[from..].iter().flat_map(|token| tokeniser.token_bytes(*token)).copied().collect();
                assert!(!tokens[from..].iter().any(|token| tokeniser.is_control(*token)), "{text:?}");
                assert_eq!(read, text.as_bytes(), "{text:?}");
            }
        });
}
