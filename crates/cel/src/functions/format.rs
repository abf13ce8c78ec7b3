//! Named formats of strings.

use machinery::format as check;

use super::{Row, convert, library::Library, url};
use crate::value::{Error, Result, Value};

pub(super) const ROWS: &[Row] = &[
    (
        "validate",
        validate,
        &[(
            ".format-validate",
            "kubernetes.NamedFormat, string -> optional(list(string))",
        )],
    ),
    (
        "format.named",
        named,
        &[("format-named", "string -> optional(kubernetes.NamedFormat)")],
    ),
    (
        "format.dns1123Label",
        |_| constant("dns1123Label"),
        &[("format.dns1123Label", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.dns1123Subdomain",
        |_| constant("dns1123Subdomain"),
        &[("format.dns1123Subdomain", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.dns1035Label",
        |_| constant("dns1035Label"),
        &[("format.dns1035Label", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.qualifiedName",
        |_| constant("qualifiedName"),
        &[("format.qualifiedName", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.dns1123LabelPrefix",
        |_| constant("dns1123LabelPrefix"),
        &[("format.dns1123LabelPrefix", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.dns1123SubdomainPrefix",
        |_| constant("dns1123SubdomainPrefix"),
        &[(
            "format.dns1123SubdomainPrefix",
            " -> kubernetes.NamedFormat",
        )],
    ),
    (
        "format.dns1035LabelPrefix",
        |_| constant("dns1035LabelPrefix"),
        &[("format.dns1035LabelPrefix", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.labelValue",
        |_| constant("labelValue"),
        &[("format.labelValue", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.uri",
        |_| constant("uri"),
        &[("format.uri", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.uuid",
        |_| constant("uuid"),
        &[("format.uuid", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.byte",
        |_| constant("byte"),
        &[("format.byte", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.date",
        |_| constant("date"),
        &[("format.date", " -> kubernetes.NamedFormat")],
    ),
    (
        "format.datetime",
        |_| constant("datetime"),
        &[("format.datetime", " -> kubernetes.NamedFormat")],
    ),
];

/// A named format; the pattern's size is only for the cost.
#[derive(Debug)]
pub struct NamedFormat {
    pub name: &'static str,
    pub pattern_size: u64,
    validate: fn(&str) -> Vec<String>,
}

const FORMATS: &[NamedFormat] = &[
    NamedFormat {
        name: "dns1123Label",
        pattern_size: 30,
        validate: check::dns1123_label,
    },
    NamedFormat {
        name: "dns1123Subdomain",
        pattern_size: 60,
        validate: check::dns1123_subdomain,
    },
    NamedFormat {
        name: "dns1035Label",
        pattern_size: 30,
        validate: check::dns1035_label,
    },
    NamedFormat {
        name: "qualifiedName",
        pattern_size: 60,
        validate: check::qualified_name,
    },
    NamedFormat {
        name: "dns1123LabelPrefix",
        pattern_size: 30,
        validate: |text| check::dns1123_label(&unprefixed(text)),
    },
    NamedFormat {
        name: "dns1123SubdomainPrefix",
        pattern_size: 60,
        validate: |text| check::dns1123_subdomain(&unprefixed(text)),
    },
    NamedFormat {
        name: "dns1035LabelPrefix",
        pattern_size: 30,
        validate: |text| check::dns1035_label(&unprefixed(text)),
    },
    NamedFormat {
        name: "labelValue",
        pattern_size: 40,
        validate: check::label_value,
    },
    NamedFormat {
        name: "uri",
        pattern_size: 1103,
        validate: uri,
    },
    NamedFormat {
        name: "uuid",
        pattern_size: 70,
        validate: |text| unless(is_uuid(text), "does not match the UUID format"),
    },
    NamedFormat {
        name: "byte",
        pattern_size: 84,
        validate: |text| {
            let is_valid = !text.is_empty() && convert::base64(text).is_ok();
            unless(is_valid, "invalid base64")
        },
    },
    NamedFormat {
        name: "date",
        pattern_size: 71,
        validate: |text| unless(is_date(text), "invalid date"),
    },
    NamedFormat {
        name: "datetime",
        pattern_size: 71,
        validate: |text| unless(is_datetime(text), "invalid datetime"),
    },
];

/// A prefix may end in a dash, since a suffix follows: the dash is replaced by a letter.
fn unprefixed(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(rest) => format!("{rest}a"),
        None => text.to_owned(),
    }
}

fn unless(valid: bool, message: &str) -> Vec<String> {
    if valid {
        Vec::new()
    } else {
        vec![message.to_owned()]
    }
}

fn uri(text: &str) -> Vec<String> {
    match url::Url::parse(text) {
        Ok(_) => Vec::new(),
        Err(error) => vec![
            error
                .message
                .replace("URL parse error during conversion from string: ", ""),
        ],
    }
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let plain = text.len() == 32 && groups.len() == 1;
    let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
    (plain || lengths == [8, 4, 4, 4, 12])
        && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')
}

fn is_date(text: &str) -> bool {
    text.len() == 10 && convert::schema_time(text).is_ok()
}

/// A date, `T`, a time of two digits each, an optional fraction, and a zone, in any case.
fn is_datetime(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let mut parts = text.split('t');
    let (Some(date), Some(time)) = (parts.next(), parts.next()) else {
        return false;
    };
    let (Some(clock), Some(rest)) = (time.get(..8), time.get(8..)) else {
        return false;
    };
    let two_digits = |text: &str| {
        let is_number = text.len() == 2 && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse::<u8>().unwrap_or(u8::MAX))
    };
    let numbers: Option<Vec<u8>> = clock.split(':').map(two_digits).collect();
    let is_clock = numbers.is_some_and(|n| n.len() == 3 && n[0] <= 23 && n[1] <= 59 && n[2] <= 59);
    let is_zone = |zone: &str| {
        let offset = zone.strip_prefix(['+', '-']).unwrap_or_default();
        let mut parts = offset.split(':').map(two_digits);
        zone == "z" || parts.clone().count() == 2 && parts.all(|part| part.is_some())
    };
    // The character before the digits of a fraction may be any.
    let mut fraction = rest.chars();
    fraction.next();
    let behind = fraction
        .as_str()
        .trim_start_matches(|c: char| c.is_ascii_digit());
    let has_fraction = behind.len() < fraction.as_str().len();
    is_date(date) && is_clock && (is_zone(rest) || has_fraction && is_zone(behind))
}

fn lookup(name: &str) -> Option<&'static NamedFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

fn constant<'a>(name: &str) -> Result<Value<'a>> {
    let format = lookup(name).ok_or_else(Error::no_such_overload)?;
    Ok(Value::Library(Library::Format(format)))
}

fn named<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let format = lookup(convert::string(args, 0)?);
    Ok(format.map_or(Value::NONE, |format| {
        Value::some(Value::Library(Library::Format(format)))
    }))
}

fn validate<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let [Value::Library(Library::Format(format)), Value::String(text)] = args else {
        return Err(Error::no_such_overload());
    };
    let problems = (format.validate)(text);
    if problems.is_empty() {
        return Ok(Value::NONE);
    }
    let problems = problems.into_iter().map(Value::text).collect();
    Ok(Value::some(Value::list(problems)))
}
