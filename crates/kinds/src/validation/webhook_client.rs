//! Client configuration of webhooks: by URL or service, and the versions of their reviews.

use crate::check;
use crate::tree::{int, is_set, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};

const FORM: &str = "; desired format: https://host[/path]";

/// The relevant parts of a URL.
struct Url<'a> {
    scheme: &'a str,
    host: &'a str,
    user: Option<&'a str>,
    query: &'a str,
    fragment: &'a str,
}

/// Parses a URL as Go does, or says why it is invalid.
fn parse(text: &str) -> Result<Url<'_>, String> {
    let fail = |why: &str| format!("parse {}: {why}", machinery::text::quote(text));
    if text.chars().any(|c| c.is_ascii_control()) {
        return Err(fail("net/url: invalid control character in URL"));
    }
    let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
    let first = |c: char| c.is_ascii_alphabetic();
    let inner = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    let (scheme, rest) = match rest.split_once(':') {
        Some(("", _)) => return Err(fail("missing protocol scheme")),
        Some((scheme, rest)) if scheme.starts_with(first) && scheme.chars().all(inner) => {
            (scheme, rest)
        }
        _ => ("", rest),
    };
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let Some(after) = rest.strip_prefix("//") else {
        let segment = rest.split('/').next().unwrap_or_default();
        if scheme.is_empty() && segment.contains(':') {
            return Err(fail("first path segment in URL cannot contain colon"));
        }
        return Ok(Url {
            scheme,
            host: "",
            user: None,
            query,
            fragment,
        });
    };
    let authority = after.split('/').next().unwrap_or_default();
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if let Some(bad) = host.chars().find(|c| " <>\"\\^`{|}".contains(*c)) {
        let why = format!("invalid character {:?} in host name", bad.to_string());
        return Err(fail(&why));
    }
    if let Some((_, port)) = host.rsplit_once(':')
        && !host.ends_with(']')
        && !port.bytes().all(|b| b.is_ascii_digit())
    {
        let port = machinery::text::quote(&format!(":{port}"));
        return Err(fail(&format!("invalid port {port} after host")));
    }
    Ok(Url {
        scheme,
        host,
        user,
        query,
        fragment,
    })
}

/// An HTTPS URL with a host and a path, and nothing else.
pub(crate) fn check_url(value: &str, path: &Path, errors: &mut Errors) {
    let url = match parse(value) {
        Ok(url) => url,
        Err(why) => {
            let detail = format!("url must be a valid URL: {why}{FORM}");
            errors.push(Error::required(path, detail));
            return;
        }
    };
    let mut refuse = |value: &str, detail: &str| {
        errors.push(Error::invalid(path, value, detail));
    };
    if url.scheme != "https" {
        refuse(
            &url.scheme.to_lowercase(),
            &format!("'https' is the only allowed URL scheme{FORM}"),
        );
    }
    if url.host.is_empty() {
        refuse("", &format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        refuse(user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        refuse(url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        refuse(url.query, "query parameters are not permitted in the URL");
    }
}

/// Validates a service reference. `swapped`: for definitions, upstream reports a missing name at
/// the namespace's path and the other way around.
pub(crate) fn check_service(service: &Value, swapped: bool, path: &Path, errors: &mut Errors) {
    for (name, other) in [("name", "namespace"), ("namespace", "name")] {
        let looked_at = if swapped { other } else { name };
        if text(&service[looked_at]).is_empty() {
            errors.push(Error::required(&path.child(name), ""));
        }
    }
    let port = int(&service["port"]);
    let complaints = format::port_number(port);
    if !complaints.is_empty() {
        let detail = format!("port is not valid: {}", complaints.join(", "));
        errors.push(Error::invalid(&path.child("port"), port, detail));
    }
    if is_set(&service["path"]) {
        check_path(text(&service["path"]), &path.child("path"), errors);
    }
}

fn check_path(value: &str, path: &Path, errors: &mut Errors) {
    if matches!(value, "" | "/") {
        return;
    }
    let mut refuse = |detail: String| errors.push(Error::invalid(path, value, detail));
    if value == "//" {
        refuse("segment[0] may not be empty".to_owned());
        return;
    }
    if !value.starts_with('/') {
        refuse("must start with a '/'".to_owned());
    }
    // Upstream skips the first byte, whatever it is.
    let inner = String::from_utf8_lossy(value.as_bytes().get(1..).unwrap_or_default());
    let inner = inner.strip_suffix('/').unwrap_or(&inner);
    for (i, step) in inner.split('/').enumerate() {
        if step.is_empty() {
            refuse(format!("segment[{i}] may not be empty"));
            continue;
        }
        for complaint in format::dns1123_subdomain(step) {
            refuse(format!("segment[{i}]: {complaint}"));
        }
    }
}

/// Whether the server can send this version of a review.
pub(crate) fn is_known_review(version: &Value) -> bool {
    matches!(text(version), "v1" | "v1beta1")
}

/// Validates the versions of reviews that a webhook accepts. One must be known if `known` says so; `missing` is the
/// error without any.
pub(crate) fn check_review_versions(
    versions: &Value,
    known: bool,
    missing: &str,
    path: &Path,
    errors: &mut Errors,
) {
    let all = list(versions);
    if all.is_empty() {
        return errors.push(Error::required(path, missing));
    }
    for (i, version) in all.iter().enumerate() {
        if all[..i].contains(version) {
            let detail = "duplicate version";
            errors.push(Error::invalid(&path.index(i), text(version), detail));
            continue;
        }
        let complaints = format::dns1035_label(text(version));
        check::form(complaints, text(version), &path.index(i), errors);
    }
    if known && !all.iter().any(is_known_review) {
        let detail = "must include at least one of v1, v1beta1";
        errors.push(Error::invalid(path, versions.clone(), detail));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    #[test]
    fn a_url_is_a_host_by_https_and_a_path() {
        let errors_of = |url: &str| {
            let mut errors = Vec::new();
            check_url(url, &Path::new("u"), &mut errors);
            lines(errors)
        };
        assert_eq!(errors_of("https://a.b:1/c"), Vec::<String>::new());
        assert_eq!(
            errors_of("http://x"),
            [
                "u: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"
            ]
        );
        assert_eq!(errors_of("a").len(), 2);
        assert_eq!(
            errors_of("https://u@h/?a=b#c"),
            [
                "u: Invalid value: \"u\": user information is not permitted in the URL",
                "u: Invalid value: \"c\": fragments are not permitted in the URL",
                "u: Invalid value: \"a=b\": query parameters are not permitted in the URL",
            ]
        );
        assert!(errors_of(":x")[0].contains("missing protocol scheme"));
    }

    #[test]
    fn a_service_has_a_name_and_a_clean_path() {
        let errors_of = |service: Value, swapped: bool| {
            let mut errors = Vec::new();
            check_service(&service, swapped, &Path::new("s"), &mut errors);
            lines(errors)
        };
        let none: [&str; 0] = [];
        let good = json!({"name": "n", "namespace": "m", "port": 443, "path": "/a/b/"});
        assert_eq!(errors_of(good, false), none);
        let nameless = json!({"namespace": "m", "port": 1});
        assert_eq!(
            errors_of(nameless.clone(), false),
            ["s.name: Required value"]
        );
        assert_eq!(errors_of(nameless, true), ["s.namespace: Required value"]);
        let path = |path: &str| {
            errors_of(
                json!({"name": "n", "namespace": "m", "port": 1, "path": path}),
                false,
            )
        };
        assert_eq!(
            path("//"),
            ["s.path: Invalid value: \"//\": segment[0] may not be empty"]
        );
        assert_eq!(
            path("abs"),
            ["s.path: Invalid value: \"abs\": must start with a '/'"]
        );
    }
}
