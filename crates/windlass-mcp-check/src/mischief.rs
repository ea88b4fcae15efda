//! The ways in which a hostile server answers a call, drawn from a seed.

use serde_json::{Value, json};

/// One way to answer a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// A proper result.
    Honest,
    /// Half of a surrogate pair in a text.
    LoneSurrogate,
    /// Bytes that are not UTF-8 in a text.
    InvalidUtf8,
    /// `NaN` and `Infinity` as numbers.
    NotANumber,
    /// A raw control character in a text.
    ControlCharacter,
    /// Arrays nested a thousand deep.
    Deep,
    /// A message of 17 MiB, with its id at the end.
    Oversize,
    /// A message that ends in the middle.
    Truncated,
    /// Neither a result nor an error.
    NoResult,
    /// A result of another request.
    WrongResult,
    /// A content type that is not known.
    UnknownContent,
    /// A content block without its fields.
    BrokenContent,
    /// An error with data.
    ErrorWithData,
    /// An error whose code is a text.
    BrokenError,
    /// Log lines and notifications before the result.
    Noise,
    /// The result of another call first, then the right one.
    StrangerFirst,
    /// The result twice.
    Twice,
    /// An elicitation that is not valid.
    BrokenElicitation,
    /// A request with an unknown method before the result.
    UnknownRequest,
    /// The id as a text.
    TextId,
    /// A byte order mark and a carriage return around the message.
    Wrapped,
    /// A thousand notifications that the list of tools has changed.
    ListStorm,
    /// The process ends without an answer.
    Exit,
}

impl Mischief {
    /// All ways to answer a call.
    pub const ALL: [Self; 23] = [
        Self::Honest,
        Self::LoneSurrogate,
        Self::InvalidUtf8,
        Self::NotANumber,
        Self::ControlCharacter,
        Self::Deep,
        Self::Oversize,
        Self::Truncated,
        Self::NoResult,
        Self::WrongResult,
        Self::UnknownContent,
        Self::BrokenContent,
        Self::ErrorWithData,
        Self::BrokenError,
        Self::Noise,
        Self::StrangerFirst,
        Self::Twice,
        Self::BrokenElicitation,
        Self::UnknownRequest,
        Self::TextId,
        Self::Wrapped,
        Self::ListStorm,
        Self::Exit,
    ];

    /// Returns the lines before the answer to a request of the handshake or of the tool list, by a number.
    pub fn preface_lines(number: u64, id: &Value, is_modern: bool) -> Vec<Vec<u8>> {
        let prefaces = [
            Self::Honest,
            Self::Noise,
            Self::StrangerFirst,
            Self::UnknownRequest,
            Self::BrokenElicitation,
            Self::ListStorm,
        ];
        let at = usize::try_from(number).unwrap_or(0) % prefaces.len();
        let mut lines = prefaces[at].response_lines(id, is_modern);
        // The last line is the result of a call.
        lines.pop();
        lines
    }

    /// Returns the lines that answer a call with this id.
    pub fn response_lines(self, id: &Value, is_modern: bool) -> Vec<Vec<u8>> {
        let kind = if is_modern { r#""resultType":"complete","# } else { "" };
        let text = |words: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{{kind}"content":[{{"type":"text","text":"{words}"}}]}}}}"#
            )
            .into_bytes()
        };
        let result =
            |body: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{{kind}{body}}}}}"#).into_bytes();
        let honest = text("the end");
        match self {
            Self::Honest => vec![honest],
            Self::LoneSurrogate => vec![text(r"the \ud83d end")],
            Self::InvalidUtf8 => {
                let mut line = text("the # end");
                line.iter_mut().filter(|byte| **byte == b'#').for_each(|byte| *byte = 0xC3);
                vec![line]
            }
            Self::NotANumber => vec![result(
                r#""content":[{"type":"text","text":"the end"}],"structuredContent":{"a":NaN,"b":-Infinity}"#,
            )],
            Self::ControlCharacter => vec![text("the \u{1} end")],
            Self::Deep => {
                let (open, close) = ("[".repeat(1000), "]".repeat(1000));
                vec![result(&format!(r#""content":[],"structuredContent":{open}{close}"#))]
            }
            Self::Oversize => {
                let words = "x".repeat(17 * 1024 * 1024);
                let body = format!(r#"{{{kind}"content":[{{"type":"text","text":"{words}"}}]}}"#);
                vec![format!(r#"{{"result":{body},"jsonrpc":"2.0","id":{id}}}"#).into_bytes()]
            }
            Self::Truncated => {
                let mut line = honest;
                line.truncate(line.len() - 3);
                vec![line, b"}".to_vec()]
            }
            Self::NoResult => vec![format!(r#"{{"jsonrpc":"2.0","id":{id}}}"#).into_bytes()],
            Self::WrongResult => vec![result(r#""tools":7"#)],
            Self::UnknownContent => {
                vec![result(r#""content":[{"type":"text","text":"the end"},{"type":"hologram","data":"x"}]"#)]
            }
            Self::BrokenContent => {
                vec![result(r#""content":[{"type":"text","text":"the end"},{"type":"image"},null]"#)]
            }
            Self::ErrorWithData => vec![
                json!({ "jsonrpc": "2.0", "id": id,
                        "error": { "code": -32000, "message": "not today", "data": { "until": "Friday" } } })
                .to_string()
                .into_bytes(),
            ],
            Self::BrokenError => {
                vec![
                    format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":"many","message":7}}}}"#)
                        .into_bytes(),
                ]
            }
            Self::Noise => {
                let log = json!({ "jsonrpc": "2.0", "method": "notifications/message",
                                  "params": { "level": "info", "data": "noise" } });
                let progress = json!({ "jsonrpc": "2.0", "method": "notifications/progress",
                                       "params": { "progressToken": "nobody", "progress": 1 } });
                let unknown = json!({ "jsonrpc": "2.0", "method": "notifications/unheard", "params": 3 });
                let mut lines =
                    vec![b"INFO starting".to_vec(), b"{".to_vec(), b"".to_vec(), b"\xFF\xFE".to_vec()];
                lines.extend([log, progress, unknown].map(|line| line.to_string().into_bytes()));
                lines.push(honest);
                lines
            }
            Self::StrangerFirst => {
                let stranger = br#"{"jsonrpc":"2.0","id":987654,"result":{"content":[]}}"#.to_vec();
                vec![stranger, honest]
            }
            Self::Twice => vec![honest.clone(), honest],
            Self::BrokenElicitation => {
                let line =
                    br#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"mode":"form"}}"#;
                vec![line.to_vec(), honest]
            }
            Self::UnknownRequest => {
                vec![br#"{"jsonrpc":"2.0","id":"u","method":"windows/open","params":{}}"#.to_vec(), honest]
            }
            Self::TextId => {
                let line = String::from_utf8_lossy(&honest).replacen(
                    &format!("\"id\":{id}"),
                    &format!("\"id\":\"{id}\""),
                    1,
                );
                vec![line.into_bytes()]
            }
            Self::Wrapped => vec![[b"\xEF\xBB\xBF".as_slice(), &honest, b"\r"].concat()],
            Self::ListStorm => {
                let line = br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#.to_vec();
                let mut lines = vec![line; 1000];
                lines.push(honest);
                lines
            }
            Self::Exit => Vec::new(),
        }
    }
}

/// A sequence of mischief that a seed decides.
pub struct MischiefSource {
    state: u64,
}

impl MischiefSource {
    /// Creates the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }

    /// Returns the next mischief.
    pub fn draw(&mut self) -> Mischief {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let at = usize::try_from(self.state >> 33).unwrap_or(0) % Mischief::ALL.len();
        Mischief::ALL[at]
    }
}
