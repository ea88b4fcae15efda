//! The front matter of a `SKILL.md`: YAML between two lines `---`, before the instructions.

use saphyr_parser::{Event, Parser};

/// Maximum length of a skill's name.
const MAX_NAME: usize = 64;
/// Maximum length of a skill's description, in characters.
const MAX_DESCRIPTION: usize = 1024;

/// The fields of the front matter that matter here. Others, such as a licence, are permitted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FrontMatter {
    pub(super) name: String,
    pub(super) description: String,
}

/// Splits the text of a `SKILL.md` into its front matter and its instructions.
///
/// # Errors
///
/// Returns the reason if there is no valid front matter.
pub(super) fn parse_skill(text: &str) -> Result<(FrontMatter, &str), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let missing = || "it does not begin with `---`, a name and a description".to_owned();
    let mut lines = text.split_inclusive('\n');
    let first = lines.next().filter(|line| line.trim_end() == "---").ok_or_else(missing)?;
    let mut end = first.len();
    for line in lines {
        if line.trim_end() == "---" {
            let front = parse_fields(&text[first.len()..end])?;
            return Ok((front, text[end + line.len()..].trim()));
        }
        end += line.len();
    }
    Err("its front matter has no end: write `---` after it".to_owned())
}

fn parse_fields(yaml: &str) -> Result<FrontMatter, String> {
    let (mut name, mut description) = (None, None);
    // The key whose value follows, at the top level.
    let mut key: Option<String> = None;
    let mut depth = 0_usize;
    for event in Parser::new_from_str(yaml) {
        let (event, _) = event.map_err(|error| format!("its front matter is no YAML: {error}"))?;
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) => depth += 1,
            Event::MappingEnd | Event::SequenceEnd => {
                depth = depth.saturating_sub(1);
                if depth == 1 {
                    key = None;
                }
            }
            Event::Alias(_) if depth == 1 => key = None,
            Event::Scalar(text, ..) if depth == 1 => match key.take() {
                None => key = Some(text.into_owned()),
                Some(key) => match key.as_str() {
                    "name" => name = Some(text.into_owned()),
                    "description" => description = Some(text.into_owned()),
                    _ => {}
                },
            },
            _ => {}
        }
    }
    let name = name.ok_or("its front matter has no `name`")?;
    let description = description.ok_or("its front matter has no `description`")?;
    Ok(FrontMatter { name: valid_name(name)?, description: valid_description(&description)? })
}

fn valid_name(name: String) -> Result<String, String> {
    let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_valid = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.split('-').all(|word| !word.is_empty() && word.bytes().all(is_letter));
    if is_valid {
        return Ok(name);
    }
    Err(format!(
        "its name `{}` is not valid: use small letters, digits and single hyphens, at most {MAX_NAME}",
        name.escape_debug()
    ))
}

/// Returns the description on one line: it becomes an entry of a list.
fn valid_description(text: &str) -> Result<String, String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match text.chars().count() {
        0 => Err("its description is empty".to_owned()),
        count if count > MAX_DESCRIPTION => {
            Err(format!("its description has {count} letters, more than {MAX_DESCRIPTION}"))
        }
        _ if text.contains(char::is_control) => Err("its description has control characters".to_owned()),
        _ => Ok(text),
    }
}

#[cfg(test)]
#[path = "front_matter_tests.rs"]
mod tests;
