//! Measures the names and doc comments of the workspace and holds them to the limits of `CONTRIBUTING.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use crate::definitions::{Definition, ItemKind, list_definitions};

/// Greatest share of type names that may consist of one word, in percent.
const ONE_WORD_TYPES: f64 = 25.0;
/// Greatest share of types that may have the name of another type, in percent.
const SHARED_TYPE_NAMES: f64 = 5.0;
/// Greatest share of doc comments that may begin with a question word, in percent.
const QUESTION_SUMMARIES: f64 = 3.0;

/// First words that turn a summary line into an indirect question.
const QUESTION_WORDS: [&str; 7] = ["What", "Who", "Whose", "Where", "Whether", "How", "When"];

/// Prints the measurements and fails if one is above its limit.
pub(crate) fn check(root: &Path) -> ExitCode {
    let Some(definitions) = read(root) else { return ExitCode::from(2) };
    let types: Vec<&Definition> = definitions.iter().filter(|definition| is_type(definition)).collect();
    let one_word: Vec<&&Definition> =
        types.iter().filter(|definition| count_words(&definition.name) == 1).collect();

    let mut places: BTreeMap<&str, Vec<&Definition>> = BTreeMap::new();
    for definition in &types {
        places.entry(&definition.name).or_default().push(definition);
    }
    let shared: Vec<_> = places.iter().filter(|(_, definitions)| definitions.len() > 1).collect();
    let sharing_types = shared.iter().map(|(_, definitions)| definitions.len()).sum();

    let documented: Vec<&Definition> =
        definitions.iter().filter(|definition| !definition.summary.is_empty()).collect();
    let questions: Vec<&&Definition> =
        documented.iter().filter(|definition| begins_with_question_word(&definition.summary)).collect();

    let measurements = [
        Measurement {
            subject: "type names of one word",
            count: one_word.len(),
            total: types.len(),
            limit: ONE_WORD_TYPES,
            examples: one_word.iter().map(|definition| place(definition)).collect(),
        },
        Measurement {
            subject: "types that share their name with another type",
            count: sharing_types,
            total: types.len(),
            limit: SHARED_TYPE_NAMES,
            examples: shared
                .iter()
                .map(|(name, definitions)| {
                    let files: BTreeSet<_> =
                        definitions.iter().map(|definition| definition.file.display().to_string()).collect();
                    format!("{name}: {}", files.into_iter().collect::<Vec<_>>().join(", "))
                })
                .collect(),
        },
        Measurement {
            subject: "doc comments that begin with a question word",
            count: questions.len(),
            total: documented.len(),
            limit: QUESTION_SUMMARIES,
            examples: questions
                .iter()
                .map(|definition| format!("{}: {}", place(definition), definition.summary))
                .collect(),
        },
    ];
    let mut is_within_limits = true;
    for measurement in &measurements {
        is_within_limits &= measurement.report();
    }
    if is_within_limits { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints every definition as a tab-separated line.
pub(crate) fn list(root: &Path) -> ExitCode {
    let Some(definitions) = read(root) else { return ExitCode::from(2) };
    for definition in definitions {
        println!(
            "{}\t{}\t{}\t{:?}\t{}\t{}\t{}",
            definition.file.display(),
            definition.line,
            definition.column,
            definition.kind,
            if definition.is_public { "pub" } else { "private" },
            definition.path,
            definition.summary
        );
    }
    ExitCode::SUCCESS
}

/// A share of the workspace's names beside its limit.
struct Measurement {
    subject: &'static str,
    count: usize,
    total: usize,
    limit: f64,
    examples: Vec<String>,
}

impl Measurement {
    /// Prints the measurement, with its examples if it is above the limit; returns true if it is not.
    fn report(&self) -> bool {
        let share = 100.0 * self.count as f64 / self.total.max(1) as f64;
        let is_within_limit = share <= self.limit;
        println!("{}: {} of {} ({share:.1} %, limit {} %)", self.subject, self.count, self.total, self.limit);
        if !is_within_limit {
            for example in &self.examples {
                println!("  {example}");
            }
        }
        is_within_limit
    }
}

fn read(root: &Path) -> Option<Vec<Definition>> {
    list_definitions(root).inspect_err(|error| eprintln!("error: {error}")).ok()
}

fn is_type(definition: &Definition) -> bool {
    matches!(definition.kind, ItemKind::Type | ItemKind::Trait | ItemKind::Alias)
}

fn place(definition: &Definition) -> String {
    format!("{}:{} {}", definition.file.display(), definition.line, definition.path)
}

/// Counts the words of a CamelCase name; a run of capitals is one word, as in `HTMLReader`.
fn count_words(name: &str) -> usize {
    let letters: Vec<char> = name.chars().collect();
    let mut words = 0;
    for (index, letter) in letters.iter().enumerate() {
        let follows_capital = index > 0 && letters[index - 1].is_uppercase();
        let precedes_lowercase = letters.get(index + 1).is_some_and(|next| next.is_lowercase());
        if letter.is_uppercase() && (!follows_capital || precedes_lowercase) {
            words += 1;
        }
    }
    words.max(1)
}

fn begins_with_question_word(summary: &str) -> bool {
    let first = summary.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or_default();
    QUESTION_WORDS.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::{begins_with_question_word, count_words};

    #[test]
    fn words_of_a_name_are_counted() {
        let counted = ["Run", "CallPath", "HTMLReader", "ToolV2", "X"].map(|name| (name, count_words(name)));
        assert_eq!(counted, [("Run", 1), ("CallPath", 2), ("HTMLReader", 2), ("ToolV2", 2), ("X", 1)]);
    }

    #[test]
    fn question_words_are_found_at_the_beginning_only() {
        assert!(begins_with_question_word("What a call returns."));
        assert!(begins_with_question_word("Whether it runs."));
        assert!(!begins_with_question_word("Returns what it returns."));
        assert!(!begins_with_question_word("Whatever."));
    }
}
