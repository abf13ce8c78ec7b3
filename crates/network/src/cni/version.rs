//! The supported versions of the CNI specification.

use std::{fmt, str::FromStr};

/// A version of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32, u32);

impl Version {
    pub(super) const V0_1_0: Self = Self(0, 1, 0);
    pub(super) const V0_4_0: Self = Self(0, 4, 0);
    pub(super) const V1_1_0: Self = Self(1, 1, 0);
}

/// All supported versions.
pub(super) const ALL: &[Version] = &[
    Version::V0_1_0,
    Version(0, 2, 0),
    Version(0, 3, 0),
    Version(0, 3, 1),
    Version::V0_4_0,
    Version(1, 0, 0),
    Version::V1_1_0,
];

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a CNI version");
        let mut parts = text.split('.').map(str::parse::<u32>);
        let mut part = || parts.next().and_then(Result::ok).ok_or_else(wrong);
        let version = Self(part()?, part()?, part()?);
        if parts.next().is_some() {
            return Err(wrong());
        }
        Ok(version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_three_numbers_and_an_order() {
        let parse = |text: &str| text.parse::<Version>();
        assert_eq!(parse("0.4.0"), Ok(Version::V0_4_0));
        assert!(parse("0.10.0").unwrap() > parse("0.4.0").unwrap());
        for wrong in ["", "1", "1.0", "1.0.0.0", "a.b.c", "1.0.0-rc1"] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(ALL.is_sorted());
    }
}
