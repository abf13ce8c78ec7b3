//! What versions of etcd support.

/// A version of etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Parses text such as `3.5.13` or `3.6.0-rc.1`.
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.split(['-', '+']).next()?;
        let mut numbers = plain.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }

    /// Whether it supports the protocol that the store uses.
    pub fn is_supported(self) -> bool {
        self >= Self(3, 4, 0)
    }

    /// Whether progress notifications are reliable. Earlier versions could send one before the
    /// events that lead to its revision.
    pub fn has_reliable_progress(self) -> bool {
        match self {
            Self(3, 4, patch) => patch >= 31,
            Self(3, 5, patch) => patch >= 13,
            later => later >= Self(3, 6, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_trusted_from_the_versions_that_repaired_it() {
        for (text, reliable) in [
            ("3.4.23", false),
            ("3.4.30", false),
            ("3.4.31", true),
            ("3.5.12", false),
            ("3.5.13", true),
            ("3.6.0-rc.1", true),
            ("4.0.0", true),
        ] {
            let version = Version::parse(text).unwrap();
            assert_eq!(version.has_reliable_progress(), reliable, "{text}");
            assert!(version.is_supported());
        }
        assert!(!Version(3, 3, 27).is_supported());
        assert_eq!(Version::parse("3.5"), None);
        assert_eq!(Version::parse("not decided"), None);
    }
}
