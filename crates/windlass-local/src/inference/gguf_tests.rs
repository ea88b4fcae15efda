use std::io::Cursor;

use super::*;
use crate::inference::test_model::{GgufBuilder, tiny_model};

#[test]
fn values_and_tensors_are_read() {
    let builder = tiny_model("llama").flag("a.flag", true).float("a.float", 1.5).numbers("a.list", &[1, -2]);
    let mut file = builder.file().expect("readable");
    assert_eq!(file.text("general.architecture"), Some("llama"));
    assert_eq!(file.integer("llama.context_length"), Some(16_384));
    assert_eq!((file.flag("a.flag"), file.float("a.float")), (Some(true), Some(1.5)));
    assert_eq!(file.integers("a.list"), [1, -2]);
    assert_eq!(file.texts("tokenizer.ggml.merges").expect("a list")[0], "h e");
    assert!(file.texts("general.architecture").is_err());
    assert_eq!(file.tensor("blk.1.ffn_down.weight").expect("there").dimensions, [64, 32]);
    let first = file.tensor_bytes("blk.0.attn_norm.weight", 128).expect("read");
    assert_eq!(
        first,
        tiny_model("llama")
            .file()
            .expect("readable")
            .tensor_bytes("blk.0.attn_norm.weight", 128)
            .expect("read")
    );
}

#[test]
fn a_file_that_names_impossible_lengths_is_refused() {
    let whole = tiny_model("llama").bytes();
    // Every prefix is refused or lacks tensors, and none reserves memory for what is not there.
    for end in (0..2000).chain([whole.len() - 1]) {
        if let Ok(mut file) = GgufFile::read(Cursor::new(whole[..end].to_vec())) {
            assert!(file.tensor_bytes("blk.1.ffn_down.weight", 64 * 32 * 4).is_err(), "{end}");
        }
    }
    let huge = GgufBuilder::default().value("a.text", 8, &u64::MAX.to_le_bytes()).file();
    assert!(huge.is_err_and(|error| error.contains("more than the file has")));
    let nested = [9_u32.to_le_bytes().as_slice(), &1_u64.to_le_bytes()].concat().repeat(100);
    assert!(GgufBuilder::default().value("a.list", 9, &nested).file().is_err());
    assert!(
        GgufFile::read(Cursor::new(b"GGML----".to_vec())).is_err_and(|error| error == "it is no GGUF file")
    );
}
