use super::{Providers, whole};
use crate::error::SetupError;

fn providers(variables: &'static [(&str, &str)]) -> Providers {
    Providers::from_vars(|name| {
        variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.to_owned())
    })
}

#[test]
fn what_is_missing_is_said() {
    let error =
        |providers: Providers, spec: &str| providers.model(spec).expect_err("it cannot be").to_string();
    let said = error(providers(&[]), "openai:gpt-5.2");
    assert!(said.contains("OPENAI_API_KEY"), "{said}");
    let said = error(providers(&[("OPENAI_API_KEY", " ")]), "openai-chat:gpt-5.2");
    assert!(said.contains("OPENAI_API_KEY"), "{said}");
    let said = error(providers(&[]), "anthropic:claude");
    assert!(said.contains("ANTHROPIC_API_KEY"), "{said}");
    let said = error(providers(&[]), "opnai:gpt");
    assert!(said.contains("`opnai`") && said.contains("ollama"), "{said}");
    for spec in ["gpt-5.2", "openai:", ":gpt", ""] {
        assert!(matches!(providers(&[]).model(spec), Err(SetupError::NotAModel { .. })), "{spec}");
    }
}

#[test]
fn every_provider_is_found() {
    let set =
        providers(&[("OPENAI_API_KEY", "k"), ("ANTHROPIC_API_KEY", "k")]).named("lab", "http://lab:8000/v1");
    for spec in [
        "openai:gpt-5.2",
        "openai-chat:gpt-5.2",
        "anthropic:claude-opus-4-5",
        "ollama:llama3.2:3b",
        "vllm:qwen",
        "llamacpp:x",
        "lmstudio:x",
        "lab:qwen3",
    ] {
        assert!(set.model(spec).is_ok(), "{spec}");
    }
    assert!(
        providers(&[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")]).model("openai:x").is_ok(),
        "no key at home"
    );
}

#[test]
fn bad_addresses_and_keys_are_refused() {
    let said =
        providers(&[("OPENAI_BASE_URL", "localhost:80")]).model("openai:x").expect_err("no").to_string();
    assert!(said.contains("http://"), "{said}");
    let with_password = providers(&[("OPENAI_BASE_URL", "http://me:secret@host/v1")]);
    assert!(with_password.model("openai:x").is_err());
    let said = providers(&[("OPENAI_API_KEY", "sk-1\nsk-2")]).model("openai:x").expect_err("no").to_string();
    assert!(said.contains("OPENAI_API_KEY") && !said.contains("sk-"), "{said}");
}

#[test]
fn the_environment_may_name_the_model() {
    assert_eq!(providers(&[]).default_spec(), None);
    let openai = providers(&[("OPENAI_DEFAULT_MODEL", "gpt-5.2")]);
    assert_eq!(openai.default_spec().as_deref(), Some("openai:gpt-5.2"));
    let both = providers(&[("OPENAI_DEFAULT_MODEL", "gpt-5.2"), ("WINDLASS_MODEL", "ollama:llama3.2")]);
    assert_eq!(both.default_spec().as_deref(), Some("ollama:llama3.2"));
}

#[test]
fn hosts_become_addresses() {
    assert_eq!(whole("127.0.0.1:11434"), "http://127.0.0.1:11434/v1");
    assert_eq!(whole("https://x.example/"), "https://x.example/v1");
    assert_eq!(whole("http://x.example/api/v1/"), "http://x.example/api/v1");
}
