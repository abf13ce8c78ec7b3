//! What metrics show of a certificate that is renewed automatically.

use jiff::Timestamp;

use crate::{Issued, Renewing};

/// A certificate in use.
pub trait Lifetime: Send + Sync {
    /// The expiry; `None` while there is no certificate.
    fn not_after(&self) -> Option<Timestamp>;

    /// How often a renewal failed.
    fn renewal_errors(&self) -> u64;
}

impl Lifetime for Issued {
    fn not_after(&self) -> Option<Timestamp> {
        Some(Self::not_after(self))
    }

    fn renewal_errors(&self) -> u64 {
        Self::renewal_errors(self)
    }
}

impl Lifetime for Renewing {
    fn not_after(&self) -> Option<Timestamp> {
        Self::not_after(self)
    }

    fn renewal_errors(&self) -> u64 {
        Self::renewal_errors(self)
    }
}
