//! URLs, split as Go's `net/url` splits them.

use std::{net::IpAddr, sync::Arc};

use machinery::text::quote;
use stdx::percent;

use super::{Row, address, convert::string, library::Library};
use crate::value::{Error, Map, OwnedMap, Result, Value};

pub(super) const ROWS: &[Row] = &[
    ("url", url, &[("string_to_url", "string -> kubernetes.URL")]),
    (
        "isURL",
        |args| Ok(Value::Bool(Url::parse(string(args, 0)?).is_ok())),
        &[("is_url_string", "string -> bool")],
    ),
    (
        "getScheme",
        |args| Ok(Value::text(&*single_url(args)?.scheme)),
        &[(".url_get_scheme", "kubernetes.URL -> string")],
    ),
    (
        "getHost",
        |args| Ok(Value::text(&*single_url(args)?.host)),
        &[(".url_get_host", "kubernetes.URL -> string")],
    ),
    (
        "getHostname",
        |args| Ok(Value::text(single_url(args)?.host_and_port().0)),
        &[(".url_get_hostname", "kubernetes.URL -> string")],
    ),
    (
        "getPort",
        |args| Ok(Value::text(single_url(args)?.host_and_port().1)),
        &[(".url_get_port", "kubernetes.URL -> string")],
    ),
    (
        "getEscapedPath",
        |args| Ok(Value::text(single_url(args)?.escaped_path())),
        &[(".url_get_escaped_path", "kubernetes.URL -> string")],
    ),
    (
        "getQuery",
        query,
        &[(
            ".url_get_query",
            "kubernetes.URL -> map(string, list(string))",
        )],
    ),
];

#[derive(Debug, Default)]
pub struct Url {
    pub text: String,
    scheme: String,
    host: String,
    path: String,
    query: String,
}

impl Url {
    /// An absolute URI or an absolute path.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let invalid = |why: &str| {
            Error::new(format!(
                "URL parse error during conversion from string: parse {}: {why}",
                quote(text)
            ))
        };
        if text.is_empty() {
            return Err(invalid("empty url"));
        }
        if text.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err(invalid("net/url: invalid control character in URL"));
        }
        if text == "*" {
            return Ok(Self {
                text: text.to_owned(),
                path: text.to_owned(),
                ..Self::default()
            });
        }
        if text.starts_with(':') {
            return Err(invalid("missing protocol scheme"));
        }
        let scheme_end = text.find(':').filter(|at| {
            let scheme = &text.as_bytes()[..*at];
            scheme.first().is_some_and(u8::is_ascii_alphabetic)
                && scheme
                    .iter()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'))
        });
        let (scheme, rest) = match scheme_end {
            Some(at) => (text[..at].to_ascii_lowercase(), &text[at + 1..]),
            None => (String::new(), text),
        };
        if !rest.starts_with('/') {
            if scheme.is_empty() {
                return Err(invalid("invalid URI for request"));
            }
            // `mailto:someone`: the text after the scheme is opaque.
            return Ok(Self {
                text: format!("{scheme}{}", &text[scheme.len()..]),
                scheme,
                host: String::new(),
                path: String::new(),
                query: String::new(),
            });
        }
        let rest = rest.split('#').next().unwrap_or(rest);
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest
            .strip_prefix("//")
            .filter(|_| !scheme.is_empty() || rest.starts_with("//") && !rest.starts_with("///"))
        {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", rest),
        };
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        if !user.bytes().all(is_userinfo) {
            return Err(invalid("net/url: invalid userinfo"));
        }
        check_host(host).map_err(|why| invalid(&why))?;
        check_escapes(path).map_err(|why| invalid(&why))?;
        Ok(Self {
            text: format!("{scheme}{}", &text[scheme.len()..]),
            scheme,
            host: host.to_owned(),
            path: path.to_owned(),
            query: query.to_owned(),
        })
    }

    fn host_and_port(&self) -> (&str, &str) {
        if let Some(rest) = self.host.strip_prefix('[') {
            let (inside, after) = rest.split_once(']').unwrap_or((rest, ""));
            return (inside, after.strip_prefix(':').unwrap_or(""));
        }
        self.host.split_once(':').unwrap_or((&self.host, ""))
    }

    /// The path with the necessary escapes.
    fn escaped_path(&self) -> String {
        percent::encode(&self.path, "$&+,/:;=@%!'()*[]")
    }
}

fn is_userinfo(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte)
}

const NOT_AN_ADDRESS: &str = "invalid IP-literal";

fn check_host(host: &str) -> std::result::Result<(), String> {
    if host.rfind('[').is_some_and(|at| at > 0) {
        return Err(NOT_AN_ADDRESS.to_owned());
    }
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let Some((name, after)) = rest.rsplit_once(']') else {
                return Err("missing ']' in host".to_owned());
            };
            (name, after)
        }
        None => match host.find(':') {
            Some(at) => host.split_at(at),
            None => (host, ""),
        },
    };
    if let Some(bad) = name.chars().find(|c| " \\^`{|}".contains(*c)) {
        return Err(format!(
            "invalid character {:?} in host name",
            bad.to_string()
        ));
    }
    let digits = port.strip_prefix(':').unwrap_or("");
    if !port.is_empty() && (!port.starts_with(':') || !digits.bytes().all(|b| b.is_ascii_digit())) {
        return Err(format!("invalid port {} after host", quote(port)));
    }
    if !host.starts_with('[') {
        return Ok(());
    }
    // The `%` before a zone is escaped.
    let (address, zone) = name.split_once("%25").unwrap_or((name, ""));
    check_escapes(address)?;
    let zoned = match zone {
        "" => address.to_owned(),
        zone => format!("{address}%{zone}"),
    };
    match address::parse(&zoned) {
        Ok(IpAddr::V6(_)) => Ok(()),
        Ok(IpAddr::V4(_)) => Err(NOT_AN_ADDRESS.to_owned()),
        Err(why) => Err(format!("invalid host: {why}")),
    }
}

fn check_escapes(path: &str) -> std::result::Result<(), String> {
    let bytes = path.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        let escape = &bytes[at..bytes.len().min(at + 3)];
        let digits = escape.get(1..).unwrap_or_default();
        if *byte == b'%' && (digits.len() < 2 || !digits.iter().all(u8::is_ascii_hexdigit)) {
            let shown = String::from_utf8_lossy(escape);
            return Err(format!("invalid URL escape {shown:?}"));
        }
    }
    Ok(())
}

fn single_url<'v>(args: &'v [Value<'_>]) -> Result<&'v Url> {
    match args {
        [Value::Library(Library::Url(url))] => Ok(url),
        _ => Err(Error::no_such_overload()),
    }
}

fn url<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let url = Url::parse(string(args, 0)?)?;
    Ok(Value::Library(Library::Url(Arc::new(url))))
}

fn query<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut names: Vec<(String, Vec<Value<'a>>)> = Vec::new();
    for pair in single_url(args)?
        .query
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (Some(name), Some(value)) = (unescape(name), unescape(value)) else {
            continue;
        };
        match names.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => values.push(Value::text(value)),
            None => names.push((name, vec![Value::text(value)])),
        }
    }
    let mut map = OwnedMap::default();
    for (name, values) in names {
        map.insert(Value::text(name), Value::list(values))?;
    }
    Ok(Value::Map(Map::Owned(map.into())))
}

/// A decoded part of a query; `None` if an escape is invalid.
fn unescape(text: &str) -> Option<String> {
    percent::is_well_escaped(text).then(|| percent::decode(&text.replace('+', " ")))
}
