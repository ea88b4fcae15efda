use super::{FrontMatter, MAX_DESCRIPTION, MAX_NAME, parse_skill};

fn parsed(yaml: &str) -> Result<FrontMatter, String> {
    parse_skill(&format!("---\n{yaml}---\nDo it.\n")).map(|(front, body)| {
        assert_eq!(body, "Do it.");
        front
    })
}

#[test]
fn the_usual_forms_of_yaml_are_read() {
    let want =
        FrontMatter { name: "fill-forms".to_owned(), description: "Fills forms: all of them.".to_owned() };
    for yaml in [
        "name: fill-forms\ndescription: \"Fills forms: all of them.\"\n",
        "name: 'fill-forms'\ndescription: >-\n  Fills forms:\n  all of them.\nlicense: MIT\n",
        "description: |\n  Fills forms:\n  all of them.\nmetadata:\n  name: other\n  tags: [name, description]\nname: fill-forms\n",
        "allowed-tools: [Read]\nname: fill-forms # ours\ndescription: \"Fills\\x20forms: all\n  of them.\"\n",
    ] {
        assert_eq!(parsed(yaml).as_ref(), Ok(&want), "{yaml}");
    }
    let windows = "\u{feff}---\r\nname: a\r\ndescription: b\r\n---\r\nDo it.\r\n";
    assert_eq!(parse_skill(windows).expect("a skill").1, "Do it.");
}

#[test]
fn what_is_no_skill_is_told() {
    let long = format!("name: a\ndescription: {}\n", "x".repeat(1025));
    for (yaml, why) in [
        ("description: b\n", "no `name`"),
        ("name: a\n", "no `description`"),
        ("name: ../up\ndescription: b\n", "is not valid"),
        ("name: Upper\ndescription: b\n", "is not valid"),
        ("name: a--b\ndescription: b\n", "is not valid"),
        ("name: a\ndescription: \"\"\n", "is empty"),
        ("name: a\ndescription: \"b\\u001b[2J\"\n", "control characters"),
        ("name: [a\ndescription: b\n", "no YAML"),
        (long.as_str(), "more than 1024"),
    ] {
        let error = parsed(yaml).expect_err(yaml);
        assert!(error.contains(why), "{yaml}: {error}");
    }
    assert!(parse_skill("# Just a page\n").expect_err("no front").contains("does not begin"));
    assert!(parse_skill("---\nname: a\n").expect_err("no end").contains("has no end"));
}

#[cfg(target_os = "linux")]
#[test]
fn fuzz_front_matter_is_refused_or_read() {
    let seeds = [
        "---\nname: pdf-forms\ndescription: >-\n  Fills in\n  forms.\nlicense: MIT\nmetadata: { a: [1, 'b'], \"c\": |\n  x\n }\n---\nDo it.",
        "\u{feff}---\r\nname: &a x\r\ndescription: *a\r\n---\r\n",
        "---\nname: x\ndescription: [[[[[[{{{{{{\n---\n",
        "---\n? name\n: x\n? [a, b]\n: y\ndescription: \"\\u202e\\x1b\"\n---\n",
        "---\na: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nname: n\ndescription: d\n---\n",
        "---\n%YAML 1.2\n%TAG ! tag:x,2000:\n--- !!map\nname: !!str x\ndescription: 'd'\n...\n---\n",
    ];
    let words =
        ["---\n", "name: ", "description: ", "&a ", "*a", "!!str ", "|\n", "- ", "? ", "{", "[", "\t"];
    let target =
        windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "skill").seeds(seeds).words(words);
    target.run(module_path!(), "fuzz_front_matter_is_refused_or_read", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok((front, instructions)) = parse_skill(&text) {
            assert!(front.name.len() <= MAX_NAME && front.description.chars().count() <= MAX_DESCRIPTION);
            assert!(!front.description.contains(char::is_control), "{front:?}");
            assert!(instructions.len() < text.len());
        }
    });
}
