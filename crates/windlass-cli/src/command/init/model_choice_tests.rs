//! Local servers and their models.

use std::io::{Read, Write};
use std::net::TcpListener;

#[cfg(feature = "models")]
use super::{FoundModels, KEYED_MODELS, add_keyed_models};
use super::{list_server_models, local_address};

/// Starts a server that answers one request.
fn serve_once(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
    let address = listener.local_addr().expect("it is bound").to_string();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody connects");
        let mut request = [0; 1024];
        let count = stream.read(&mut request).expect("it asks");
        assert!(request[..count].starts_with(b"GET /v1/models HTTP/1.0\r\n"));
        stream.write_all(answer.as_bytes()).expect("it reads");
    });
    address
}

#[test]
fn the_models_of_a_local_server_are_listed() {
    let body = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"data\":[{\"id\":\"qwen3\"},{\"id\":\"nomic-embed-text\"},{\"id\":\"a\\u001b[2J\"}]}";
    for suffix in ["", "/v1"] {
        let address = serve_once(body);
        let found = list_server_models("ollama", &format!("http://{address}{suffix}"));
        let names: Vec<(String, String)> =
            found.into_iter().map(|choice| (choice.origin.words(), choice.model)).collect();
        assert_eq!(names, [(format!("a server answers at {address}"), "ollama:qwen3".to_owned())]);
    }
}

#[test]
fn other_answers_and_other_machines_offer_nothing() {
    for answer in ["", "HTTP/1.1 404 Not Found\r\n\r\nno", "HTTP/1.1 200 OK\r\n\r\n{\"data\":3}"] {
        assert_eq!(list_server_models("ollama", &serve_once(answer)), []);
    }
    for address in ["http://192.0.2.1:80/v1", "nonsense", ""] {
        assert_eq!(local_address(address), None, "{address}");
    }
}

/// Every provider that is known by name and needs a key is offered once its variables are set.
#[cfg(feature = "models")]
#[test]
fn the_models_of_every_provider_with_a_key_are_offered() {
    let all = |name: &str| match name {
        "AWS_REGION" => Some("eu-central-1".to_owned()),
        "GOOGLE_CLOUD_PROJECT" => Some("shop".to_owned()),
        "AZURE_OPENAI_ENDPOINT" => Some("https://me.openai.azure.com".to_owned()),
        name if name.ends_with("_KEY") || name.contains("TOKEN") => Some("k".to_owned()),
        _ => None,
    };
    let offered = |var: &dyn Fn(&str) -> Option<String>| {
        let mut found = FoundModels::default();
        add_keyed_models(&mut found, var);
        let models: Vec<String> = found
            .choices
            .iter()
            .map(|choice| format!("{} ({})", choice.model, choice.origin.words()))
            .collect();
        (models, found.unnamed)
    };
    let (models, unnamed) = offered(&all);
    assert_eq!((models.len(), unnamed), (KEYED_MODELS.len() - 1, vec!["azure"]), "{models:?}");
    assert_eq!(offered(&|_| None), (vec![], vec![]));
    let groq = |name: &str| (name == "GROQ_API_KEY").then(|| "k".to_owned());
    assert_eq!(offered(&groq).0, ["groq:llama-3.3-70b-versatile (GROQ_API_KEY is set)"]);
    let google = |name: &str| (name == "GOOGLE_API_KEY").then(|| "k".to_owned());
    assert_eq!(offered(&google).0, ["gemini:gemini-2.5-flash (its variables are set)"]);
    // Another server has other models.
    let gateway = |name: &str| name.starts_with("OPENAI_").then(|| "http://127.0.0.1:9".to_owned());
    assert_eq!(offered(&gateway), (vec![], vec![]));
    // Every known provider that needs a key is in the list, by one of its names.
    for provider in windlass_models::ProviderRegistry::from_vars(|_| None).providers() {
        let is_listed = KEYED_MODELS.iter().any(|(name, _)| provider.name.split('-').next() == Some(name));
        assert!(is_listed || provider.is_configured, "{}", provider.name);
    }
}
