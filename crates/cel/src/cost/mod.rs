//! Cost: of an evaluation ([`runtime`]), and its maximum ([`estimate`]). One unit is about 50 ns of
//! upstream's interpreter; the numbers are part of the API, since they decide which rules are
//! accepted.

pub mod estimate;
mod range;
pub mod runtime;

/// Traversing a character or byte.
pub(crate) const STRING_TRAVERSAL: f64 = 0.1;
/// A character of a regular expression.
pub(crate) const REGEX_LENGTH: f64 = 0.25;
