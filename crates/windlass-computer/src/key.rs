//! Keyboard keys, by the names that providers use for them.

use std::fmt;

/// Keys that are pressed together, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChord(Vec<KeyboardKey>);

/// One key of a keyboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyboardKey {
    /// A key that produces this character.
    Char(char),
    /// A key with a name, such as Enter.
    Named(NamedKey),
}

impl KeyChord {
    /// The chord without keys.
    pub const EMPTY: Self = Self(Vec::new());

    /// Parses keys from a list of names.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        names.into_iter().map(KeyboardKey::from_name).collect::<Result<_, _>>().map(Self)
    }

    /// Parses keys joined by `+`, such as `ctrl+s`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.chars().count() == 1 {
            return Self::from_names([text]);
        }
        Self::from_names(text.split('+').map(|name| if name.is_empty() { "+" } else { name.trim() }))
    }

    /// Returns the keys, in order.
    pub fn keys(&self) -> &[KeyboardKey] {
        &self.0
    }

    /// Returns the modifier keys of the chord.
    pub fn modifiers(&self) -> impl Iterator<Item = NamedKey> + '_ {
        self.0.iter().filter_map(|key| match key {
            KeyboardKey::Named(key) if key.is_modifier() => Some(*key),
            KeyboardKey::Named(_) | KeyboardKey::Char(_) => None,
        })
    }
}

impl fmt::Display for KeyChord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, key) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("+")?;
            }
            match key {
                KeyboardKey::Char(char) => write!(f, "{char}")?,
                KeyboardKey::Named(key) => f.write_str(key.name())?,
            }
        }
        Ok(())
    }
}

macro_rules! named {
    ($($(#[$doc:meta])* $variant:ident: $name:literal, $code:literal, $vk:literal, $keysym:literal, [$($alias:literal),*];)*) => {
        /// A key with a name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are self-explanatory")]
        pub enum NamedKey { $($(#[$doc])* $variant),* }

        impl NamedKey {
            /// Returns the name, as in `KeyboardEvent.key` of the web.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns the position on the keyboard, as in `KeyboardEvent.code` of the web.
            pub(crate) fn code(self) -> &'static str {
                match self { $(Self::$variant => $code),* }
            }

            /// Returns the Windows virtual-key code, which the DevTools Protocol uses.
            pub(crate) fn virtual_key(self) -> u32 {
                match self { $(Self::$variant => $vk),* }
            }

            /// Returns the X11 keysym.
            #[cfg_attr(not(feature = "x11"), expect(dead_code, reason = "only used by the desktop"))]
            pub(crate) fn keysym(self) -> u32 {
                match self { $(Self::$variant => $keysym),* }
            }

            fn of_name(name: &str) -> Option<Self> {
                match name { $($($alias)|* => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

named! {
    Control: "Control", "ControlLeft", 17, 0xffe3, ["ctrl", "control", "control_l", "control_r", "controlleft", "controlright"];
    Shift: "Shift", "ShiftLeft", 16, 0xffe1, ["shift", "shift_l", "shift_r", "shiftleft", "shiftright"];
    Alt: "Alt", "AltLeft", 18, 0xffe9, ["alt", "option", "alt_l", "alt_r", "altleft", "altright", "altgr", "iso_level3_shift"];
    Meta: "Meta", "MetaLeft", 91, 0xffeb, ["meta", "cmd", "command", "super", "win", "windows", "super_l", "super_r", "meta_l", "meta_r", "metaleft", "metaright", "os"];
    Enter: "Enter", "Enter", 13, 0xff0d, ["enter", "return", "kp_enter", "numpadenter", "linefeed"];
    Tab: "Tab", "Tab", 9, 0xff09, ["tab", "kp_tab", "iso_left_tab"];
    Escape: "Escape", "Escape", 27, 0xff1b, ["escape", "esc"];
    Backspace: "Backspace", "Backspace", 8, 0xff08, ["backspace", "back_space", "bksp"];
    Delete: "Delete", "Delete", 46, 0xffff, ["delete", "del", "kp_delete"];
    Insert: "Insert", "Insert", 45, 0xff63, ["insert", "ins", "kp_insert"];
    Home: "Home", "Home", 36, 0xff50, ["home", "kp_home"];
    End: "End", "End", 35, 0xff57, ["end", "kp_end"];
    PageUp: "PageUp", "PageUp", 33, 0xff55, ["pageup", "page_up", "pgup", "prior", "kp_page_up", "kp_prior"];
    PageDown: "PageDown", "PageDown", 34, 0xff56, ["pagedown", "page_down", "pgdn", "pgdown", "next", "kp_page_down", "kp_next"];
    ArrowLeft: "ArrowLeft", "ArrowLeft", 37, 0xff51, ["arrowleft", "arrow_left", "left", "leftarrow", "kp_left"];
    ArrowUp: "ArrowUp", "ArrowUp", 38, 0xff52, ["arrowup", "arrow_up", "up", "uparrow", "kp_up"];
    ArrowRight: "ArrowRight", "ArrowRight", 39, 0xff53, ["arrowright", "arrow_right", "right", "rightarrow", "kp_right"];
    ArrowDown: "ArrowDown", "ArrowDown", 40, 0xff54, ["arrowdown", "arrow_down", "down", "downarrow", "kp_down"];
    CapsLock: "CapsLock", "CapsLock", 20, 0xffe5, ["capslock", "caps_lock", "caps"];
    ContextMenu: "ContextMenu", "ContextMenu", 93, 0xff67, ["contextmenu", "menu", "apps"];
    NumLock: "NumLock", "NumLock", 144, 0xff7f, ["numlock", "num_lock"];
    ScrollLock: "ScrollLock", "ScrollLock", 145, 0xff14, ["scrolllock", "scroll_lock"];
    PrintScreen: "PrintScreen", "PrintScreen", 44, 0xff61, ["printscreen", "print_screen", "print", "prtsc", "sys_req"];
    Pause: "Pause", "Pause", 19, 0xff13, ["pause", "break"];
    F1: "F1", "F1", 112, 0xffbe, ["f1"];
    F2: "F2", "F2", 113, 0xffbf, ["f2"];
    F3: "F3", "F3", 114, 0xffc0, ["f3"];
    F4: "F4", "F4", 115, 0xffc1, ["f4"];
    F5: "F5", "F5", 116, 0xffc2, ["f5"];
    F6: "F6", "F6", 117, 0xffc3, ["f6"];
    F7: "F7", "F7", 118, 0xffc4, ["f7"];
    F8: "F8", "F8", 119, 0xffc5, ["f8"];
    F9: "F9", "F9", 120, 0xffc6, ["f9"];
    F10: "F10", "F10", 121, 0xffc7, ["f10"];
    F11: "F11", "F11", 122, 0xffc8, ["f11"];
    F12: "F12", "F12", 123, 0xffc9, ["f12"];
}

impl NamedKey {
    /// Returns true if the key is a modifier: Control, Shift, Alt or Meta.
    pub fn is_modifier(self) -> bool {
        matches!(self, Self::Control | Self::Shift | Self::Alt | Self::Meta)
    }
}

impl KeyboardKey {
    /// Parses a key from the name that a provider uses: `CTRL`, `Return`, `a`, `/`.
    pub fn from_name(name: &str) -> Result<Self, String> {
        let mut chars = name.chars();
        if let (Some(only), None) = (chars.next(), chars.next()) {
            return Ok(Self::Char(only));
        }
        let lower = name.to_ascii_lowercase();
        if let Some(named) = NamedKey::of_name(&lower) {
            return Ok(Self::Named(named));
        }
        let char = match lower.as_str() {
            "space" | "spacebar" | "kp_space" => ' ',
            "plus" | "kp_add" | "numpadadd" => '+',
            "minus" | "dash" | "kp_subtract" | "numpadsubtract" => '-',
            "equal" | "equals" | "kp_equal" => '=',
            "asterisk" | "kp_multiply" | "numpadmultiply" => '*',
            "kp_divide" | "numpaddivide" => '/',
            "kp_decimal" | "numpaddecimal" => '.',
            "underscore" => '_',
            "exclam" => '!',
            "at" => '@',
            "numbersign" | "hash" => '#',
            "dollar" => '$',
            "percent" => '%',
            "asciicircum" | "caret" => '^',
            "ampersand" => '&',
            "parenleft" => '(',
            "parenright" => ')',
            "braceleft" => '{',
            "braceright" => '}',
            "bar" | "pipe" => '|',
            "colon" => ':',
            "quotedbl" => '"',
            "quote" => '\'',
            "less" => '<',
            "greater" => '>',
            "question" => '?',
            "asciitilde" | "tilde" => '~',
            "backquote" | "backtick" => '`',
            "comma" => ',',
            "period" => '.',
            "slash" => '/',
            "backslash" => '\\',
            "semicolon" => ';',
            "apostrophe" => '\'',
            "grave" => '`',
            "bracketleft" => '[',
            "bracketright" => ']',
            other if other.len() == 1 + other.trim_end_matches(|char: char| char.is_ascii_digit()).len() => {
                let (name, digit) = other.split_at(other.len() - 1);
                match (name, digit.chars().next()) {
                    ("kp_" | "numpad" | "digit", Some(digit)) => digit,
                    _ => return Err(format!("names the key `{other}`, which is not known")),
                }
            }
            _ => return Err(format!("names the key `{name}`, which is not known")),
        };
        Ok(Self::Char(char))
    }
}
