//! Analysis of a query: its weighted terms, its phrases, and the part of a long query that asks.

use std::collections::BTreeMap;
use std::ops::Range;

use super::phrase::{PhraseKind, QueryPhrase};
use super::rank::QueryTerm;
use crate::chunk::estimate_tokens;
use crate::text::{TermKind, TextAnalyser};

/// Number of tokens above which a query is long: it is a question with a context, such as a pasted log.
const LONG_QUERY_TOKENS: usize = 100;
/// Maximum number of words of a long query that are taken as its question.
const QUESTION_WORDS: usize = 32;
/// Weight of all terms of the context together, relative to those of the question.
const CONTEXT_WEIGHT: f32 = 0.5;
/// Maximum number of bytes of a query that are analysed; of a longer one, the start, the question and the end.
const MAX_ANALYSED_BYTES: usize = 64 << 10;
/// Saturation of repeated terms: the weight of a term approaches this number plus 1.
const REPETITION_K3: f32 = 7.0;
/// Weight of a phrase that the query has as one word with digits or as an identifier, or in quotation marks; of a
/// hyphenated word; and of neighbouring words.
const EXACT_WEIGHT: f32 = 2.0;
const HYPHENATED_WEIGHT: f32 = 0.3;
const NEIGHBOURS_WEIGHT: f32 = 0.15;
/// Weight of the parts of a word of numbers, such as a version, which mean little one by one.
const NUMBER_PART_WEIGHT: f32 = 0.3;
/// Maximum number of phrases of each kind.
const MAX_PHRASES: usize = 12;
/// Maximum distance of neighbouring words in a query, which counts the stop words between them.
const MAX_DISTANCE: u32 = 4;

/// The terms and phrases of a query.
#[derive(Debug, Default, PartialEq)]
pub(super) struct QueryAnalysis {
    pub(super) terms: Vec<QueryTerm>,
    pub(super) phrases: Vec<QueryPhrase>,
}

/// Returns the part of a query that asks: all of a short query; of a long one, the sentence with the last question
/// mark, or else the last line.
pub(super) fn find_question(query: &str) -> Range<usize> {
    if estimate_tokens(query) <= LONG_QUERY_TOKENS {
        return 0..query.len();
    }
    let query = query.trim_end();
    let marks = ['?', '？', '؟'];
    // A question mark inside a word is part of an address.
    let is_end = |at: usize, mark: &str| {
        query[at + mark.len()..].chars().next().is_none_or(|c| !c.is_ascii_alphanumeric())
    };
    let asked =
        query.rmatch_indices(marks).find(|(at, mark)| is_end(*at, mark)).map(|(at, mark)| at + mark.len());
    let end = asked.unwrap_or(query.len());
    let body = query[..end].trim_end_matches(marks);
    let is_sentence_end = |at: usize, mark: &str| {
        matches!(mark, "\n" | "。" | "！" | "？" | "؟")
            || body[at + mark.len()..].starts_with(char::is_whitespace)
    };
    let mut start = body
        .rmatch_indices(['.', '!', '?', '\n', '。', '！', '？', '؟'])
        .find(|(at, mark)| {
            is_sentence_end(*at, mark) && body[at + mark.len()..].split_whitespace().count() >= 3
        })
        .map_or(0, |(at, mark)| at + mark.len());
    // Without punctuation, the words before the question mark ask.
    if let Some((at, _)) = body[start..].rmatch_indices(char::is_whitespace).nth(QUESTION_WORDS - 1) {
        start += at;
    }
    start..end
}

/// Returns the weighted terms and the phrases of a query. Stop words count only if the query has no other terms.
pub(super) fn analyse_query(query: &str, analyser: &mut TextAnalyser) -> QueryAnalysis {
    let question = find_question(query);
    let mut asked = TermCollector::default();
    asked.add_text(&query[question.clone()], analyser);
    if question.len() == query.len() {
        return asked.into_analysis(&BTreeMap::new());
    }
    let mut context = TermCollector::default();
    let (before, after) = (&query[..question.start], &query[question.end..]);
    let cut = before.floor_char_boundary(MAX_ANALYSED_BYTES / 2);
    context.add_text(&before[..cut], analyser);
    let rest = &before[cut..];
    context.add_text(
        &rest[rest.ceil_char_boundary(rest.len().saturating_sub(MAX_ANALYSED_BYTES / 4))..],
        analyser,
    );
    context.add_text(&after[..after.floor_char_boundary(MAX_ANALYSED_BYTES / 4)], analyser);
    asked.into_analysis(&context.words)
}

/// The terms and phrases of a text.
#[derive(Default)]
struct TermCollector {
    words: BTreeMap<String, f32>,
    stop_words: BTreeMap<String, f32>,
    exact: Vec<QueryPhrase>,
    neighbours: Vec<QueryPhrase>,
    /// Position of the next word.
    position: u32,
    /// The last content word and its position.
    last_word: Option<(String, u32)>,
}

impl TermCollector {
    fn add_text(&mut self, text: &str, analyser: &mut TextAnalyser) {
        let is_quoted = text.matches('"').count() >= 2;
        for (at, part) in text.split('"').enumerate() {
            let mut quoted: Vec<(String, u32)> = Vec::new();
            for token in part.split_whitespace() {
                let terms = self.add_token(token, analyser);
                if is_quoted && at % 2 == 1 {
                    quoted.extend(terms);
                }
            }
            self.add_exact(quoted, EXACT_WEIGHT);
        }
    }

    /// Adds a word of the query and returns its terms with their positions.
    fn add_token(&mut self, token: &str, analyser: &mut TextAnalyser) -> Vec<(String, u32)> {
        let mut terms: Vec<(String, TermKind)> = Vec::new();
        analyser.analyse(token, &mut |term, kind| terms.push((term.to_owned(), kind)));
        let is_number = |term: &str| term.bytes().all(|byte| byte.is_ascii_digit());
        let own = terms.iter().filter(|(_, kind)| kind.has_own_position());
        let is_compound = own.clone().count() > 1 && token.is_ascii();
        let is_version = is_compound && own.clone().all(|(term, _)| is_number(term));
        let is_identifier = terms.iter().any(|(_, kind)| *kind == TermKind::Identifier);
        let mut placed = Vec::new();
        for (term, kind) in terms {
            let weight = if is_version { NUMBER_PART_WEIGHT } else { 1.0 };
            match kind {
                TermKind::Word | TermKind::Identifier => {
                    *self.words.entry(term.clone()).or_default() += weight
                }
                TermKind::StopWord => *self.stop_words.entry(term.clone()).or_default() += 1.0,
                TermKind::Character => {}
            }
            if !kind.has_own_position() {
                continue;
            }
            if kind == TermKind::Word {
                if let Some((last, before)) = self.last_word.take()
                    && !is_compound
                    && self.position - before <= MAX_DISTANCE
                    && self.neighbours.len() < MAX_PHRASES
                {
                    let terms = vec![(last, 0), (term.clone(), self.position - before)];
                    let kind = PhraseKind::Neighbours;
                    self.neighbours.push(QueryPhrase { terms, weight: NEIGHBOURS_WEIGHT, kind });
                }
                self.last_word = Some((term.clone(), self.position));
            }
            placed.push((term, self.position));
            self.position += 1;
        }
        if is_compound {
            let word = token.trim_matches(|c: char| c.is_ascii_punctuation());
            let is_letters =
                word.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'/' | b'\''));
            let is_hyphenated = is_letters && !is_identifier;
            self.add_exact(placed.clone(), if is_hyphenated { HYPHENATED_WEIGHT } else { EXACT_WEIGHT });
        }
        placed
    }

    fn add_exact(&mut self, terms: Vec<(String, u32)>, weight: f32) {
        let Some(first) = terms.first().map(|(_, position)| *position) else { return };
        if terms.len() > 1 && self.exact.len() < MAX_PHRASES {
            let terms = terms.into_iter().take(MAX_PHRASES).map(|(term, at)| (term, at - first)).collect();
            self.exact.push(QueryPhrase { terms, weight, kind: PhraseKind::Exact });
        }
    }

    /// Returns the analysis of a question and its context.
    fn into_analysis(self, context: &BTreeMap<String, f32>) -> QueryAnalysis {
        let saturate = |count: f32| {
            if count <= 1.0 { count } else { (REPETITION_K3 + 1.0) * count / (REPETITION_K3 + count) }
        };
        let asked = if self.words.is_empty() && context.is_empty() { self.stop_words } else { self.words };
        let mut weights: BTreeMap<&str, f32> =
            asked.iter().map(|(term, count)| (term.as_str(), saturate(*count))).collect();
        let whole: f32 = weights.values().sum();
        let around: f32 = context.values().map(|count| saturate(*count)).sum();
        let factor =
            if whole > 0.0 { (CONTEXT_WEIGHT * whole / around.max(f32::MIN_POSITIVE)).min(1.0) } else { 1.0 };
        for (term, count) in context {
            *weights.entry(term).or_default() += saturate(*count) * factor;
        }
        let terms =
            weights.into_iter().map(|(term, weight)| QueryTerm { term: term.to_owned(), weight }).collect();
        let mut phrases = self.exact;
        phrases.extend(self.neighbours);
        QueryAnalysis { terms, phrases }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn analyse(query: &str) -> QueryAnalysis {
        analyse_query(query, &mut TextAnalyser::default())
    }

    #[test]
    fn the_question_of_a_long_query_is_found() {
        let filler = "word ".repeat(260);
        let log = "2026-01-02 10:00:00 INFO worker 17 took job 42.\n".repeat(40);
        let question = "How do I bleed the pump?";
        for query in [
            format!("{filler}{question}"),
            format!("{log}\n{question}"),
            format!("{question}\n{log}"),
            format!("{log}\nSee https://example.org/a?b=c for more. {question} Thank you."),
        ] {
            let found = &query[find_question(&query)];
            assert!(found.trim().ends_with(question), "{found}");
            assert!(found.split_whitespace().count() <= QUESTION_WORDS + 1, "{found}");
        }
        assert_eq!(find_question("Is it? It is not."), 0..17, "a short query is all question");
        let last_line = format!("{log}bleeding the pump");
        assert_eq!(last_line[find_question(&last_line)].trim(), "bleeding the pump");
    }

    #[test]
    fn context_is_weighed_and_nothing_is_cut() {
        let filler: String = (0..400).map(|at| format!("filler{at} ")).collect();
        let query = format!("{filler}. How do I bleed the pump?");
        let found = analyse(&query);
        let weight =
            |term: &str| found.terms.iter().find(|known| known.term == term).map(|known| known.weight);
        assert_eq!((weight("bleed"), weight("pump")), (Some(1.0), Some(1.0)));
        let around: f32 = (0..400).filter_map(|at| weight(&format!("filler{at}"))).sum();
        assert!((around - CONTEXT_WEIGHT * 2.0).abs() < 1e-3, "{around}");
    }

    #[test]
    fn versions_identifiers_and_quotations_are_phrases() {
        let phrases = |query: &str, kind| {
            let all = analyse(query).phrases;
            all.into_iter()
                .filter(|phrase| phrase.kind == kind)
                .map(|phrase| phrase.terms)
                .collect::<Vec<_>>()
        };
        let terms = |terms: &[(&str, u32)]| {
            terms.iter().map(|(term, at)| ((*term).to_owned(), *at)).collect::<Vec<_>>()
        };
        assert_eq!(phrases("python 3.11.2", PhraseKind::Exact), [terms(&[("3", 0), ("11", 1), ("2", 2)])]);
        assert_eq!(
            phrases("parseHttpHeader", PhraseKind::Exact),
            [terms(&[("pars", 0), ("http", 1), ("header", 2)])]
        );
        assert_eq!(phrases("\"to be\" now", PhraseKind::Exact), [terms(&[("to", 0), ("be", 1)])]);
        assert_eq!(phrases("state of the art", PhraseKind::Neighbours), [terms(&[("state", 0), ("art", 3)])]);
    }
}
