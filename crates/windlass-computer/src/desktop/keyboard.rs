//! Which key writes which character; and keys that write nothing, given what no key writes.

use std::collections::BTreeMap;
use std::time::Duration;

use x11rb::connection::Connection;
use x11rb::errors::ReplyError;
use x11rb::protocol::xproto::ConnectionExt as _;
use x11rb::rust_connection::RustConnection;

/// How long programs have to learn what a key writes now.
const LEARNING: Duration = Duration::from_millis(60);

const SHIFT: u32 = 0xffe1;

/// How a character is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stroke {
    pub(super) code: u8,
    pub(super) is_shifted: bool,
}

pub(super) struct Keyboard {
    strokes: BTreeMap<u32, Stroke>,
    /// Keys that write nothing, and what they were given, the oldest first.
    spare: Vec<(u8, Option<u32>)>,
    per_key: u8,
}

impl Keyboard {
    pub(super) fn read(connection: &RustConnection) -> Result<Self, ReplyError> {
        let (first, last) = (connection.setup().min_keycode, connection.setup().max_keycode);
        let map = connection.get_keyboard_mapping(first, last - first + 1)?.reply()?;
        let per_key = map.keysyms_per_keycode.max(1);
        let (mut strokes, mut spare) = (BTreeMap::new(), Vec::new());
        for (code, keysyms) in (first..=last).zip(map.keysyms.chunks(per_key.into())) {
            if keysyms.iter().all(|keysym| *keysym == 0) {
                spare.push((code, None));
            }
            for (place, keysym) in keysyms.iter().take(2).enumerate().filter(|(_, keysym)| **keysym != 0) {
                let stroke = Stroke { code, is_shifted: place == 1 };
                // The plain way to write a character is preferred.
                strokes
                    .entry(*keysym)
                    .and_modify(|known: &mut Stroke| {
                        if known.is_shifted && !stroke.is_shifted {
                            *known = stroke;
                        }
                    })
                    .or_insert(stroke);
            }
        }
        Ok(Self { strokes, spare, per_key })
    }

    pub(super) fn shift(&self) -> u8 {
        self.strokes.get(&SHIFT).map_or(50, |stroke| stroke.code)
    }

    pub(super) fn stroke_of(&self, char: char) -> Option<Stroke> {
        self.strokes.get(&keysym(char)).copied()
    }

    /// The key that stands for something, which is given one where it has none.
    pub(super) fn code_of(&mut self, connection: &RustConnection, keysym: u32) -> Result<u8, ReplyError> {
        if let Some(stroke) = self.strokes.get(&keysym) {
            return Ok(stroke.code);
        }
        self.give(connection, &[keysym])?;
        Ok(self.strokes.get(&keysym).map_or(0, |stroke| stroke.code))
    }

    /// Makes as many characters from the beginning writable as there are keys for, and says how many.
    pub(super) fn make_ready(
        &mut self,
        connection: &RustConnection,
        text: &[char],
    ) -> Result<usize, ReplyError> {
        let (mut wanted, mut ready) = (Vec::new(), 0);
        for char in text {
            let keysym = keysym(*char);
            if !self.strokes.contains_key(&keysym) && !wanted.contains(&keysym) {
                if wanted.len() >= self.spare.len() {
                    break;
                }
                wanted.push(keysym);
            }
            ready += 1;
        }
        // A key that was given something else for this text must not be needed in it.
        let kept: Vec<u32> = text[..ready].iter().map(|char| keysym(*char)).collect();
        self.spare.sort_by_key(|(_, given)| given.is_some_and(|given| kept.contains(&given)));
        if !wanted.is_empty() {
            self.give(connection, &wanted)?;
        }
        let is_writable = |char: &&char| self.stroke_of(**char).is_some();
        Ok(text[..ready].iter().take_while(is_writable).count())
    }

    fn give(&mut self, connection: &RustConnection, keysyms: &[u32]) -> Result<(), ReplyError> {
        // Programs that have not yet seen the keys that were pressed last would read them by the new map.
        std::thread::sleep(LEARNING);
        let count = keysyms.len().min(self.spare.len());
        for (keysym, (code, given)) in keysyms.iter().zip(self.spare.iter_mut().take(count)) {
            if let Some(before) = given.replace(*keysym) {
                self.strokes.remove(&before);
            }
            let all = vec![*keysym; self.per_key.into()];
            connection.change_keyboard_mapping(1, *code, self.per_key, &all)?.check()?;
            self.strokes.insert(*keysym, Stroke { code: *code, is_shifted: false });
        }
        self.spare.rotate_left(count);
        connection.get_input_focus()?.reply()?;
        std::thread::sleep(LEARNING);
        Ok(())
    }
}

/// The number that X11 has for a character.
pub(super) fn keysym(char: char) -> u32 {
    match char {
        '\n' | '\r' => 0xff0d,
        '\t' => 0xff09,
        '\u{8}' => 0xff08,
        ' '..='~' | '\u{a0}'..='\u{ff}' => u32::from(char),
        _ => 0x0100_0000 | u32::from(char),
    }
}
