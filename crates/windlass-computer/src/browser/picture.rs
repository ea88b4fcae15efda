//! Changes of a screenshot's pixels.

use serde_json::Value;

use crate::computer::{ComputerError, Screenshot};

/// Maximum size of the pixels of a picture in bytes: that of the largest screens. A picture names its size itself.
const MAX_PIXEL_BYTES: usize = 128 << 20;

/// A rectangle in pixels of the viewport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PixelRectangle {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
}

impl PixelRectangle {
    /// A rectangle that covers every picture.
    pub(super) const EVERYTHING: Self =
        Self { left: f64::NEG_INFINITY, top: f64::NEG_INFINITY, right: f64::INFINITY, bottom: f64::INFINITY };

    /// Returns the rectangle around a quad of the DevTools Protocol, moved by an offset.
    pub(super) fn around_quad(quad: &Value, left: f64, top: f64) -> Option<Self> {
        let numbers: Vec<f64> = quad.as_array()?.iter().filter_map(Value::as_f64).collect();
        let along = |first: usize| numbers.iter().skip(first).step_by(2).copied();
        let least = |first: usize| along(first).fold(f64::INFINITY, f64::min);
        let most = |first: usize| along(first).fold(f64::NEG_INFINITY, f64::max);
        (numbers.len() == 8).then(|| Self {
            left: least(0) + left,
            top: least(1) + top,
            right: most(0) + left,
            bottom: most(1) + top,
        })
    }

    /// Returns the rectangle in a picture that begins at a point of the viewport and is magnified.
    pub(super) fn shifted(&self, left: f64, top: f64, factor: f64) -> Self {
        Self {
            left: (self.left - left) * factor,
            top: (self.top - top) * factor,
            right: (self.right - left) * factor,
            bottom: (self.bottom - top) * factor,
        }
    }
}

/// Paints rectangles of a picture black.
pub(super) fn paint_black(
    screenshot: &Screenshot,
    rectangles: &[PixelRectangle],
) -> Result<Screenshot, ComputerError> {
    let failed = |error: &dyn std::fmt::Display| ComputerError::Failed(format!("the picture: {error}"));
    let bytes = screenshot.to_png();
    let mut decoder = png::Decoder::new(std::io::Cursor::new(&bytes));
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(|error| failed(&error))?;
    let size = reader.output_buffer_size().filter(|size| *size <= MAX_PIXEL_BYTES);
    let size = size.ok_or_else(|| failed(&"it is too large"))?;
    let mut pixels = vec![0; size];
    let frame = reader.next_frame(&mut pixels).map_err(|error| failed(&error))?;
    let channels = frame.color_type.samples();
    let (width, height) = (frame.width as usize, frame.height as usize);
    let has_alpha = matches!(frame.color_type, png::ColorType::Rgba | png::ColorType::GrayscaleAlpha);
    for area in rectangles {
        let from = |edge: f64, most: usize| (edge.floor().max(0.0) as usize).min(most);
        let until = |edge: f64, most: usize| (edge.ceil().max(0.0) as usize).min(most);
        let (left, right) = (from(area.left, width), until(area.right, width));
        for row in from(area.top, height)..until(area.bottom, height) {
            for column in left..right {
                let at = row * frame.line_size + column * channels;
                let pixel = &mut pixels[at..at + channels];
                pixel.fill(0);
                if let (true, Some(alpha)) = (has_alpha, pixel.last_mut()) {
                    *alpha = u8::MAX;
                }
            }
        }
    }
    let mut written = Vec::new();
    let mut encoder = png::Encoder::new(&mut written, frame.width, frame.height);
    encoder.set_color(frame.color_type);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let done = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    done.map_err(|error| failed(&error))?;
    Ok(Screenshot::from_png(&written))
}

#[cfg(all(test, target_os = "linux"))]
#[path = "picture_tests.rs"]
mod tests;
