//! Reader of the `safetensors` format: a JSON header of tensor names and offsets, followed by the data.

use std::collections::HashMap;

use ndarray::{Array1, Array2};
use serde::Deserialize;

/// Maximum size of the JSON header in bytes.
const MAX_HEADER_BYTES: usize = 16 << 20;

/// The tensors of a file, by name.
pub(super) struct SafetensorsFile<'a> {
    entries: HashMap<String, TensorEntry>,
    data: &'a [u8],
    /// Common prefix of all names: `bert.` or empty.
    name_prefix: &'static str,
}

/// The header entry of a tensor.
#[derive(Deserialize)]
struct TensorEntry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

impl<'a> SafetensorsFile<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let broken = || "its weights are not a complete safetensors file".to_owned();
        let (length, rest) = bytes.split_first_chunk::<8>().ok_or_else(broken)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| broken())?;
        let (list, data) =
            rest.split_at_checked(length).filter(|_| length <= MAX_HEADER_BYTES).ok_or_else(broken)?;
        let list: HashMap<String, serde_json::Value> = serde_json::from_slice(list).map_err(|_| broken())?;
        let list: HashMap<String, TensorEntry> = list
            .into_iter()
            .filter(|(name, _)| name != "__metadata__")
            .map(|(name, place)| Ok((name, serde_json::from_value(place).map_err(|_| broken())?)))
            .collect::<Result<_, String>>()?;
        let prefix = if list.keys().any(|name| name.starts_with("bert.")) { "bert." } else { "" };
        Ok(Self { entries: list, data, name_prefix: prefix })
    }

    pub(super) fn load_matrix(&self, name: &str, rows: usize, columns: usize) -> Result<Array2<f32>, String> {
        let values = self.load_values(name, &[rows, columns])?;
        Array2::from_shape_vec((rows, columns), values).map_err(|error| format!("`{name}`: {error}"))
    }

    pub(super) fn load_vector(&self, name: &str, columns: usize) -> Result<Array1<f32>, String> {
        Ok(Array1::from_vec(self.load_values(name, &[columns])?))
    }

    /// Loads a tensor of the expected shape, converted to 32-bit floats.
    fn load_values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, String> {
        let place = self
            .entries
            .get(&format!("{}{name}", self.name_prefix))
            .ok_or_else(|| format!("its weights have no `{name}`"))?;
        let [from, to] = place.data_offsets;
        let bytes = self.data.get(from..to).ok_or_else(|| format!("`{name}` reaches beyond the file"))?;
        let values: Vec<f32> = match place.dtype.as_str() {
            "F32" => bytes.as_chunks::<4>().0.iter().map(|four| f32::from_le_bytes(*four)).collect(),
            "F16" => {
                bytes.as_chunks::<2>().0.iter().map(|two| f16_to_f32(u16::from_le_bytes(*two))).collect()
            }
            "BF16" => bytes
                .as_chunks::<2>()
                .0
                .iter()
                .map(|two| f32::from_bits(u32::from(u16::from_le_bytes(*two)) << 16))
                .collect(),
            other => return Err(format!("`{name}` has the type {other}; F32, F16 and BF16 are supported")),
        };
        // The product of sizes from `config.json` may be greater than any file.
        let wanted = shape.iter().try_fold(1, |product: usize, size| product.checked_mul(*size));
        if place.shape != shape || Some(values.len()) != wanted {
            return Err(format!("`{name}` has the shape {:?}, and {shape:?} was expected", place.shape));
        }
        Ok(values)
    }
}

/// Converts a 16-bit float to 32 bits.
fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((bits >> 10) & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1.0 + fraction / 1024.0) * 2f32.powi(exponent - 15),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_of_16_bits() {
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x0001, 5.960_464_5e-8),
            (0x7bff, 65504.0),
        ] {
            assert_eq!(super::f16_to_f32(bits), value, "{bits:x}");
        }
    }
}
