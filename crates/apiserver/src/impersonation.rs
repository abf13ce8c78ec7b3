//! Acting as somebody else: the `Impersonate-*` headers, each allowed on its own.

use http::HeaderMap;
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
    let text = |name: &str| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_owned()
    };
    let groups = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut wanted = User {
        name: text("impersonate-user"),
        uid: text("impersonate-uid"),
        groups: groups.map(str::to_owned).collect(),
        ..User::default()
    };
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix("impersonate-extra-") else {
            continue;
        };
        let value = value.to_str().unwrap_or_default().to_owned();
        wanted
            .extra
            .entry(query::decode(key))
            .or_default()
            .push(value);
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

/// Namespace and name of a service account's user name.
fn account(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("system:serviceaccount:")?.split_once(':')
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
}
