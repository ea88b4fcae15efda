//! Expansion of variables in a configuration: `${NAME}` and `${NAME:-default}`.

/// An expander of variables with a lookup function.
pub(crate) struct VariableExpander<'a> {
    pub(crate) lookup: &'a dyn Fn(&str) -> Option<String>,
}

impl VariableExpander<'_> {
    /// Expands the variables of a text. Expanded values are not expanded again.
    ///
    /// # Errors
    ///
    /// Returns the reason if a variable is malformed, or is not set and has no default.
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
            // As in a shell, the default of `:-` also applies to a variable that is set to the empty string.
            match ((self.lookup)(name), otherwise) {
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
