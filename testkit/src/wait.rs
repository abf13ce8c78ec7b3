//! Waits for a condition with a deadline: tests never sleep.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// The default timeout.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `check` returns a value; panics with its last error after the timeout.
pub fn until<T>(what: &str, patience: Duration, mut check: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + patience;
    loop {
        match check() {
            Ok(value) => return value,
            Err(complaint) if Instant::now() >= deadline => {
                panic!("waited {patience:?} for {what}: {complaint}")
            }
            Err(_) => sleep(Duration::from_millis(100)),
        }
    }
}

/// [`until`] with the default timeout.
pub fn eventually<T>(what: &str, check: impl FnMut() -> Result<T, String>) -> T {
    until(what, PATIENCE, check)
}
