//! Impersonation: the `Impersonate-*` headers. Allowed either by constrained permissions for this
//! identity and this request, or (legacy) by `impersonate` on every part of the identity, for all
//! requests.

mod mode;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use machinery::Status;

use self::mode::Mode;
use crate::authz::{self, Attributes, Authorizer, Decision, forbidden};
use request::{User, query, user};

/// The impersonated user, and the constrained permission that allowed it, if any.
pub struct Assumed {
    pub user: User,
    pub constraint: Option<String>,
}

/// The user that the headers name, if the caller may impersonate it. If not, the error is that of
/// the first applicable mode.
pub async fn apply(
    authorizers: &[Arc<dyn Authorizer>],
    request: &Attributes<'_>,
    headers: &HeaderMap,
) -> Result<Option<Assumed>, Status> {
    let Some(wanted) = requested_user(headers)? else {
        return Ok(None);
    };
    let mut first = None;
    for mode in mode::ALL
        .iter()
        .filter(|mode| mode.fits(&wanted, request.user))
    {
        match assume(authorizers, mode, &wanted, request).await {
            Ok(user) => {
                let constraint = mode.is_constrained().then(|| mode.verb());
                return Ok(Some(Assumed { user, constraint }));
            }
            Err(status) => first = first.or(Some(status)),
        }
    }
    Err(first.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
}

/// Performs all checks of a mode; returns the user.
async fn assume(
    authorizers: &[Arc<dyn Authorizer>],
    mode: &Mode,
    wanted: &User,
    request: &Attributes<'_>,
) -> Result<User, Status> {
    if let Some(verb) = mode.verb_on(request.verb) {
        let on = Attributes {
            verb: &verb,
            ..*request
        };
        allowed(authorizers, &on).await?;
    }
    let verb = mode.verb();
    for question in mode.questions(wanted) {
        let each = question.names.iter().map(|name| Attributes {
            verb: &verb,
            is_resource: true,
            group: question.group,
            version: "v1",
            resource: question.resource,
            subresource: &question.subresource,
            namespace: &question.namespace,
            name,
            path: "",
            field_selector: "",
            label_selector: "",
            ..*request
        });
        let each: Vec<Attributes<'_>> = each.collect();
        if let (Some(first), Some(why)) = (each.first(), &question.refusal) {
            return Err(forbidden(first, why));
        }
        // A caller who may impersonate any name needs no checks of single names.
        if mode.is_constrained() && each.len() >= MIN_NAMES_FOR_WILDCARD_CHECK {
            let any = Attributes {
                name: "*",
                ..each[0]
            };
            if allowed(authorizers, &any).await.is_ok() {
                continue;
            }
        }
        for attributes in &each {
            allowed(authorizers, attributes).await?;
        }
    }
    Ok(complete(mode.user(wanted)))
}

/// From this many names on, the check for all names comes first.
const MIN_NAMES_FOR_WILDCARD_CHECK: usize = 4;

async fn allowed(
    authorizers: &[Arc<dyn Authorizer>],
    attributes: &Attributes<'_>,
) -> Result<(), Status> {
    match authz::decide(authorizers, attributes).await {
        Decision::Allow => Ok(()),
        Decision::Deny(why) | Decision::NoOpinion(why) => Err(forbidden(attributes, &why)),
    }
}

fn requested_user(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let mut names = headers.keys();
    if !names.any(|name| name.as_str().starts_with("impersonate-")) {
        return Ok(None);
    }
    let one = |name: &str| headers.get(name).map_or(Ok(String::new()), text);
    let groups = headers.get_all("impersonate-group").iter().map(text);
    let mut wanted = User {
        name: one("impersonate-user")?,
        uid: one("impersonate-uid")?,
        groups: groups.collect::<Result<_, _>>()?,
        ..User::default()
    };
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix("impersonate-extra-") else {
            continue;
        };
        wanted
            .extra
            .entry(query::decode(key))
            .or_default()
            .push(text(value)?);
    }
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == User::default() {
        return Ok(None);
    }
    Err(Status::bad_request(format!(
        "requested {} without impersonating a user name",
        in_go(&wanted)
    )))
}

/// A user as in upstream's messages.
fn in_go(user: &User) -> String {
    let list = |items: &[String]| {
        let items: Vec<String> = items.iter().map(|item| format!("{item:?}")).collect();
        format!("[]string{{{}}}", items.join(", "))
    };
    let groups = match user.groups.as_slice() {
        [] => "[]string(nil)".to_owned(),
        groups => list(groups),
    };
    let each = user.extra.iter();
    let extra: Vec<String> = each
        .map(|(key, all)| format!("{key:?}:{}", list(all)))
        .collect();
    let extra = match extra.as_slice() {
        [] => "map[string][]string(nil)".to_owned(),
        extra => format!("map[string][]string{{{}}}", extra.join(", ")),
    };
    format!(
        "&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}}",
        user.uid
    )
}

/// A header's value. A value that is not text is rejected: if it were ignored, a proxy with such a
/// user would act as itself.
fn text(value: &HeaderValue) -> Result<String, Status> {
    let text = std::str::from_utf8(value.as_bytes());
    let text = text.map_err(|_| Status::bad_request("impersonation headers must be UTF-8"))?;
    Ok(text.to_owned())
}

/// Namespace and name in a service account's user name; `None` if invalid.
fn account(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name
        .strip_prefix("system:serviceaccount:")?
        .split_once(':')?;
    let plain = |text: &str, more: &str| {
        let ends = |end: Option<char>| end.is_some_and(|c| c.is_ascii_alphanumeric());
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || more.contains(c);
        text.chars().all(fits) && ends(text.chars().next()) && ends(text.chars().last())
    };
    (plain(namespace, "-") && plain(name, "-.")).then_some((namespace, name))
}

/// Adds `system:authenticated` or `system:unauthenticated`, as the name requires.
fn complete(mut wanted: User) -> User {
    let known = if wanted.name == user::ANONYMOUS {
        user::UNAUTHENTICATED
    } else if wanted.is_in(user::UNAUTHENTICATED) {
        return wanted;
    } else {
        user::AUTHENTICATED
    };
    if !wanted.is_in(known) {
        wanted.groups.push(known.to_owned());
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn every_part_of_the_impersonated_identity_is_authorized() {
        let list = [
            ("impersonate-user", "system:serviceaccount:a:b"),
            ("impersonate-group", "g1"),
            ("impersonate-group", "g2"),
            ("impersonate-extra-acme.com%2fproject", "x"),
        ];
        let wanted = requested_user(&headers(&list)).unwrap().unwrap();
        let asked: Vec<_> = mode::LEGACY
            .questions(&wanted)
            .iter()
            .map(|q| {
                let names = q.names.join(",");
                format!("{}/{}/{}/{names}", q.resource, q.subresource, q.namespace)
            })
            .collect();
        let expected = [
            "serviceaccounts//a/b",
            "groups///g1,g2",
            "userextras/acme.com/project//x",
        ];
        assert_eq!(asked, expected);
        assert_eq!(
            complete(wanted).groups,
            ["g1", "g2", "system:authenticated"]
        );
        assert!(requested_user(&HeaderMap::new()).unwrap().is_none());
        let refused = requested_user(&headers(&[("impersonate-group", "g")])).unwrap_err();
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (
                400,
                r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, Extra:map[string][]string(nil)} without impersonating a user name"#
            )
        );
    }

    #[test]
    fn a_name_that_is_no_ascii_is_taken_and_one_that_is_no_text_refused() {
        let with = |bytes: &[u8]| {
            let value = HeaderValue::from_bytes(bytes).unwrap();
            HeaderMap::from_iter([("impersonate-user".parse().unwrap(), value)])
        };
        let wanted = requested_user(&with("jürgen".as_bytes())).unwrap().unwrap();
        assert_eq!(wanted.name, "jürgen");
        assert_eq!(requested_user(&with(b"j\xfcrgen")).unwrap_err().code, 400);
        assert_eq!(account("system:serviceaccount:a:b"), Some(("a", "b")));
        assert_eq!(account("system:serviceaccount:a:b:c"), None);
        assert_eq!(account("system:serviceaccount:a:"), None);
    }
}
