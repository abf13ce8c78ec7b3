//! Waits for signals. The first process of a container gets only signals that it handles, so that
//! one that should end on SIGTERM must handle it.

use std::{io, mem::MaybeUninit, thread};

/// Blocks signals for all threads; call before threads start.
pub(crate) fn block(numbers: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` initialises the set that the others then read and change.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for number in numbers {
            libc::sigaddset(set.as_mut_ptr(), *number);
        }
        match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) {
            0 => Ok(set.assume_init()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

/// Waits for one of the blocked signals.
pub(crate) fn wait(set: &libc::sigset_t) -> io::Result<i32> {
    let mut number = 0;
    // SAFETY: both pointers are valid for the call.
    match unsafe { libc::sigwait(set, &raw mut number) } {
        0 => Ok(number),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Ends the process with 0 on SIGTERM or SIGINT.
pub(crate) fn end_when_asked() -> io::Result<()> {
    let set = block(&[libc::SIGTERM, libc::SIGINT])?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            if wait(&set).is_ok() {
                std::process::exit(0);
            }
        })?;
    Ok(())
}
