//! The user's terminal: raw during a remote session, and restored afterwards.

use std::io::{IsTerminal, stdin};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use streaming::TerminalSize;

/// A terminal in raw mode; dropping it restores the mode it had.
pub(crate) struct Raw(Termios);

impl Raw {
    /// Makes standard input raw, if it is a terminal.
    pub(crate) fn enter() -> Option<Self> {
        if !stdin().is_terminal() {
            return None;
        }
        let before = tcgetattr(stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

/// The terminal's size now.
pub(crate) fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(stdin()).ok()?;
    Some(TerminalSize {
        width: size.ws_col,
        height: size.ws_row,
    })
}
