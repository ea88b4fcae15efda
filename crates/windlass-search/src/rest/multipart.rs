//! Parser of `multipart/form-data`.

/// A field of a multipart form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FormField<'a> {
    pub(super) name: String,
    pub(super) filename: Option<String>,
    pub(super) data: &'a [u8],
}

/// Parses the fields of a multipart form; `None` if the body is malformed.
pub(super) fn parse_form<'a>(content_type: &str, body: &'a [u8]) -> Option<Vec<FormField<'a>>> {
    let boundary = content_type.split(';').find_map(|word| word.trim().strip_prefix("boundary="))?;
    let boundary = boundary.trim_matches('"');
    if boundary.is_empty() || boundary.len() > 200 {
        return None;
    }
    let mark = format!("--{boundary}").into_bytes();
    let between = format!("\r\n--{boundary}").into_bytes();
    let mut rest = &body[find_bytes(body, &mark)? + mark.len()..];
    let mut found = Vec::new();
    loop {
        if rest.starts_with(b"--") || found.len() > 64 {
            return Some(found);
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let head_end = find_bytes(rest, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&rest[..head_end]).into_owned();
        let data = &rest[head_end + 4..];
        let end = find_bytes(data, &between)?;
        let disposition =
            head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-disposition"))?;
        found.push(FormField {
            name: header_parameter(disposition, "name")?,
            filename: header_parameter(disposition, "filename"),
            data: &data[..end],
        });
        rest = &data[end + between.len()..];
    }
}

fn header_parameter(line: &str, name: &str) -> Option<String> {
    let start = format!("{name}=");
    // A quoted value may have semicolons.
    let mut rest = line;
    while let Some(at) = rest.find(&start) {
        let is_start = rest[..at].trim_end().ends_with(';');
        rest = &rest[at + start.len()..];
        if !is_start {
            continue;
        }
        let value = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next().unwrap_or(quoted),
            None => rest.split(';').next().unwrap_or(rest).trim(),
        };
        return Some(value.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n"));
    }
    None
}

/// Returns the first occurrence of `what`. Only its first byte is compared at most places, because bodies are large.
fn find_bytes(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let first = *what.first()?;
    let mut at = 0;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == first)?;
        if bytes[at..].starts_with(what) {
            return Some(at);
        }
        at += 1;
    }
}
