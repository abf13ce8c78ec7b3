//! Terminals of containers.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
};

/// Sets a terminal's size; the kernel sends SIGWINCH.
pub(crate) fn resize(terminal: BorrowedFd<'_>, width: u16, height: u16) -> io::Result<()> {
    let size = libc::winsize {
        ws_row: height,
        ws_col: width,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the request reads one winsize, which lives through the call.
    let result = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
