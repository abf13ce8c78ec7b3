//! What went wrong, as kubectl says it.

use std::process::ExitCode;

use machinery::Status;

/// The server said no.
#[derive(Debug)]
pub struct ServerError(pub Status);

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Status {
            reason, message, ..
        } = &self.0;
        match reason.as_str() {
            "" => write!(f, "Error from server: {message}"),
            // The message names kind and object already.
            "Invalid" => write!(f, "The {message}"),
            reason => write!(f, "Error from server ({reason}): {message}"),
        }
    }
}

impl std::error::Error for ServerError {}

/// The command ends with this code; everything has been said.
#[derive(Debug)]
pub struct Exit(pub u8);

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "command terminated with exit code {}", self.0)
    }
}

impl std::error::Error for Exit {}

/// Whether the server said that there is no such object.
pub fn is_not_found(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<ServerError>()
        .is_some_and(|ServerError(status)| status.code == 404)
}

/// Prints the error and gives the exit code that belongs to it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(exit) = error.downcast_ref::<Exit>() {
        eprintln!("{exit}");
        return ExitCode::from(exit.0);
    }
    if error.downcast_ref::<ServerError>().is_some() {
        eprintln!("{error}");
    } else {
        eprintln!("error: {error:#}");
    }
    ExitCode::FAILURE
}
