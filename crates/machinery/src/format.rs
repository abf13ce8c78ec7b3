//! Formats of names, label keys and other short strings. Every check returns Kubernetes' messages,
//! none if the value is valid.

/// Longest DNS label.
pub const LABEL_MAX: usize = 63;
/// Longest DNS subdomain.
pub const SUBDOMAIN_MAX: usize = 253;

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const KEY_NAME: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";
const SUBDOMAIN_MESSAGE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const KEY_MESSAGE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// `must be between lo and hi, inclusive`.
pub fn range_message(lo: i64, hi: i64) -> String {
    format!("must be between {lo} and {hi}, inclusive")
}

fn max_characters(n: usize) -> String {
    format!("must be no more than {n} characters")
}

fn max_bytes(n: usize) -> String {
    format!("must be no more than {n} bytes")
}

/// A message that names the pattern and examples of what fits it.
pub fn pattern_message(message: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{message} (regex used for validation is '{pattern}')");
    }
    let quoted: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!(
        "{message} (e.g. {}regex used for validation is '{pattern}')",
        quoted.join(" or ")
    )
}

fn lower_alphanumeric(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn fits_label(value: &str) -> bool {
    let bytes = value.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(&a), Some(&z))
        if lower_alphanumeric(a) && lower_alphanumeric(z))
        && bytes.iter().all(|&b| lower_alphanumeric(b) || b == b'-')
}

fn fits_subdomain(value: &str) -> bool {
    value.split('.').all(fits_label)
}

/// `my-name`
pub fn dns1123_label(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > LABEL_MAX {
        out.push(max_characters(LABEL_MAX));
    }
    if !fits_label(value) {
        out.push(if fits_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            pattern_message(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            )
        });
    }
    out
}

/// `example.com`
pub fn dns1123_subdomain(value: &str) -> Vec<String> {
    subdomain(value, max_characters)
}

/// The same, with lengths reported in bytes.
pub fn dns1123_subdomain_bytes(value: &str) -> Vec<String> {
    subdomain(value, max_bytes)
}

fn subdomain(value: &str, too_long: fn(usize) -> String) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(too_long(SUBDOMAIN_MAX));
    }
    if !fits_subdomain(value) {
        out.push(pattern_message(
            SUBDOMAIN_MESSAGE,
            SUBDOMAIN,
            &["example.com"],
        ));
    }
    out
}

/// `_sip.example.com`: the same with underscores, as in names of services.
pub fn dns1123_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(max_characters(SUBDOMAIN_MAX));
    }
    let fits = value.split('.').all(|part| {
        let bytes = part.strip_prefix('_').unwrap_or(part).as_bytes();
        let edge = |b: &u8| lower_alphanumeric(*b);
        bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|b| edge(b) || matches!(b, b'-' | b'_'))
    });
    if !fits {
        out.push(pattern_message(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character",
            "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*",
            &["example.com"],
        ));
    }
    out
}

/// `*.example.com`
pub fn wildcard_subdomain(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(max_characters(SUBDOMAIN_MAX));
    }
    if !value.strip_prefix("*.").is_some_and(fits_subdomain) {
        out.push(pattern_message(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character",
            "\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
            &["*.example.com"],
        ));
    }
    out
}

/// `my-name`, starting with a letter.
pub fn dns1035_label(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > LABEL_MAX {
        out.push(max_characters(LABEL_MAX));
    }
    if !(fits_label(value) && value.as_bytes()[0].is_ascii_lowercase()) {
        out.push(pattern_message(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    out
}

/// A name that is valid as a segment of a URL path.
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    path_segment_prefix(value)
}

/// The prefix of such a name.
pub fn path_segment_prefix(value: &str) -> Vec<String> {
    ["/", "%"]
        .iter()
        .filter(|bad| value.contains(**bad))
        .map(|bad| format!("may not contain '{bad}'"))
        .collect()
}

fn fits_key_name(value: &str) -> bool {
    let bytes = value.as_bytes();
    matches!((bytes.first(), bytes.last()), (Some(a), Some(z))
        if a.is_ascii_alphanumeric() && z.is_ascii_alphanumeric())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label key, annotation key, finalizer or resource name: `example.com/MyName` or `MyName`.
pub fn qualified_name(value: &str) -> Vec<String> {
    let examples = &["MyName", "my.name", "123-abc"];
    let mut out = Vec::new();
    let mut parts = value.split('/');
    let first = parts.next().unwrap_or_default();
    let name = match (parts.next(), parts.next()) {
        (None, _) => first,
        (Some(name), None) => {
            if first.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                out.extend(
                    subdomain(first, max_bytes)
                        .into_iter()
                        .map(|m| format!("prefix part {m}")),
                );
            }
            name
        }
        _ => {
            out.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                pattern_message(KEY_MESSAGE, KEY_NAME, examples)
            ));
            return out;
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX {
        out.push(format!("name part {}", max_bytes(LABEL_MAX)));
    }
    if !fits_key_name(name) {
        out.push(format!(
            "name part {}",
            pattern_message(KEY_MESSAGE, KEY_NAME, examples)
        ));
    }
    out
}

/// A label's value; may be empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > LABEL_MAX {
        out.push(max_bytes(LABEL_MAX));
    }
    if !value.is_empty() && !fits_key_name(value) {
        out.push(pattern_message(
            &format!(
                "a valid label must be an empty string or {}",
                KEY_MESSAGE.trim_start_matches("must ")
            ),
            LABEL_VALUE,
            &["MyValue", "my_value", "12345"],
        ));
    }
    out
}

/// `my_name`
pub fn c_identifier(value: &str) -> Vec<String> {
    let mut bytes = value.bytes();
    let good = bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if good {
        return Vec::new();
    }
    vec![pattern_message(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// 1 to 65535.
pub fn port_number(port: i64) -> Vec<String> {
    in_range(port, 1, 65535)
}

/// Within inclusive bounds.
pub fn in_range(value: i64, lo: i64, hi: i64) -> Vec<String> {
    if (lo..=hi).contains(&value) {
        Vec::new()
    } else {
        vec![range_message(lo, hi)]
    }
}

/// A port's name: IANA service name rules.
pub fn port_name(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > 15 {
        out.push(max_characters(15));
    }
    if value.is_empty() || !value.bytes().all(|b| lower_alphanumeric(b) || b == b'-') {
        out.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

/// `50%`
pub fn percent(value: &str) -> Vec<String> {
    let good = value
        .strip_suffix('%')
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    if good {
        return Vec::new();
    }
    vec![pattern_message(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// A header's name.
pub fn http_header(value: &str) -> Vec<String> {
    if !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-')
    {
        return Vec::new();
    }
    vec![pattern_message(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// An environment variable's name: any printable ASCII but `=`.
pub fn env_name(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.is_empty() {
        out.push("environment variable name must be non-empty".to_owned());
    }
    if value
        .bytes()
        .any(|b| !(0x20..0x7f).contains(&b) || b == b'=')
    {
        out.push("a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned());
    }
    out
}

/// A key of a ConfigMap or Secret.
pub fn config_key(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > SUBDOMAIN_MAX {
        out.push(max_characters(SUBDOMAIN_MAX));
    }
    let good = !value.is_empty()
        && value
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !good {
        out.push(pattern_message(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    if value == "." || value == ".." {
        out.push(format!("must not be '{value}'"));
    } else if value.starts_with("..") {
        out.push("must not start with '..'".to_owned());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_reported_with_the_rule() {
        assert!(dns1123_subdomain("a.b-c.0").is_empty());
        assert!(dns1123_label("my-name").is_empty());
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            dns1123_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert!(!dns1035_label("1a").is_empty());
        assert!(!dns1035_label("").is_empty());
        assert!(port_name("http-1").is_empty());
        assert_eq!(port_name("-1").len(), 2);
        assert!(config_key("a_B.c").is_empty());
        assert_eq!(config_key(".."), ["must not be '..'"]);
        assert!(percent("5%").is_empty() && !percent("%").is_empty());
    }

    #[test]
    fn label_keys_and_values_follow_their_own_rules() {
        assert!(qualified_name("app.kubernetes.io/name").is_empty());
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert_eq!(qualified_name("a/b/c").len(), 1);
        assert_eq!(
            qualified_name(&"x".repeat(64)),
            ["name part must be no more than 63 bytes"]
        );
        assert!(label_value("").is_empty() && label_value("A_b.c-1").is_empty());
        assert_eq!(
            label_value("-"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
    }
}
