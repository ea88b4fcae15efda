//! Stream filters: decompression within the budget, and decoding of predictors and ASCII encodings.

use std::borrow::Cow;

use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_with_limit, decompress_to_vec_zlib_with_limit};

use super::PdfDocument;
use super::object::{PdfDictionary, PdfObject};

/// Maximum decoded size of one stream in bytes, independent of the remaining budget.
const MAX_STREAM_BYTES: usize = 32 << 20;
/// Maximum number of filters of a stream; further ones are ignored.
const MAX_FILTERS: usize = 4;

impl PdfDocument<'_> {
    /// Returns the decoded data of a stream.
    pub(super) fn decode_stream(&self, stream: &PdfObject) -> Result<Vec<u8>, String> {
        let PdfObject::Stream { dict, start: from, end: to } = stream else {
            return Err("an object that must be a stream is not one".to_owned());
        };
        let mut data = Cow::Borrowed(&self.bytes[*from..*to]);
        if let (Some(decryption), Some((number, generation))) = (&self.decryption, self.stream_ids.get(from))
        {
            // Deciphering takes longer than copying.
            self.spend_steps(data.len())?;
            data = Cow::Owned(decryption.decrypt(dict, *number, *generation, &data));
        }
        let filters = self.resolve_list(dict, "Filter");
        let parameters = self.resolve_list(dict, "DecodeParms");
        // A file may name the same stream any number of times.
        self.spend_steps(1 + filters.len() + parameters.len() + data.len() / 16)?;
        for (at, filter) in filters.iter().enumerate() {
            let PdfObject::Name(filter) = filter else { continue };
            let unpacked = match filter.as_str() {
                "FlateDecode" | "Fl" => self.inflate_within_budget(&data)?,
                "LZWDecode" | "LZW" => {
                    let early = parameters.get(at).and_then(PdfObject::as_dict);
                    let early = early.and_then(|dict| self.resolve_number(dict.get("EarlyChange")));
                    self.within_budget(decode_lzw(&data, early != Some(0.0)))?
                }
                // Crypt filters were applied above.
                "Crypt" => data.into_owned(),
                "ASCIIHexDecode" | "AHx" => self.within_budget(decode_ascii_hex(&data))?,
                "ASCII85Decode" | "A85" => self.within_budget(decode_ascii85(&data))?,
                "RunLengthDecode" | "RL" => self.within_budget(self.decode_run_length(&data))?,
                other => return Err(format!("its stream filter is not supported: {other}")),
            };
            let parameters = parameters.get(at).and_then(PdfObject::as_dict);
            data = Cow::Owned(match parameters {
                Some(parameters) => self.undo_png_predictor(unpacked, parameters),
                None => unpacked,
            });
        }
        if filters.is_empty() {
            self.spend_decoded(data.len())?;
        }
        Ok(data.into_owned())
    }

    /// Returns decoded data if the budget covers it.
    fn within_budget(&self, decoded: Vec<u8>) -> Result<Vec<u8>, String> {
        self.spend_decoded(decoded.len())?;
        Ok(decoded)
    }

    /// Returns the resolved elements of a value that is an array or a single object.
    fn resolve_list(&self, dict: &PdfDictionary, key: &str) -> Vec<PdfObject> {
        match self.resolve_key(dict, key) {
            PdfObject::Array(list) => {
                list.iter().take(MAX_FILTERS).map(|object| self.resolve(object).clone()).collect()
            }
            PdfObject::Null => Vec::new(),
            one => vec![one.clone()],
        }
    }

    fn inflate_within_budget(&self, data: &[u8]) -> Result<Vec<u8>, String> {
        let limit = self.inflate_remaining.get().min(MAX_STREAM_BYTES);
        let mut came = decompress_to_vec_zlib_with_limit(data, limit);
        // Some PDF producers omit the zlib header.
        if came.as_ref().is_err_and(|error| error.output.is_empty() && error.status == TINFLStatus::Failed) {
            came = decompress_to_vec_with_limit(data, limit);
        }
        match came {
            Ok(out) => {
                self.inflate_remaining.set(self.inflate_remaining.get().saturating_sub(out.len()));
                Ok(out)
            }
            Err(error) if error.status == TINFLStatus::HasMoreOutput => {
                self.inflate_remaining.set(self.inflate_remaining.get().saturating_sub(limit));
                Err(format!("it unpacks to more than {} MB", self.inflate_budget.min(MAX_STREAM_BYTES) >> 20))
            }
            // The decoded part of truncated data is still used.
            Err(error) => {
                self.inflate_remaining.set(self.inflate_remaining.get().saturating_sub(error.output.len()));
                Ok(error.output)
            }
        }
    }

    fn decode_run_length(&self, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut at = 0;
        while let Some(length) = data.get(at).copied() {
            at += 1;
            match length {
                128 => break,
                0..=127 => {
                    let end = (at + usize::from(length) + 1).min(data.len());
                    out.extend_from_slice(&data[at..end]);
                    at = end;
                }
                _ => {
                    let byte = data.get(at).copied().unwrap_or(0);
                    out.resize(out.len() + 257 - usize::from(length), byte);
                    at += 1;
                }
            }
            if out.len() > MAX_STREAM_BYTES {
                break;
            }
        }
        out
    }

    /// Reverses the PNG predictors, which cross-reference and object streams often use.
    fn undo_png_predictor(&self, data: Vec<u8>, parameters: &PdfDictionary) -> Vec<u8> {
        let number =
            |key: &str, otherwise: f64| self.resolve_number(parameters.get(key)).unwrap_or(otherwise);
        if number("Predictor", 1.0) < 10.0 {
            return data;
        }
        let whole = |value: f64, most: f64| value.clamp(1.0, most) as usize;
        let pixel =
            (whole(number("Colors", 1.0), 32.0) * whole(number("BitsPerComponent", 8.0), 16.0)).div_ceil(8);
        let row = (pixel * whole(number("Columns", 1.0), 1e6)).max(1);
        let mut out: Vec<u8> = Vec::with_capacity(data.len());
        for packed in data.chunks(row + 1) {
            let Some((kind, packed)) = packed.split_first() else { break };
            let start = out.len();
            for (at, byte) in packed.iter().enumerate() {
                let left = if at >= pixel { out[start + at - pixel] } else { 0 };
                let up = if start >= row { out[start + at - row] } else { 0 };
                let corner = if at >= pixel && start >= row { out[start + at - row - pixel] } else { 0 };
                let guess = match kind {
                    1 => left,
                    2 => up,
                    3 => u16::midpoint(left.into(), up.into()).to_le_bytes()[0],
                    4 => paeth_predictor(left, up, corner),
                    _ => 0,
                };
                out.push(byte.wrapping_add(guess));
            }
        }
        out
    }
}

/// The Paeth predictor of PNG.
fn paeth_predictor(left: u8, up: u8, corner: u8) -> u8 {
    let guess = i16::from(left) + i16::from(up) - i16::from(corner);
    [left, up, corner].into_iter().min_by_key(|value| (guess - i16::from(*value)).abs()).unwrap_or(0)
}

/// Decodes LZW with codes of 9 to 12 bits. `is_early` is true if codes grow one code early, as is usual.
fn decode_lzw(data: &[u8], is_early: bool) -> Vec<u8> {
    const CLEAR: usize = 256;
    const END: usize = 257;
    let mut out: Vec<u8> = Vec::new();
    // Each entry is a range of the output: the text of the code before it and one byte more.
    let mut table: Vec<(usize, usize)> = Vec::new();
    let (mut bits, mut count) = (0u32, 0);
    let mut width = 9;
    let mut last: Option<(usize, usize)> = None;
    for byte in data {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        if count < width {
            continue;
        }
        count -= width;
        let code = (bits >> count) as usize & ((1 << width) - 1);
        if code == END || out.len() > MAX_STREAM_BYTES {
            break;
        }
        if code == CLEAR {
            table.clear();
            (width, last) = (9, None);
            continue;
        }
        let start = out.len();
        if code < CLEAR {
            out.push(code.to_le_bytes()[0]);
        } else {
            let entry = table.get(code - END - 1).copied();
            // The code that is being defined is the last text and its first byte.
            let Some((from, to)) = entry.or_else(|| last.map(|(from, to)| (from, to + 1))) else { break };
            for at in from..to {
                let byte = out[at];
                out.push(byte);
            }
        }
        if let Some((from, to)) = last
            && table.len() < 4096 - END - 1
        {
            table.push((from, to + 1));
        }
        last = Some((start, out.len()));
        width = match table.len() + END + 1 + usize::from(is_early) + usize::from(last.is_some()) - 1 {
            0..512 => 9,
            512..1024 => 10,
            1024..2048 => 11,
            _ => 12,
        };
    }
    out
}

fn decode_ascii_hex(data: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = data
        .iter()
        .take_while(|byte| **byte != b'>')
        .filter_map(|byte| char::from(*byte).to_digit(16))
        .map(|digit| digit.to_le_bytes()[0])
        .collect();
    digits.chunks(2).map(|two| two[0] << 4 | two.get(1).copied().unwrap_or(0)).collect()
}

fn decode_ascii85(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut group: Vec<u32> = Vec::with_capacity(5);
    let flush = |group: &mut Vec<u32>, out: &mut Vec<u8>| {
        let have = group.len();
        if have < 2 {
            return;
        }
        group.resize(5, 84);
        let value = group.iter().fold(0u32, |value, digit| value.wrapping_mul(85).wrapping_add(*digit));
        out.extend_from_slice(&value.to_be_bytes()[..have - 1]);
        group.clear();
    };
    for byte in data {
        match byte {
            b'~' => break,
            b'z' if group.is_empty() => out.extend([0; 4]),
            b'!'..=b'u' => {
                group.push(u32::from(byte - b'!'));
                if group.len() == 5 {
                    flush(&mut group, &mut out);
                }
            }
            _ => {}
        }
    }
    flush(&mut group, &mut out);
    out
}
