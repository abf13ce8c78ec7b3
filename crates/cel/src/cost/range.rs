//! Costs and sizes as ranges.

/// A cost or a size between two bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub min: u64,
    pub max: u64,
}

impl Range {
    pub const ZERO: Range = Range::fixed(0);
    pub(super) const UNKNOWN: Range = Range {
        min: 0,
        max: u64::MAX,
    };

    pub const fn fixed(value: u64) -> Self {
        Self {
            min: value,
            max: value,
        }
    }

    pub(super) fn add(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_add(other.min),
            max: self.max.saturating_add(other.max),
        }
    }

    pub(super) fn multiply(self, other: Self) -> Self {
        Self {
            min: self.min.saturating_mul(other.min),
            max: self.max.saturating_mul(other.max),
        }
    }

    pub(super) fn scale(self, factor: f64) -> Self {
        let scale = |value: u64| {
            let scaled = (value as f64 * factor).ceil();
            // Conversions from floats saturate.
            scaled as u64
        };
        Self {
            min: scale(self.min),
            max: scale(self.max),
        }
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }
}
