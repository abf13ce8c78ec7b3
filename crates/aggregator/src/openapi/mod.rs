//! Where an aggregated API server keeps its documents of OpenAPI v3. The documents themselves are passed on when a client
//! asks for them.

use std::{collections::BTreeMap, time::Duration};

use http::StatusCode;
use kinds::tree;
use machinery::Object;

use crate::{Link, link};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The URL of a group's and version's document by its place; nothing when the server has none.
pub(crate) async fn index(
    link: &Link,
    group: &str,
    version: &str,
) -> Result<BTreeMap<String, String>, String> {
    let headers = link::accepting("application/json");
    let answer = link.get_from_any("/openapi/v3", headers, TIMEOUT).await?;
    match answer.code {
        StatusCode::OK => read(&answer.body, group, version),
        // Servers before Kubernetes 1.24, and such that deny it.
        code if code.is_client_error() => Ok(BTreeMap::new()),
        code => Err(format!("/openapi/v3: {}", code.as_u16())),
    }
}

/// Takes the place of this group and version alone: a server does not describe the groups of others.
fn read(body: &[u8], group: &str, version: &str) -> Result<BTreeMap<String, String>, String> {
    let document: Object =
        machinery::json::from_slice(body).map_err(|error| format!("/openapi/v3: {error}"))?;
    let place = crate::path(group, version);
    let place = place.trim_start_matches('/');
    let url = tree::text(&tree::get(&document, "paths")[place]["serverRelativeURL"]);
    let is_own = url.split('?').next() == Some(format!("/openapi/v3/{place}").as_str());
    let found = is_own.then(|| (place.to_owned(), url.to_owned()));
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    #[test]
    fn only_the_documents_of_its_own_group_are_taken() {
        let index = json!({"paths": {
            "apis/a.b/v1": {"serverRelativeURL": "/openapi/v3/apis/a.b/v1?hash=1"},
            "apis/apps/v1": {"serverRelativeURL": "/openapi/v3/apis/apps/v1?hash=2"},
            "apis/c.d/v1": {"serverRelativeURL": "https://elsewhere/"},
        }});
        let index = index.to_string();
        let found = |group: &str| read(index.as_bytes(), group, "v1").unwrap();
        assert_eq!(
            found("a.b")["apis/a.b/v1"],
            "/openapi/v3/apis/a.b/v1?hash=1"
        );
        assert!(found("c.d").is_empty());
        assert!(found("e.f").is_empty());
        assert!(read(b"no", "a.b", "v1").is_err());
    }
}
