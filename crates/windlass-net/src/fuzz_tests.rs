//! Fuzzing of addresses, proxies and compressed bodies.

#![cfg(target_os = "linux")]

use windlass_fuzz::FuzzTarget;

use super::address::is_numeric_host;
use super::{BaseUrl, GzipReader, ProxySettings, is_public_address};

const SEEDS: [&str; 8] = [
    "https://api.example/v1?api-version=2",
    "http://[::ffff:127.0.0.1]:8080/a/../b",
    "http://user:pass%40word@proxy.example:3128",
    "socks5h://[fe80::1%25eth0]:1080",
    "0x7f.1",
    "2130706433",
    "localhost,.example.org,10.0.0.0/8,*,[::1]:80",
    "http://ex\u{e4}mple/\u{202e}?#",
];

#[test]
fn addresses_and_proxies() {
    let words = ["://", "@", "[", "]", "%", ":65536", "..", "/8", "0x", "\u{0}"];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "net_addresses").seeds(SEEDS).words(words);
    target.run(module_path!(), "addresses_and_proxies", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(base) = BaseUrl::parse(&text) {
            assert!(!base.host().contains(['/', '@']), "{}", base.host());
            let _ = base.join("/path?query=1");
        }
        let _ = is_numeric_host(&text);
        if let Ok(address) = text.trim().parse() {
            let _ = is_public_address(address);
        }
        let proxies = ProxySettings::from_vars(|_| Some(text.to_string()));
        let _ = format!("{proxies:?}");
        let _ = ProxySettings::everywhere(&text).map(|proxies| proxies.except(&text));
    });
}

#[test]
fn compressed_bodies() {
    let compress = |bytes: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut packed, bytes).expect("it is memory");
        packed.finish().expect("it is memory")
    };
    let seeds = [compress(b"{\"a\": 1}"), compress(&[0; 200_000]), [compress(b"a"), compress(b"b")].concat()];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "net_gzip").seeds(seeds);
    target.run(module_path!(), "compressed_bodies", |input| {
        for size in [1, 64, 4096] {
            let mut gzip = GzipReader::new();
            for piece in input.chunks(size) {
                if gzip.decode(piece).is_err() {
                    break;
                }
            }
        }
    });
}
