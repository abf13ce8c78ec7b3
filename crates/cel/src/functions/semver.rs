//! Semantic versions.

use std::{cmp::Ordering, fmt, sync::Arc};

use machinery::text::quote;

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
    /// Reads `1.2.3-rc.1+build`, or says what is wrong with it. A tolerant reading takes a leading
    /// `v`, one or two numbers only and leading zeros.
    pub(crate) fn read(text: &str, tolerant: bool) -> Result<Self, String> {
        match tolerant {
            true => Self::read_strictly(&normalized(text)?),
            false => Self::read_strictly(text),
        }
    }

    fn read_strictly(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("Version string empty".to_owned());
        }
        let parts: Vec<&str> = text.splitn(3, '.').collect();
        let [major, minor, rest] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let (major, minor) = (number(major, "major")?, number(minor, "minor")?);
        let (rest, build) = rest
            .split_once('+')
            .map_or((*rest, None), |(a, b)| (a, Some(b)));
        let (patch, pre) = rest
            .split_once('-')
            .map_or((rest, None), |(a, b)| (a, Some(b)));
        let patch = number(patch, "patch")?;
        let identifiers = |text: Option<&str>, check: fn(&str) -> Result<(), String>| {
            let parts = text.into_iter().flat_map(|text| text.split('.'));
            parts
                .map(|part| check(part).map(|()| part.to_owned()))
                .collect::<Result<Vec<String>, String>>()
        };
        Ok(Self {
            numbers: [major, minor, patch],
            pre_release: identifiers(pre, check_pre_release)?,
            build: identifiers(build, check_build)?,
        })
    }

    /// The order of versions; build metadata is ignored.
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

/// A version with three numbers without leading zeros.
fn normalized(text: &str) -> Result<String, String> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut parts: Vec<String> = text.splitn(3, '.').map(str::to_owned).collect();
    for part in parts.iter_mut().filter(|part| part.len() > 1) {
        let rest = part.trim_start_matches('0');
        *part = match rest.starts_with(|c: char| c.is_ascii_digit()) {
            true => rest.to_owned(),
            false => format!("0{rest}"),
        };
    }
    if parts.len() < 3 && parts.last().is_some_and(|part| part.contains(['+', '-'])) {
        return Err("short version cannot contain PreRelease/Build meta data".to_owned());
    }
    while parts.len() < 3 {
        parts.push("0".to_owned());
    }
    Ok(parts.join("."))
}

fn is_number(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit())
}

fn has_leading_zeros(text: &str) -> bool {
    text.len() > 1 && text.starts_with('0')
}

fn number(text: &str, which: &str) -> Result<u64, String> {
    let quoted = quote(text);
    if !is_number(text) {
        return Err(format!(
            "Invalid character(s) found in {which} number {quoted}"
        ));
    }
    if has_leading_zeros(text) {
        let which = format!("{}{}", which[..1].to_uppercase(), &which[1..]);
        return Err(format!(
            "{which} number must not contain leading zeroes {quoted}"
        ));
    }
    let invalid = match text.is_empty() {
        true => "invalid syntax",
        false => "value out of range",
    };
    text.parse()
        .map_err(|_| format!("strconv.ParseUint: parsing {quoted}: {invalid}"))
}

fn is_identifier(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn check_pre_release(part: &str) -> Result<(), String> {
    if part.is_empty() {
        return Err("Prerelease is empty".to_owned());
    }
    let quoted = quote(part);
    if is_number(part) && has_leading_zeros(part) {
        return Err(format!(
            "Numeric PreRelease version must not contain leading zeroes {quoted}"
        ));
    }
    match is_identifier(part) {
        true => Ok(()),
        false => Err(format!("Invalid character(s) found in prerelease {quoted}")),
    }
}

fn check_build(part: &str) -> Result<(), String> {
    if part.is_empty() {
        return Err("Build meta data is empty".to_owned());
    }
    match is_identifier(part) {
        true => Ok(()),
        false => {
            let quoted = quote(part);
            Err(format!(
                "Invalid character(s) found in build meta data {quoted}"
            ))
        }
    }
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
    let version = Semver::read(text, tolerant(args)?).map_err(Error::new)?;
    Ok(Value::Library(Library::Semver(Arc::new(version))))
}

fn is_semver<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let valid = Semver::read(string(args, 0)?, tolerant(args)?).is_ok();
    Ok(Value::Bool(valid))
}

fn part<'a>(args: &[Value<'a>], at: usize) -> Result<Value<'a>> {
    match args {
        [Value::Library(Library::Semver(version))] => Ok(Value::Int(version.numbers[at] as i64)),
        _ => Err(Error::no_such_overload()),
    }
}
