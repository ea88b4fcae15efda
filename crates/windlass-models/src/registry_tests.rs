use super::ProviderRegistry;
use crate::error::SetupError;
use crate::providers::normalise_base_url;

fn registry_with(variables: &'static [(&str, &str)]) -> ProviderRegistry {
    ProviderRegistry::from_vars(|name| {
        variables.iter().find(|variable| variable.0 == name).map(|variable| variable.1.to_owned())
    })
}

#[test]
fn what_is_missing_is_said() {
    let error = |providers: ProviderRegistry, spec: &str| {
        providers.model(spec).expect_err("it cannot be").to_string()
    };
    let said = error(registry_with(&[]), "openai:gpt-5.2");
    assert!(said.contains("OPENAI_API_KEY"), "{said}");
    let said = error(registry_with(&[("OPENAI_API_KEY", " ")]), "openai-chat:gpt-5.2");
    assert!(said.contains("OPENAI_API_KEY"), "{said}");
    let said = error(registry_with(&[]), "anthropic:claude");
    assert!(said.contains("ANTHROPIC_API_KEY"), "{said}");
    let said = error(registry_with(&[]), "opnai:gpt");
    assert!(said.contains("`opnai`") && said.contains("ollama"), "{said}");
    for spec in ["gpt-5.2", "openai:", ":gpt", ""] {
        assert!(matches!(registry_with(&[]).model(spec), Err(SetupError::InvalidModelSpec { .. })), "{spec}");
    }
}

#[test]
fn every_provider_is_found() {
    let set = registry_with(&[("OPENAI_API_KEY", "k"), ("ANTHROPIC_API_KEY", "k")])
        .with_server_at("lab", "http://lab:8000/v1");
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
        registry_with(&[("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")]).model("openai:x").is_ok(),
        "no key at home"
    );
}

#[test]
fn bad_addresses_and_keys_are_refused() {
    let said =
        registry_with(&[("OPENAI_BASE_URL", "localhost:80")]).model("openai:x").expect_err("no").to_string();
    assert!(said.contains("http://"), "{said}");
    let with_password = registry_with(&[("OPENAI_BASE_URL", "http://me:secret@host/v1")]);
    assert!(with_password.model("openai:x").is_err());
    let said =
        registry_with(&[("OPENAI_API_KEY", "sk-1\nsk-2")]).model("openai:x").expect_err("no").to_string();
    assert!(said.contains("OPENAI_API_KEY") && !said.contains("sk-"), "{said}");
}

#[test]
fn the_environment_may_name_the_model() {
    assert_eq!(registry_with(&[]).default_spec(), None);
    let openai = registry_with(&[("OPENAI_DEFAULT_MODEL", "gpt-5.2")]);
    assert_eq!(openai.default_spec().as_deref(), Some("openai:gpt-5.2"));
    let both = registry_with(&[("OPENAI_DEFAULT_MODEL", "gpt-5.2"), ("WINDLASS_MODEL", "ollama:llama3.2")]);
    assert_eq!(both.default_spec().as_deref(), Some("ollama:llama3.2"));
}

#[test]
fn hosts_become_addresses() {
    assert_eq!(normalise_base_url("127.0.0.1:8080", Some(11434)), "http://127.0.0.1:8080/v1");
    assert_eq!(normalise_base_url("127.0.0.1", Some(11434)), "http://127.0.0.1:11434/v1");
    assert_eq!(normalise_base_url("[::1]", Some(11434)), "http://[::1]:11434/v1");
    assert_eq!(normalise_base_url("0.0.0.0:9", Some(11434)), "http://127.0.0.1:9/v1");
    assert_eq!(normalise_base_url("box/v2", Some(11434)), "http://box:11434/v2");
    assert_eq!(normalise_base_url("box/v2", None), "http://box/v2");
    let registry = registry_with(&[("OLLAMA_HOST", "0.0.0.0")]);
    let ollama = registry.providers().into_iter().find(|provider| provider.name == "ollama");
    let url = ollama.expect("it is known").base_url;
    assert_eq!(url.as_deref(), Some("http://127.0.0.1:11434/v1"), "the server listens on every address");
    assert_eq!(normalise_base_url("https://x.example/", Some(11434)), "https://x.example/v1");
    assert_eq!(normalise_base_url("http://x.example/api/v1/", Some(11434)), "http://x.example/api/v1");
}
