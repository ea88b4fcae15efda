//! Local servers and their models.

use std::io::{Read, Write};
use std::net::TcpListener;

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
