//! Polls descriptors without an async runtime.

use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Whether data can be read without blocking. End of file does not count.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::ZERO).unwrap_or(0);
    ready > 0
        && fds[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLIN))
}

/// Whether the peer has closed the connection.
pub(crate) fn is_closed(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    let ready = poll(&mut fds, PollTimeout::ZERO).unwrap_or(0);
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    ready > 0
        && fds[0]
            .revents()
            .is_some_and(|events| events.intersects(gone))
}
