//! Semantic versions.

use std::{cmp::Ordering, fmt, sync::Arc};

use super::{Row, convert::string, library::Library};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "semver",
        parse,
        &[
            ("string_to_semver", "string -> kubernetes.Semver"),
            ("string_bool_to_semver", "string, bool -> kubernetes.Semver"),
        ],
    ),
    (
        "isSemver",
        is_semver,
        &[
            ("is_semver_string", "string -> bool"),
            ("is_semver_string_bool", "string, bool -> bool"),
        ],
    ),
    (
        "major",
        |args| part(args, 0),
        &[(".semver_major", "kubernetes.Semver -> int")],
    ),
    (
        "minor",
        |args| part(args, 1),
        &[(".semver_minor", "kubernetes.Semver -> int")],
    ),
    (
        "patch",
        |args| part(args, 2),
        &[(".semver_patch", "kubernetes.Semver -> int")],
    ),
];

#[derive(Debug, Clone)]
pub struct Semver {
    numbers: [u64; 3],
    pre_release: Vec<String>,
    build: Vec<String>,
}

impl Semver {
    /// Reads `1.2.3-rc.1+build`. A tolerant reading takes a leading `v`, one or two numbers only
    /// and leading zeros.
    fn read(text: &str, tolerant: bool) -> Option<Self> {
        let text = if tolerant {
            text.trim().trim_start_matches('v')
        } else {
            text
        };
        let (text, build) = match text.split_once('+') {
            Some((text, build)) => (text, identifiers(build, false)?),
            None => (text, Vec::new()),
        };
        let (text, pre_release) = match text.split_once('-') {
            Some((text, pre)) => (text, identifiers(pre, true)?),
            None => (text, Vec::new()),
        };
        let mut parts: Vec<&str> = text.split('.').collect();
        if tolerant && parts.len() < 3 && pre_release.is_empty() && build.is_empty() {
            parts.resize(3, "0");
        }
        let [major, minor, patch] = parts.as_slice() else {
            return None;
        };
        let number = |text: &str| {
            let text = match tolerant {
                true => Some(text.trim_start_matches('0'))
                    .filter(|rest| !rest.is_empty())
                    .unwrap_or(&text[text.len().saturating_sub(1)..]),
                false => text,
            };
            let plain = text.bytes().all(|b| b.is_ascii_digit());
            let zeros = text.len() > 1 && text.starts_with('0');
            (plain && !zeros).then(|| text.parse::<u64>().ok())?
        };
        Some(Self {
            numbers: [number(major)?, number(minor)?, number(patch)?],
            pre_release,
            build,
        })
    }

    /// The order of versions; build metadata does not matter.
    pub(super) fn precedence(&self, other: &Self) -> Ordering {
        let pre = |version: &Self| version.pre_release.is_empty();
        self.numbers
            .cmp(&other.numbers)
            .then_with(|| match (pre(self), pre(other)) {
                (true, true) => Ordering::Equal,
                (true, false) => Ordering::Greater,
                (false, true) => Ordering::Less,
                (false, false) => compare_identifiers(&self.pre_release, &other.pre_release),
            })
    }
}

fn identifiers(text: &str, pre_release: bool) -> Option<Vec<String>> {
    let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
    let valid = parts.iter().all(|part| {
        let numeric = part.bytes().all(|b| b.is_ascii_digit());
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !(pre_release && numeric && part.len() > 1 && part.starts_with('0'))
    });
    valid.then_some(parts)
}

fn compare_identifiers(a: &[String], b: &[String]) -> Ordering {
    for (a, b) in a.iter().zip(b) {
        let order = match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        if order.is_ne() {
            return order;
        }
    }
    a.len().cmp(&b.len())
}

impl fmt::Display for Semver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        if !self.pre_release.is_empty() {
            write!(f, "-{}", self.pre_release.join("."))?;
        }
        if !self.build.is_empty() {
            write!(f, "+{}", self.build.join("."))?;
        }
        Ok(())
    }
}

fn tolerant(args: &[Value<'_>]) -> Result<bool> {
    match args.get(1) {
        None => Ok(false),
        Some(Value::Bool(tolerant)) => Ok(*tolerant),
        Some(_) => Err(Error::no_such_overload()),
    }
}

fn parse<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let text = string(args, 0)?;
    let version = Semver::read(text, tolerant(args)?)
        .ok_or_else(|| Error::new(format!("invalid semantic version {:?}", &**text)))?;
    Ok(Value::Library(Library::Semver(Arc::new(version))))
}

fn is_semver<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let valid = Semver::read(string(args, 0)?, tolerant(args)?).is_some();
    Ok(Value::Bool(valid))
}

fn part<'a>(args: &[Value<'a>], at: usize) -> Result<Value<'a>> {
    match args {
        [Value::Library(Library::Semver(version))] => Ok(Value::Int(version.numbers[at] as i64)),
        _ => Err(Error::no_such_overload()),
    }
}
