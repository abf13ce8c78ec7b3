//! What is behind each path: from a request whose caller is known and allowed to its answer.

use machinery::Status;

use crate::{pipeline::Request, respond::Answer};

/// Hands a request to what serves its path and verb.
pub(crate) async fn dispatch(request: Request) -> Answer {
    let _ = request;
    Err(Status::path_not_found())
}
