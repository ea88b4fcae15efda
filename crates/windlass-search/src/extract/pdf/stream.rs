//! The data of streams: inflated within the budget, and unpacked.

use std::borrow::Cow;

use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_with_limit, decompress_to_vec_zlib_with_limit};

use super::Document;
use super::object::{Dict, Object};

/// One stream may become this large, whatever is left of the budget.
const LARGEST: usize = 32 << 20;

impl Document<'_> {
    /// A stream's data, as it was before it was packed.
    pub(super) fn data(&self, stream: &Object) -> Result<Vec<u8>, String> {
        let Object::Stream { dict, from, to } = stream else {
            return Err("what should be a stream is not".to_owned());
        };
        let mut data = Cow::Borrowed(&self.bytes[*from..*to]);
        let filters = self.list_of(dict, "Filter");
        let parameters = self.list_of(dict, "DecodeParms");
        for (at, filter) in filters.iter().take(4).enumerate() {
            let Object::Name(filter) = filter else { continue };
            let unpacked = match filter.as_str() {
                "FlateDecode" | "Fl" => self.inflate(&data)?,
                "ASCIIHexDecode" | "AHx" => hexadecimal(&data),
                "ASCII85Decode" | "A85" => base_85(&data),
                "RunLengthDecode" | "RL" => self.run_lengths(&data),
                other => return Err(format!("it is packed in a way that is not read: {other}")),
            };
            let parameters = parameters.get(at).and_then(Object::as_dict);
            data = Cow::Owned(match parameters {
                Some(parameters) => self.unpredict(unpacked, parameters),
                None => unpacked,
            });
        }
        Ok(data.into_owned())
    }

    fn list_of(&self, dict: &Dict, key: &str) -> Vec<Object> {
        match self.get(dict, key) {
            Object::List(list) => list.iter().map(|object| self.resolve(object).clone()).collect(),
            Object::Null => Vec::new(),
            one => vec![one.clone()],
        }
    }

    fn inflate(&self, data: &[u8]) -> Result<Vec<u8>, String> {
        let limit = self.left.get().min(LARGEST);
        let mut came = decompress_to_vec_zlib_with_limit(data, limit);
        // Some writers leave out the head.
        if came.as_ref().is_err_and(|error| error.output.is_empty() && error.status == TINFLStatus::Failed) {
            came = decompress_to_vec_with_limit(data, limit);
        }
        match came {
            Ok(out) => {
                self.left.set(self.left.get().saturating_sub(out.len()));
                Ok(out)
            }
            Err(error) if error.status == TINFLStatus::HasMoreOutput => {
                self.left.set(self.left.get().saturating_sub(limit));
                Err(format!("it unpacks to more than {} MB", self.whole.min(LARGEST) >> 20))
            }
            // What was cut off is still worth reading.
            Err(error) => {
                self.left.set(self.left.get().saturating_sub(error.output.len()));
                Ok(error.output)
            }
        }
    }

    fn run_lengths(&self, data: &[u8]) -> Vec<u8> {
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
            if out.len() > LARGEST {
                break;
            }
        }
        out
    }

    /// Undoes the differences to the row above, which tables of objects are packed with.
    fn unpredict(&self, data: Vec<u8>, parameters: &Dict) -> Vec<u8> {
        let number = |key: &str, otherwise: f64| self.number(parameters.get(key)).unwrap_or(otherwise);
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
                    4 => nearest(left, up, corner),
                    _ => 0,
                };
                out.push(byte.wrapping_add(guess));
            }
        }
        out
    }
}

fn nearest(left: u8, up: u8, corner: u8) -> u8 {
    let guess = i16::from(left) + i16::from(up) - i16::from(corner);
    [left, up, corner].into_iter().min_by_key(|value| (guess - i16::from(*value)).abs()).unwrap_or(0)
}

fn hexadecimal(data: &[u8]) -> Vec<u8> {
    let digits: Vec<u8> = data
        .iter()
        .take_while(|byte| **byte != b'>')
        .filter_map(|byte| char::from(*byte).to_digit(16))
        .map(|digit| digit.to_le_bytes()[0])
        .collect();
    digits.chunks(2).map(|two| two[0] << 4 | two.get(1).copied().unwrap_or(0)).collect()
}

fn base_85(data: &[u8]) -> Vec<u8> {
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
