//! Fuzzing of the pictures of a browser.

use super::{PixelRectangle, paint_black};
use crate::computer::Screenshot;

/// Corrects the checksums of the chunks of a PNG, without which almost every mutation is refused at once.
fn correct_checksums(png: &mut [u8]) {
    let mut rest = png.get_mut(8..).unwrap_or_default();
    while let Some((head, after)) = rest.split_first_chunk_mut::<4>() {
        let length = u32::from_be_bytes(*head) as usize;
        let Some((chunk, after)) = after.split_at_mut_checked(length.saturating_add(4)) else { return };
        let Some((checksum, after)) = after.split_first_chunk_mut::<4>() else { return };
        *checksum = crc32(chunk).to_be_bytes();
        rest = after;
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

/// The picture of a browser, which may be another program on another machine, is decoded to hide secrets in it.
#[test]
fn fuzz_pictures_of_a_browser() {
    let png = |width: u32, height: u32, colour: png::ColorType, depth: png::BitDepth| {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width, height);
        encoder.set_color(colour);
        encoder.set_depth(depth);
        if colour == png::ColorType::Indexed {
            encoder.set_palette(vec![0, 0, 0, 255, 255, 255]);
            encoder.set_trns(vec![0, 255]);
        }
        let bits = colour.samples() * depth as usize * width as usize;
        let data = vec![0x55; bits.div_ceil(8) * height as usize];
        let mut writer = encoder.write_header().expect("a header");
        writer.write_image_data(&data).expect("data");
        writer.finish().expect("an end");
        bytes
    };
    use png::BitDepth::{Eight, One, Sixteen};
    let seeds = [
        png(9, 7, png::ColorType::Rgb, Eight),
        png(9, 7, png::ColorType::Rgba, Eight),
        png(9, 7, png::ColorType::GrayscaleAlpha, Sixteen),
        png(9, 7, png::ColorType::Indexed, One),
    ];
    // A header that announces a picture of 16 GB.
    let mut huge = seeds[0].clone();
    huge[16..24].copy_from_slice(&[0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff]);
    correct_checksums(&mut huge);
    let target =
        windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "pictures").seeds(seeds).seeds([huge]);
    let words = [&b"IHDR"[..], b"IDAT", b"PLTE", b"tRNS", b"acTL", b"\0\0\xff\xff"];
    target.words(words).run(module_path!(), "fuzz_pictures_of_a_browser", |input| {
        let mut corrected = input.to_vec();
        correct_checksums(&mut corrected);
        let screenshot = Screenshot::from_png(&corrected);
        let area = PixelRectangle { left: -1.0, top: 2.5, right: 1e12, bottom: f64::NAN };
        if let Ok(painted) = paint_black(&screenshot, &[area]) {
            assert_eq!(painted.size(), screenshot.size());
        }
    });
}
