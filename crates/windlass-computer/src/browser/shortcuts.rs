//! The keyboard shortcuts that the browser itself acts on.

use super::input::modifier_mask;
use crate::key::{KeyChord, KeyboardKey, NamedKey};

/// Returns true if the browser itself acts on a chord: it opens windows, tabs and pages of its own.
pub(super) fn is_browser_shortcut(chord: &KeyChord) -> bool {
    let mask = modifier_mask(chord);
    let [alt, control, shift] = [1, 2, 8].map(|bit| mask & bit != 0);
    let control = control || mask & 4 != 0;
    chord.keys().iter().any(|key| match key {
        KeyboardKey::Char(char) => match char.to_ascii_lowercase() {
            'n' | 't' | 'w' | 'h' | 'j' | 'u' | 'o' | 'q' => control,
            'i' | 'c' | 'b' | 'm' | 'a' | 'd' | 'g' | 'p' => control && shift,
            'f' | 'e' => alt && !control,
            digit @ '1'..='9' => control && !shift && !alt && digit.is_ascii_digit(),
            _ => false,
        },
        KeyboardKey::Named(named) => match named {
            NamedKey::F12 | NamedKey::F1 | NamedKey::F6 | NamedKey::F7 | NamedKey::F10 | NamedKey::F11 => {
                true
            }
            NamedKey::F4 => control || alt,
            NamedKey::Tab | NamedKey::PageUp | NamedKey::PageDown => control,
            NamedKey::Home => alt,
            NamedKey::Delete => control && shift,
            NamedKey::Escape => shift,
            _ => false,
        },
    })
}
