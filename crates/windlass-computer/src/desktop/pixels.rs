//! Pixels of the screen: scaling, the pointer, and encoding.

use crate::computer::{ComputerError, Screenshot};

/// A picture of red, green and blue bytes, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PixelImage {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) bytes: Vec<u8>,
}

/// The image of the pointer, with its position on the screen.
pub(super) struct PointerImage {
    pub(super) left: i64,
    pub(super) top: i64,
    pub(super) width: usize,
    /// Pixels of alpha, red, green and blue, the colours multiplied by alpha.
    pub(super) pixels: Vec<u32>,
}

impl PixelImage {
    /// Paints the pointer, relative to the top left corner of the picture.
    pub(super) fn paint_pointer(&mut self, pointer: &PointerImage) {
        if pointer.width == 0 {
            return;
        }
        for (at, pixel) in pointer.pixels.iter().enumerate() {
            let [alpha, colours @ ..] = pixel.to_be_bytes();
            let column = pointer.left + (at % pointer.width) as i64;
            let row = pointer.top + (at / pointer.width) as i64;
            let (Ok(column), Ok(row)) = (usize::try_from(column), usize::try_from(row)) else { continue };
            if alpha == 0 || column >= self.width || row >= self.height {
                continue;
            }
            let start = (row * self.width + column) * 3;
            for (below, above) in self.bytes[start..start + 3].iter_mut().zip(colours) {
                let rest = u16::from(*below) * u16::from(u8::MAX - alpha) / u16::from(u8::MAX);
                *below = above.saturating_add(u8::try_from(rest).unwrap_or(u8::MAX));
            }
        }
    }

    /// Returns the picture in another size: averaged if smaller, interpolated if larger.
    pub(super) fn scaled(&self, width: usize, height: usize) -> Self {
        if (width, height) == (self.width, self.height) || self.width == 0 || self.height == 0 {
            return self.clone();
        }
        let columns = weights(self.width, width);
        let rows = weights(self.height, height);
        let mut bytes = Vec::with_capacity(width * height * 3);
        for row in &rows {
            for column in &columns {
                let (mut sums, mut total) = ([0.0; 3], 0.0);
                for (y, down) in row {
                    for (x, across) in column {
                        let (start, weight) = ((y * self.width + x) * 3, down * across);
                        total += weight;
                        for (sum, byte) in sums.iter_mut().zip(&self.bytes[start..start + 3]) {
                            *sum += f32::from(*byte) * weight;
                        }
                    }
                }
                bytes.extend(sums.map(|sum| (sum / total).round() as u8));
            }
        }
        Self { width, height, bytes }
    }

    /// Returns the brightness of each cell of a grid over the picture, row by row.
    pub(super) fn brightness_cells(&self, columns: usize, rows: usize) -> Vec<u8> {
        let cells = self.scaled(columns, rows);
        let mean = |pixel: &[u8]| pixel.iter().map(|byte| u16::from(*byte)).sum::<u16>() / 3;
        cells.bytes.chunks_exact(3).map(|pixel| u8::try_from(mean(pixel)).unwrap_or(u8::MAX)).collect()
    }

    /// Encodes the picture.
    pub(super) fn to_screenshot(&self) -> Result<Screenshot, ComputerError> {
        let mut bytes = Vec::new();
        let size = |length: usize| u32::try_from(length).unwrap_or(0);
        let mut encoder = png::Encoder::new(&mut bytes, size(self.width), size(self.height));
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_compression(png::Compression::Fast);
        let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&self.bytes));
        written.map_err(|error| ComputerError::Failed(format!("the picture: {error}")))?;
        Ok(Screenshot::from_png(&bytes))
    }
}

/// Returns the source positions of each target position, with their weights.
fn weights(from: usize, to: usize) -> Vec<Vec<(usize, f32)>> {
    let ratio = from as f32 / to.max(1) as f32;
    (0..to)
        .map(|target| {
            if ratio > 1.0 {
                let (start, end) = (target as f32 * ratio, (target + 1) as f32 * ratio);
                let last = (end.ceil() as usize).min(from);
                let covered = |at: usize| (end.min((at + 1) as f32) - start.max(at as f32)).max(0.0);
                (start as usize..last).map(|at| (at, covered(at))).filter(|(_, part)| *part > 0.0).collect()
            } else {
                let centre = ((target as f32 + 0.5) * ratio - 0.5).max(0.0);
                let (at, part) = (centre as usize, centre.fract());
                vec![(at.min(from - 1), 1.0 - part), ((at + 1).min(from - 1), part)]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(width: usize, height: usize, grey: &[u8]) -> PixelImage {
        PixelImage { width, height, bytes: grey.iter().flat_map(|grey| [*grey; 3]).collect() }
    }

    #[test]
    fn a_picture_is_scaled_both_ways() {
        let wide = image(4, 2, &[0, 100, 200, 200, 100, 200, 0, 0]);
        assert_eq!(wide.scaled(2, 1), image(2, 1, &[100, 100]));
        let doubled = image(2, 1, &[0, 200]).scaled(4, 2);
        assert_eq!(doubled, image(4, 2, &[0, 50, 150, 200, 0, 50, 150, 200]));
        assert_eq!(wide.scaled(4, 2), wide);
        assert_eq!(wide.scaled(3, 2).bytes.len(), 18);
    }

    #[test]
    fn a_pointer_is_painted_where_it_is_and_cut_at_the_edges() {
        let mut picture = image(3, 2, &[10; 6]);
        let pixels = vec![0xff_ff_ff_ff, 0, 0xff_00_00_00, 0x80_40_40_40];
        picture.paint_pointer(&PointerImage { left: 2, top: 0, width: 2, pixels });
        assert_eq!(picture, image(3, 2, &[10, 10, 255, 10, 10, 0]));
    }
}
