//! Chat templates, rendered as the Python library `transformers` renders them.

use std::sync::atomic::AtomicBool;
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};

use super::tokeniser::{EncodeError, GgufTokeniser, TextMark};
use crate::prompt::PromptMessage;

/// A chat template that was compiled and tried.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    beginning: String,
    end: String,
    has_system_role: bool,
    needs_alternation: bool,
}

/// A conversation that cannot become a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PromptError {
    /// The template refuses it, with its message.
    Template(String),
    /// It cannot be encoded.
    Encoding(EncodeError),
}

const TEMPLATE_NAME: &str = "chat_template";
/// Steps of a template. A template that needs more is stopped.
const MAX_STEPS: u64 = 200_000;
/// Stack on which a template is compiled and rendered. The engine of the templates parses nested expressions by recursion,
/// and frees nested lists by recursion, which a template makes at every few steps. Memory is used only as far as the stack
/// grows.
const RENDER_STACK_BYTES: usize = 128 * 1024 * 1024;

/// Size of a prompt that is always allowed. Beyond it, a prompt may have four times the size of its messages.
const MIN_PROMPT_BYTES: usize = 1024 * 1024;
/// Maximum number of spaces for each level of JSON.
const MAX_INDENT: usize = 16;

/// The ChatML template, for files without a chat template whose vocabulary has its tokens.
const CHAT_ML_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

impl ChatTemplate {
    /// Compiles a template and renders a conversation with it, so that a template that cannot be used is found here.
    /// `beginning` and `end` are the names of those tokens.
    ///
    /// # Errors
    ///
    /// Returns the reason if the template has an error or refuses every conversation.
    pub(crate) fn compile(source: Option<&str>, beginning: &str, end: &str) -> Result<Self, String> {
        on_large_stack(|| Self::compile_here(source, beginning, end))
            .map_err(|error| format!("its chat template cannot be used: {error}"))
    }

    fn compile_here(source: Option<&str>, beginning: &str, end: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: String| -> Result<String, Error> {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            format_time(&format, now.as_secs()).map_err(|why| Error::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_filter("tojson", to_json);
        let source = without_generation_tags(source.unwrap_or(CHAT_ML_TEMPLATE));
        environment.add_template_owned(TEMPLATE_NAME, source).map_err(|error| error.to_string())?;
        let mut template = Self {
            environment,
            beginning: beginning.to_owned(),
            end: end.to_owned(),
            has_system_role: true,
            needs_alternation: false,
        };
        // A template may refuse a system message, or two messages of one role. The messages are fitted to it.
        let message = |role: &'static str| PromptMessage { role, text: "text".to_owned() };
        let plain = ["user", "assistant", "user"].map(message);
        template.render(&plain)?;
        let with_system = ["system", "user", "assistant", "user"].map(message);
        template.has_system_role = template.render(&with_system).is_ok();
        let repeated = ["user", "user", "assistant", "assistant", "user"].map(message);
        template.needs_alternation = template.render(&repeated).is_err();
        Ok(template)
    }

    /// Renders and encodes a prompt. Control tokens come from the template, and never from the text of a message.
    ///
    /// # Errors
    ///
    /// Returns an error if the template refuses the messages, the prompt is longer than `max_tokens`, or `stop` was set.
    pub(crate) fn encode_prompt(
        &self,
        tokeniser: &GgufTokeniser,
        messages: &[PromptMessage],
        max_tokens: usize,
        stop: &AtomicBool,
    ) -> Result<Vec<u32>, PromptError> {
        let mark = TextMark::absent_from(messages.iter().map(|message| message.text.as_str()));
        let marked = messages.iter().map(|message| PromptMessage {
            role: message.role,
            text: tokeniser.mark_text(&message.text, mark),
        });
        let rendered = self.render_prompt(&marked.collect::<Vec<_>>()).map_err(PromptError::Template)?;
        tokeniser.encode(&rendered, mark, max_tokens, stop).map_err(PromptError::Encoding)
    }

    /// Renders a prompt that ends where the model's response begins.
    ///
    /// # Errors
    ///
    /// Returns the template's error.
    pub(crate) fn render_prompt(&self, messages: &[PromptMessage]) -> Result<String, String> {
        self.render(&self.fit_messages(messages))
            .map_err(|error| format!("the chat template refuses the conversation: {error}"))
    }

    fn render(&self, messages: &[PromptMessage]) -> Result<String, String> {
        // An error becomes text there too, because it keeps values of the template.
        on_large_stack(|| self.render_here(messages).map_err(|error| error.to_string()))
    }

    fn render_here(&self, messages: &[PromptMessage]) -> Result<String, Error> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(MAX_STEPS));
        let length: usize = messages.iter().map(|message| message.text.len()).sum();
        let mut rendered = BoundedText { bytes: Vec::new(), room: MIN_PROMPT_BYTES + 4 * length };
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role, content => message.text })
            .collect();
        let context = context! {
            messages,
            tools => (),
            documents => (),
            add_generation_prompt => true,
            // Decoding is constrained from the first token, so there is no room for thoughts before the response.
            enable_thinking => false,
            bos_token => self.beginning,
            eos_token => self.end,
        };
        environment.get_template(TEMPLATE_NAME)?.render_captured_to(context, &mut rendered)?;
        String::from_utf8(rendered.bytes)
            .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
    }

    /// Moves system messages into the next user message, and joins messages of one role, if the template needs it.
    fn fit_messages(&self, messages: &[PromptMessage]) -> Vec<PromptMessage> {
        let mut fitted: Vec<PromptMessage> = Vec::with_capacity(messages.len());
        for message in messages {
            let role = match message.role {
                "system" if !self.has_system_role || (self.needs_alternation && !fitted.is_empty()) => "user",
                role => role,
            };
            match fitted.last_mut() {
                Some(last) if last.role == role && (self.needs_alternation || role != message.role) => {
                    last.text.push_str("\n\n");
                    last.text.push_str(&message.text);
                }
                Some(last) if last.role == role && role == "user" && !self.has_system_role => {
                    last.text.push_str("\n\n");
                    last.text.push_str(&message.text);
                }
                _ => fitted.push(PromptMessage { role, text: message.text.clone() }),
            }
        }
        fitted
    }
}

/// A text that a template writes, as long as there is room.
struct BoundedText {
    bytes: Vec<u8>,
    room: usize,
}

impl std::io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.room = self
            .room
            .checked_sub(bytes.len())
            .ok_or_else(|| std::io::Error::other("its text is too long"))?;
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Calls a function on a stack that is large enough for a template of any depth.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().stack_size(RENDER_STACK_BYTES);
        let working = builder
            .spawn_scoped(scope, work)
            .map_err(|error| format!("there is no thread for it: {error}"))?;
        working.join().unwrap_or_else(|_| Err("it panicked".to_owned()))
    })
}

/// Replaces `{% generation %}` by a condition that always holds. The tag only marks the text of the assistant for
/// training; whitespace control is kept.
fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // The end is behind both letters of the start: `{%}` is no tag.
        let Some(length) = rest[start + 2..].find("%}") else { break };
        let (inside, after) = (&rest[start + 2..start + 2 + length], start + 2 + length + 2);
        let (open, word) = match inside.strip_prefix(['-', '+']) {
            Some(word) => (&inside[..1], word),
            None => ("", inside),
        };
        let (word, close) = match word.strip_suffix(['-', '+']) {
            Some(shorter) => (shorter, &word[shorter.len()..]),
            None => (word, ""),
        };
        let replacement = match word.trim() {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        result.push_str(&rest[..start]);
        match replacement {
            Some(tag) => result.push_str(&format!("{{%{open} {tag} {close}%}}")),
            None => result.push_str(&rest[start..after]),
        }
        rest = &rest[after..];
    }
    result.push_str(rest);
    result
}

/// The filter `tojson` of `transformers`: Python's notation with spaces, without HTML escapes.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        return Err(Error::new(ErrorKind::InvalidOperation, "tojson has too large an indent"));
    }
    // The other options of `json.dumps` that templates use do not change the result here.
    let _: Option<bool> = options.get("ensure_ascii")?;
    let _: Option<bool> = options.get("sort_keys")?;
    let _: Option<Value> = options.get("separators")?;
    options.assert_all_used()?;
    let value = serde_json::to_value(value)
        .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    let mut text = String::new();
    write_json(&value, indent, 0, &mut text);
    Ok(Value::from_safe_string(text))
}

fn write_json(value: &serde_json::Value, indent: Option<usize>, depth: usize, text: &mut String) {
    let new_line = |text: &mut String, depth: usize| {
        if let Some(indent) = indent {
            text.push('\n');
            text.push_str(&" ".repeat(indent * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value {
        serde_json::Value::Array(values) if !values.is_empty() => {
            text.push('[');
            for (at, value) in values.iter().enumerate() {
                text.push_str(if at > 0 { separator } else { "" });
                new_line(text, depth + 1);
                write_json(value, indent, depth + 1, text);
            }
            new_line(text, depth);
            text.push(']');
        }
        serde_json::Value::Object(fields) if !fields.is_empty() => {
            text.push('{');
            for (at, (name, value)) in fields.iter().enumerate() {
                text.push_str(if at > 0 { separator } else { "" });
                new_line(text, depth + 1);
                text.push_str(&serde_json::Value::from(name.as_str()).to_string());
                text.push_str(": ");
                write_json(value, indent, depth + 1, text);
            }
            new_line(text, depth);
            text.push('}');
        }
        other => text.push_str(&other.to_string()),
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

/// Formats a time in UTC as `strftime` does, with the directives that chat templates use.
fn format_time(format: &str, seconds: u64) -> Result<String, String> {
    let days = seconds / 86_400;
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    let weekday = WEEKDAYS[(days % 7) as usize];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&format!("{:02}", year % 100)),
            Some('m') => text.push_str(&format!("{month:02}")),
            Some('d') => text.push_str(&format!("{day:02}")),
            Some('e') => text.push_str(&format!("{day:2}")),
            Some('B') => text.push_str(month_name),
            Some('b' | 'h') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(weekday),
            Some('a') => text.push_str(&weekday[..3]),
            Some('H') => text.push_str(&format!("{hour:02}")),
            Some('I') => text.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('p') => text.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => text.push_str(&format!("{minute:02}")),
            Some('S') => text.push_str(&format!("{second:02}")),
            Some('%') => text.push('%'),
            other => return Err(format!("strftime_now does not know the directive {other:?}")),
        }
    }
    Ok(text)
}

/// Returns year, month and day of a number of days after the beginning of 1970.
fn civil_date(days: u64) -> (u64, u64, u64) {
    // The era of 400 years begins in March, so that the leap day is the last of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
