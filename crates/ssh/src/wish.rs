//! What a client wants for a session before it says what to run: variables, and a terminal.
//!
//! It is kept where requests are answered, so that what a client is told is what was done. When the
//! program is started it is taken from there, and whatever comes later is refused.

use std::collections::HashMap;

use wire::process::PtySize;

/// The variables that a client may set: how it writes, and what its terminal can.
const VARIABLES: [&str; 4] = ["LANG", "COLORTERM", "NO_COLOR", "TZ"];
/// How many there may be, with the terminal's own.
const MOST_VARIABLES: usize = 64;
/// How long their names and values may be together, in bytes.
const MOST_BYTES: usize = 32 << 10;
/// How often a client may ask for more than that before its session is ended.
const MOST_REFUSALS: usize = 64;

/// What one session is to be started with.
#[derive(Debug, Default)]
pub(crate) struct Wish {
    pub(crate) env: HashMap<String, String>,
    pub(crate) terminal: Option<PtySize>,
    refusals: usize,
}

impl Wish {
    /// Sets a variable, if a client may set it and there is room.
    pub(crate) fn set_variable(&mut self, name: &str, value: &str) -> bool {
        may_set(name) && self.put(name, value)
    }

    /// Asks for a terminal. Refused if there is no room for what it is called.
    pub(crate) fn set_terminal(&mut self, term: &str, columns: u32, rows: u32) -> bool {
        let has_room = self.put("TERM", term);
        if has_room {
            self.terminal = Some(size(columns, rows));
        }
        has_room
    }

    /// The terminal, if there is to be one, has another size.
    pub(crate) fn resize(&mut self, columns: u32, rows: u32) {
        if let Some(terminal) = &mut self.terminal {
            *terminal = size(columns, rows);
        }
    }

    /// Whether the client goes on asking for more than it can have.
    pub(crate) fn is_too_much(&self) -> bool {
        self.refusals > MOST_REFUSALS
    }

    fn put(&mut self, name: &str, value: &str) -> bool {
        let others = self.env.iter().filter(|(other, _)| *other != name);
        let (count, bytes) = others.fold((0, 0), |(count, bytes), (name, value)| {
            (count + 1, bytes + name.len() + value.len())
        });
        if count >= MOST_VARIABLES || bytes + name.len() + value.len() > MOST_BYTES {
            self.refusals += 1;
            return false;
        }
        self.env.insert(name.to_owned(), value.to_owned());
        true
    }
}

/// Whether a client may set this variable.
fn may_set(name: &str) -> bool {
    VARIABLES.contains(&name) || name.starts_with("LC_")
}

/// A size of a terminal; one that nobody looks at may have none.
pub(crate) fn size(columns: u32, rows: u32) -> PtySize {
    let within = |number: u32, otherwise| match number {
        0 => otherwise,
        _ => number.min(u16::MAX.into()),
    };
    PtySize {
        cols: within(columns, 80),
        rows: within(rows, 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_harmless_variables_can_be_set() {
        let mut wish = Wish::default();
        for name in ["LANG", "LC_ALL", "COLORTERM"] {
            assert!(wish.set_variable(name, "C"), "{name}");
        }
        for name in ["LD_PRELOAD", "PATH", "BASH_ENV", "TERM", "LCX", "HOME", ""] {
            assert!(!wish.set_variable(name, "C"), "{name}");
        }
        assert_eq!(wish.env.len(), 3);
    }

    #[test]
    fn variables_are_bounded_in_number_and_one_that_is_set_can_be_changed() {
        let mut wish = Wish::default();
        for number in 0..MOST_VARIABLES {
            assert!(wish.set_variable(&format!("LC_{number}"), "a"), "{number}");
        }
        assert!(!wish.set_variable("LC_MORE", "a"));
        assert!(!wish.set_terminal("xterm", 80, 24));
        assert!(wish.terminal.is_none());
        assert!(wish.set_variable("LC_0", "b"));
        assert_eq!(wish.env["LC_0"], "b");
        assert_eq!(wish.env.len(), MOST_VARIABLES);
    }

    #[test]
    fn variables_are_bounded_in_length_together() {
        let mut wish = Wish::default();
        let half = "a".repeat(MOST_BYTES / 2);
        assert!(wish.set_variable("LC_A", &half));
        assert!(!wish.set_variable("LC_B", &half), "the names count too");
        assert!(!wish.set_terminal(&half, 80, 24));
        assert!(wish.set_variable("LC_A", "a"), "a shorter value");
        assert!(wish.set_variable("LC_B", &half), "makes room");
        assert!(wish.set_terminal("xterm", 0, 50));
        wish.resize(100, 1 << 20);
        let terminal = wish.terminal.unwrap();
        assert_eq!((terminal.cols, terminal.rows), (100, 65_535));
    }

    #[test]
    fn who_goes_on_asking_for_more_asks_too_much() {
        let mut wish = Wish::default();
        let whole = "a".repeat(MOST_BYTES);
        for _ in 0..MOST_REFUSALS {
            assert!(!wish.set_variable("LANG", &whole));
            assert!(!wish.set_variable("PATH", "not counted: nothing would be kept"));
        }
        assert!(!wish.is_too_much());
        assert!(!wish.set_variable("LANG", &whole));
        assert!(wish.is_too_much());
    }
}
