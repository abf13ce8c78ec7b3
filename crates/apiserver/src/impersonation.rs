//! Acting as somebody else: the `Impersonate-*` headers, each allowed on its own.

use http::{HeaderMap, HeaderValue};
use machinery::Status;

use crate::{
    User,
    authz::{self, Attributes, Decision},
    pipeline::{Core, forbidden},
    query, user,
};

/// What a header asks to take over.
struct Wish {
    group: &'static str,
    resource: &'static str,
    subresource: String,
    namespace: String,
    name: String,
}

/// The user that the headers name, if any and if the caller may.
pub(crate) async fn apply(
    core: &Core,
    caller: &User,
    headers: &HeaderMap,
) -> Result<Option<User>, Status> {
    let Some(wanted) = read(headers)? else {
        return Ok(None);
    };
    for wish in wishes(&wanted) {
        let attributes = Attributes {
            user: caller,
            verb: "impersonate",
            is_resource: true,
            group: wish.group,
            version: "v1",
            resource: wish.resource,
            subresource: &wish.subresource,
            namespace: &wish.namespace,
            name: &wish.name,
            path: "",
            field_selector: "",
            label_selector: "",
        };
        match authz::decide(&core.authorizers, &attributes).await {
            Decision::Allow => {}
            Decision::Deny(why) | Decision::NoOpinion(why) => {
                return Err(forbidden(&attributes, &why));
            }
        }
    }
    Ok(Some(complete(wanted)))
}

fn read(headers: &HeaderMap) -> Result<Option<User>, Status> {
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
    Err(Status::internal(
        "requested groups, uid or extra for impersonation without impersonating a user",
    ))
}

/// A header's value. One that is no text is refused: passing over it, a proxy that names its user in
/// such bytes would act as itself.
fn text(value: &HeaderValue) -> Result<String, Status> {
    let text = std::str::from_utf8(value.as_bytes());
    let text = text.map_err(|_| Status::bad_request("impersonation headers must be UTF-8"))?;
    Ok(text.to_owned())
}

/// Namespace and name of a service account's user name; what could be no account is none.
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

fn wishes(wanted: &User) -> Vec<Wish> {
    let wish = |group, resource, name: &str| Wish {
        group,
        resource,
        subresource: String::new(),
        namespace: String::new(),
        name: name.to_owned(),
    };
    let mut wishes = vec![match account(&wanted.name) {
        Some((namespace, name)) => Wish {
            namespace: namespace.to_owned(),
            ..wish("", "serviceaccounts", name)
        },
        None => wish("", "users", &wanted.name),
    }];
    wishes.extend(wanted.groups.iter().map(|group| wish("", "groups", group)));
    if !wanted.uid.is_empty() {
        wishes.push(wish("authentication.k8s.io", "uids", &wanted.uid));
    }
    for (key, values) in &wanted.extra {
        wishes.extend(values.iter().map(|value| Wish {
            subresource: key.clone(),
            ..wish("authentication.k8s.io", "userextras", value)
        }));
    }
    wishes
}

/// Adds the groups that come with the name.
fn complete(mut wanted: User) -> User {
    if wanted.groups.is_empty()
        && let Some((namespace, name)) = account(&wanted.name)
    {
        wanted.groups = User::service_account(namespace, name).groups;
    }
    let known = if wanted.name == user::ANONYMOUS {
        user::UNAUTHENTICATED
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
    fn every_part_of_the_other_identity_is_asked_for() {
        let list = [
            ("impersonate-user", "system:serviceaccount:a:b"),
            ("impersonate-group", "g1"),
            ("impersonate-group", "g2"),
            ("impersonate-extra-acme.com%2fproject", "x"),
        ];
        let wanted = read(&headers(&list)).unwrap().unwrap();
        let asked: Vec<_> = wishes(&wanted)
            .iter()
            .map(|w| {
                format!(
                    "{}/{}/{}/{}",
                    w.resource, w.subresource, w.namespace, w.name
                )
            })
            .collect();
        let expected = [
            "serviceaccounts//a/b",
            "groups///g1",
            "groups///g2",
            "userextras/acme.com/project//x",
        ];
        assert_eq!(asked, expected);
        assert_eq!(
            complete(wanted).groups,
            ["g1", "g2", "system:authenticated"]
        );
        assert!(read(&HeaderMap::new()).unwrap().is_none());
        assert!(read(&headers(&[("impersonate-group", "g")])).is_err());
    }

    #[test]
    fn a_name_that_is_no_ascii_is_taken_and_one_that_is_no_text_refused() {
        let with = |bytes: &[u8]| {
            let value = HeaderValue::from_bytes(bytes).unwrap();
            HeaderMap::from_iter([("impersonate-user".parse().unwrap(), value)])
        };
        let wanted = read(&with("jürgen".as_bytes())).unwrap().unwrap();
        assert_eq!(wanted.name, "jürgen");
        assert_eq!(read(&with(b"j\xfcrgen")).unwrap_err().code, 400);
        assert_eq!(account("system:serviceaccount:a:b"), Some(("a", "b")));
        assert_eq!(account("system:serviceaccount:a:b:c"), None);
        assert_eq!(account("system:serviceaccount:a:"), None);
    }
}
