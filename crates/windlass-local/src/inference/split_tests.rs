use super::*;

fn pieces<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    let mut found = Vec::new();
    SplitRules::from_name(name).expect("known").split(text, |piece| {
        found.push(piece);
        true
    });
    assert_eq!(found.concat(), text, "nothing is left out");
    found
}

#[test]
fn text_is_split_as_each_family_does() {
    let text = "Hello  world's 2024!\n\n  don'T";
    assert_eq!(
        pieces("gpt-2", text),
        ["Hello", " ", " world", "'s", " 2024", "!", "\n\n ", " don", "'", "T"]
    );
    assert_eq!(
        pieces("smollm", text),
        ["Hello", " ", " world", "'s", " ", "2", "0", "2", "4", "!", "\n\n ", " don", "'", "T"]
    );
    assert_eq!(
        pieces("qwen2", text),
        ["Hello", " ", " world", "'s", " ", "2", "0", "2", "4", "!\n\n", " ", " don", "'T"]
    );
    assert_eq!(
        pieces("llama-bpe", text),
        ["Hello", " ", " world", "'s", " ", "202", "4", "!\n\n", " ", " don", "'T"]
    );
}

/// A digit ends the text before it, so that the spaces before a digit are one piece.
#[test]
fn digits_divide_text_before_all_else() {
    assert_eq!(pieces("smollm", "a   12"), ["a", "   ", "1", "2"]);
    assert_eq!(pieces("gpt-2", "a   12"), ["a", "  ", " 12"]);
    assert_eq!(pieces("qwen2", "a   12"), ["a", "  ", " ", "1", "2"]);
}

#[test]
fn letters_are_those_of_unicode() {
    assert_eq!(pieces("qwen2", "Straße für 你好 _x"), ["Straße", " für", " 你好", " _", "x"]);
    // A combining mark is no letter, and a Roman numeral is a number.
    assert_eq!(pieces("gpt-2", "e\u{301}x Ⅷ"), ["e", "\u{301}", "x", " Ⅷ"]);
    assert_eq!(pieces("llama-bpe", "\ta\r\n\r\nb \n"), ["\ta", "\r\n\r\n", "b", " \n"]);
}

#[test]
fn every_text_is_kept_whole() {
    let alphabet =
        ['a', 'Z', '1', ' ', '\n', '\r', '\t', '\'', 's', '!', 'é', '\u{301}', '你', '🦀', '\u{a0}'];
    let mut random = 11_usize;
    for _ in 0..3000 {
        let text: String = (0..12)
            .map(|_| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                alphabet[(random >> 33) % alphabet.len()]
            })
            .collect();
        for name in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
            pieces(name, &text);
        }
    }
}

#[test]
fn an_unknown_name_is_refused() {
    let refusal = |name: &str| SplitRules::from_name(name).expect_err("refused");
    assert!(refusal("tekken").contains("`tekken`") && refusal("tekken").contains("qwen2"));
    assert!(refusal("default").contains("`default`"));
    assert!(refusal("").contains("does not name its pre-tokeniser"));
}
