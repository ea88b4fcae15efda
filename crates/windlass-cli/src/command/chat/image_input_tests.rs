//! Images that a message names.

use windlass::core::item::ContentPart;

use super::attach_images;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nrest";

#[test]
fn existing_images_are_attached_however_their_paths_are_pasted() {
    let folder = tempfile::tempdir().expect("there is room");
    for name in ["a.png", "two words.PNG"] {
        std::fs::write(folder.path().join(name), PNG).expect("it can be written");
    }
    let cases: [(&str, &[&str]); 7] = [
        ("what is in 'two words.PNG'? And (a.png).", &["two words.PNG", "a.png"]),
        ("compare a.png with 'two words.PNG'", &["a.png", "two words.PNG"]),
        ("two\\ words.PNG", &["two words.PNG"]),
        ("\"two words.PNG\" and a.png a.png", &["two words.PNG", "a.png"]),
        ("it's a.png", &["a.png"]),
        ("missing.png and a.txt", &[]),
        ("no image", &[]),
    ];
    for (text, wanted) in cases {
        let message = attach_images(text, folder.path()).expect("they can be read");
        let names: Vec<&str> = message.images.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, wanted, "{text}");
        assert_eq!(message.message.text(), text, "the text stays as it was typed");
        assert_eq!(message.message.content.len(), 1 + wanted.len());
    }
    let url = format!("see file://{}", folder.path().join("a.png").display());
    let message = attach_images(&url, folder.path()).expect("it can be read");
    let Some(ContentPart::Image(image)) = message.message.content.get(1) else { panic!("there is an image") };
    assert_eq!((image.media_type.as_deref(), image.name.as_deref()), (Some("image/png"), Some("a.png")));
    assert_eq!(image.data.as_deref(), Some(data_encoding::BASE64.encode(PNG).as_str()));
}

#[test]
fn a_file_that_is_no_image_is_refused() {
    let folder = tempfile::tempdir().expect("there is room");
    std::fs::write(folder.path().join("a.png"), "text").expect("it can be written");
    let refused = attach_images("a.png", folder.path()).err().expect("it is refused");
    assert_eq!(
        refused.to_string(),
        format!("`{}` is not an image that a model can read", folder.path().join("a.png").display())
    );
}
