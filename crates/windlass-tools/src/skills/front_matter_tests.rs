use super::{FrontMatter, parse_skill};

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
