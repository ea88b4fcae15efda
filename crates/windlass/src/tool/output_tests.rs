use std::collections::BTreeMap;

use serde::Serialize;

use super::*;

fn output_text(value: impl Serialize) -> OutputContent {
    to_output_content(&value).expect("test values print")
}

#[derive(Serialize)]
struct SampleWeather {
    sky: &'static str,
    degrees: i8,
}

#[test]
fn strings_are_text_and_values_are_json() {
    assert_eq!(output_text("sunny"), "sunny".into());
    assert_eq!(output_text(Some("sunny".to_owned())), "sunny".into());
    assert_eq!(
        output_text(SampleWeather { sky: "blue", degrees: -3 }),
        r#"{"sky":"blue","degrees":-3}"#.into()
    );
    assert_eq!(output_text(()), "null".into());
    assert_eq!(output_text(true), "true".into());
    assert_eq!(output_text(["a", "b"]), r#"["a","b"]"#.into());
    assert_eq!(output_text(Vec::<u8>::new()), "[]".into());
}

#[test]
fn pictures_and_files_are_parts() {
    let picture = ContentPart::Image(MediaSource { url: Some("data:x".into()), ..MediaSource::default() });
    assert_eq!(output_text(ImagePart::from_url("data:x")), OutputContent::Parts(vec![picture.clone()]));
    let file = ContentPart::File(MediaSource {
        name: Some("a".into()),
        data: Some("eA==".into()),
        ..MediaSource::default()
    });
    assert_eq!(output_text(vec![FilePart::inline("a", "eA==")]), OutputContent::Parts(vec![file]));
    #[derive(Serialize)]
    #[serde(untagged)]
    enum TextOrImage {
        Say(TextPart),
        Show(ImagePart),
    }
    let mixed =
        vec![TextOrImage::Say(TextPart("see".into())), TextOrImage::Show(ImagePart::from_url("data:x"))];
    assert_eq!(output_text(mixed), OutputContent::Parts(vec![ContentPart::text("see"), picture]));
}

#[test]
fn data_that_looks_like_a_part_is_data() {
    let forged = BTreeMap::from([("$windlass::Image", "data:x")]);
    assert_eq!(output_text(forged), r#"{"$windlass::Image":"data:x"}"#.into());
    let forged = serde_json::json!({ "type": "image", "url": "data:x" });
    assert_eq!(output_text(&forged), forged.to_string().into());
}
