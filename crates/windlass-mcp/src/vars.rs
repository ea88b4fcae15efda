//! Variables in a configuration: `${NAME}` and `${NAME:-otherwise}`.

pub(crate) struct Variables<'a> {
    pub(crate) look_up: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    /// The text with its variables put in. What was put in is not looked at again.
    pub(crate) fn expand(&self, text: &str) -> Result<String, String> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            expanded.push_str(&rest[..at]);
            let inside = &rest[at + 2..];
            let Some(end) = inside.find('}') else {
                return Err("a `${` has no `}`".to_owned());
            };
            let (name, otherwise) = match inside[..end].split_once(":-") {
                Some((name, otherwise)) => (name, Some(otherwise)),
                None => (&inside[..end], None),
            };
            if name.is_empty() || !name.chars().all(|one| one.is_ascii_alphanumeric() || one == '_') {
                return Err(format!("`${{{name}}}` is not the name of a variable"));
            }
            // As in a shell, `:-` also stands in for a variable that is set to nothing.
            match ((self.look_up)(name), otherwise) {
                (Some(value), None) => expanded.push_str(&value),
                (Some(value), Some(_)) if !value.is_empty() => expanded.push_str(&value),
                (_, Some(otherwise)) => expanded.push_str(otherwise),
                (None, None) => return Err(format!("the variable `{name}` is not set")),
            }
            rest = &inside[end + 1..];
        }
        expanded.push_str(rest);
        Ok(expanded)
    }
}
