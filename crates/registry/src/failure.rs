//! Store errors as the Status a client sees.

use machinery::Status;
use store::Error;

/// An error other than an object's precondition.
pub fn of_store(error: Error) -> Status {
    match error {
        Error::Compacted { requested, oldest } => {
            Status::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        Error::Future { requested, newest } => too_large(requested, newest),
        Error::Lagged => Status::expired("The watcher did not keep up."),
        Error::Invalid(why) => Status::bad_request(why),
        Error::Full(_) | Error::Unavailable(_) => Status::service_unavailable(error.to_string()),
        Error::Conflict { .. }
        | Error::Lost { .. }
        | Error::ManifestMissing { .. }
        | Error::Corrupt(_)
        | Error::Unreadable(_) => Status::internal(error),
    }
}

/// 504: a future revision. Clients recognise the cause and retry.
fn too_large(requested: u64, newest: u64) -> Status {
    let message = format!("Too large resource version: {requested}, current: {newest}");
    let mut status = Status::timeout(&message, 1);
    let details = status.details.get_or_insert_default();
    details.causes.push(machinery::status::Cause {
        reason: "ResourceVersionTooLarge".to_owned(),
        message: "Too large resource version".to_owned(),
        field: String::new(),
    });
    status
}
