//! The keyboard mapping of an X server. Unused keycodes are remapped to characters that no key produces.

use std::collections::BTreeMap;
use std::time::Duration;

use x11rb::connection::Connection;
use x11rb::errors::ReplyError;
use x11rb::protocol::xproto::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

/// Time for X clients to process a change of the keyboard mapping.
const MAPPING_CHANGE_DELAY: Duration = Duration::from_millis(60);

const SHIFT_KEYSYM: u32 = 0xffe1;

/// The keycode and shift state that produce a character.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyStroke {
    pub(super) keycode: u8,
    pub(super) is_shifted: bool,
}

pub(super) struct X11Keyboard {
    strokes_by_keysym: BTreeMap<u32, KeyStroke>,
    /// Keycodes without a mapping and the keysym assigned to each, least recently assigned first.
    unused_keycodes: Vec<(u8, Option<u32>)>,
    keysyms_per_keycode: u8,
}

impl X11Keyboard {
    pub(super) fn read_mapping(connection: &RustConnection) -> Result<Self, ReplyError> {
        let (first, last) = (connection.setup().min_keycode, connection.setup().max_keycode);
        let map = connection.get_keyboard_mapping(first, last - first + 1)?.reply()?;
        let per_key = map.keysyms_per_keycode.max(1);
        let (mut strokes, mut spare) = (BTreeMap::new(), Vec::new());
        for (code, keysyms) in (first..=last).zip(map.keysyms.chunks(per_key.into())) {
            if keysyms.iter().all(|keysym| *keysym == 0) {
                spare.push((code, None));
            }
            for (place, keysym) in keysyms.iter().take(2).enumerate().filter(|(_, keysym)| **keysym != 0) {
                let stroke = KeyStroke { keycode: code, is_shifted: place == 1 };
                // The unshifted key is preferred.
                strokes
                    .entry(*keysym)
                    .and_modify(|known: &mut KeyStroke| {
                        if known.is_shifted && !stroke.is_shifted {
                            *known = stroke;
                        }
                    })
                    .or_insert(stroke);
            }
        }
        Ok(Self { strokes_by_keysym: strokes, unused_keycodes: spare, keysyms_per_keycode: per_key })
    }

    pub(super) fn shift_keycode(&self) -> u8 {
        self.strokes_by_keysym.get(&SHIFT_KEYSYM).map_or(50, |stroke| stroke.keycode)
    }

    pub(super) fn stroke_of(&self, char: char) -> Option<KeyStroke> {
        self.strokes_by_keysym.get(&keysym_of(char)).copied()
    }

    /// Returns the keycode for a keysym, assigning an unused one if necessary.
    pub(super) fn ensure_keycode(
        &mut self,
        connection: &RustConnection,
        keysym: u32,
    ) -> Result<u8, ReplyError> {
        if let Some(stroke) = self.strokes_by_keysym.get(&keysym) {
            return Ok(stroke.keycode);
        }
        self.remap_keycodes(connection, &[keysym])?;
        Ok(self.strokes_by_keysym.get(&keysym).map_or(0, |stroke| stroke.keycode))
    }

    /// Assigns keycodes for as many leading characters as possible and returns their number.
    pub(super) fn assign_keycodes(
        &mut self,
        connection: &RustConnection,
        text: &[char],
    ) -> Result<usize, ReplyError> {
        let (mut wanted, mut ready) = (Vec::new(), 0);
        for char in text {
            let keysym = keysym_of(*char);
            if !self.strokes_by_keysym.contains_key(&keysym) && !wanted.contains(&keysym) {
                if wanted.len() >= self.unused_keycodes.len() {
                    break;
                }
                wanted.push(keysym);
            }
            ready += 1;
        }
        // Keycodes that this text needs must not be reassigned.
        let kept: Vec<u32> = text[..ready].iter().map(|char| keysym_of(*char)).collect();
        self.unused_keycodes.sort_by_key(|(_, given)| given.is_some_and(|given| kept.contains(&given)));
        if !wanted.is_empty() {
            self.remap_keycodes(connection, &wanted)?;
        }
        let is_writable = |char: &&char| self.stroke_of(**char).is_some();
        Ok(text[..ready].iter().take_while(is_writable).count())
    }

    fn remap_keycodes(&mut self, connection: &RustConnection, keysyms: &[u32]) -> Result<(), ReplyError> {
        // Clients that have not yet processed the previous key events would read them with the new mapping.
        std::thread::sleep(MAPPING_CHANGE_DELAY);
        let count = keysyms.len().min(self.unused_keycodes.len());
        for (keysym, (code, given)) in keysyms.iter().zip(self.unused_keycodes.iter_mut().take(count)) {
            if let Some(before) = given.replace(*keysym) {
                self.strokes_by_keysym.remove(&before);
            }
            let all = vec![*keysym; self.keysyms_per_keycode.into()];
            connection.change_keyboard_mapping(1, *code, self.keysyms_per_keycode, &all)?.check()?;
            self.strokes_by_keysym.insert(*keysym, KeyStroke { keycode: *code, is_shifted: false });
        }
        self.unused_keycodes.rotate_left(count);
        connection.get_input_focus()?.reply()?;
        std::thread::sleep(MAPPING_CHANGE_DELAY);
        Ok(())
    }
}

/// Returns the X11 keysym of a character.
pub(super) fn keysym_of(char: char) -> u32 {
    match char {
        '\n' | '\r' => 0xff0d,
        '\t' => 0xff09,
        '\u{8}' => 0xff08,
        ' '..='~' | '\u{a0}'..='\u{ff}' => u32::from(char),
        _ => 0x0100_0000 | u32::from(char),
    }
}
