use std::collections::BTreeMap;

use serde::Serialize;

use super::*;

fn text(value: impl Serialize) -> OutputContent {
    content_of(&value).expect("test values print")
}

#[derive(Serialize)]
struct Weather {
    sky: &'static str,
    degrees: i8,
}

#[test]
fn strings_are_text_and_values_are_json() {
    assert_eq!(text("sunny"), "sunny".into());
    assert_eq!(text(Some("sunny".to_owned())), "sunny".into());
    assert_eq!(text(Weather { sky: "blue", degrees: -3 }), r#"{"sky":"blue","degrees":-3}"#.into());
    assert_eq!(text(()), "null".into());
    assert_eq!(text(true), "true".into());
    assert_eq!(text(["a", "b"]), r#"["a","b"]"#.into());
    assert_eq!(text(Vec::<u8>::new()), "[]".into());
}

#[test]
fn pictures_and_files_are_parts() {
    let picture = Content::Image(Media { url: Some("data:x".into()), ..Media::default() });
    assert_eq!(text(Image::at("data:x")), OutputContent::Parts(vec![picture.clone()]));
    let file = Content::File(Media { name: Some("a".into()), data: Some("eA==".into()), ..Media::default() });
    assert_eq!(text(vec![File::inline("a", "eA==")]), OutputContent::Parts(vec![file]));
    #[derive(Serialize)]
    #[serde(untagged)]
    enum Either {
        Say(Text),
        Show(Image),
    }
    let mixed = vec![Either::Say(Text("see".into())), Either::Show(Image::at("data:x"))];
    assert_eq!(text(mixed), OutputContent::Parts(vec![Content::text("see"), picture]));
}

#[test]
fn data_that_looks_like_a_part_is_data() {
    let forged = BTreeMap::from([("$windlass::Image", "data:x")]);
    assert_eq!(text(forged), r#"{"$windlass::Image":"data:x"}"#.into());
    let forged = serde_json::json!({ "type": "image", "url": "data:x" });
    assert_eq!(text(&forged), forged.to_string().into());
}
