//! What stages of a request need of its audit event, wherever that is written.

/// The audit event of a request, to which plugins add annotations.
pub trait AuditTrail: Send + Sync {
    /// Adds an annotation; the first value of a key stays.
    fn annotate(&self, key: &str, value: &str);
    /// Whether the event holds the body of the request.
    fn wants_request(&self) -> bool;
}
