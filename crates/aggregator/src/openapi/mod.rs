//! OpenAPI of an aggregated API server: the URL of its v3 document, to which requests are
//! forwarded, and its part of the v2 document, which is merged into this server's own.

mod swagger;

use std::{sync::Arc, time::Duration};

use http::{HeaderValue, StatusCode, header};
use kinds::tree;
use machinery::Object;

pub use self::swagger::Swagger;
use crate::{Link, link};

const TIMEOUT: Duration = Duration::from_secs(10);

/// The OpenAPI state of a server.
#[derive(Debug, Default, Clone)]
pub(crate) struct OpenApi {
    /// The URL of the v3 document, if any.
    pub(crate) url: Option<String>,
    pub(crate) swagger: Option<Arc<Swagger>>,
    etag: Option<HeaderValue>,
}

/// Fetches what changed since `known`.
pub(crate) async fn fetch(
    link: &Link,
    group: &str,
    version: &str,
    known: &OpenApi,
) -> Result<OpenApi, String> {
    let mut found = OpenApi {
        url: index(link, group, version).await?,
        ..known.clone()
    };
    let mut headers = link::accepting("application/json");
    if let Some(etag) = known.etag.as_ref().filter(|_| known.swagger.is_some()) {
        headers.insert(header::IF_NONE_MATCH, etag.clone());
    }
    let answer = link.get_from_any("/openapi/v2", headers, TIMEOUT).await?;
    match answer.code {
        StatusCode::NOT_MODIFIED => {}
        StatusCode::OK => {
            let prefix = format!("{}/", crate::path(group, version));
            let read = move || swagger::read(&answer.body, &prefix);
            let read = tokio::task::spawn_blocking(read).await;
            found.swagger = Some(Arc::new(read.map_err(|error| error.to_string())??));
            found.etag = answer.headers.get(header::ETAG).cloned();
        }
        code if code.is_client_error() => (found.swagger, found.etag) = (None, None),
        code => return Err(format!("/openapi/v2: {}", code.as_u16())),
    }
    Ok(found)
}

/// The URL of a group version's v3 document.
async fn index(link: &Link, group: &str, version: &str) -> Result<Option<String>, String> {
    let headers = link::accepting("application/json");
    let answer = link.get_from_any("/openapi/v3", headers, TIMEOUT).await?;
    match answer.code {
        StatusCode::OK => read(&answer.body, group, version),
        // Servers before Kubernetes 1.24, and those that deny access.
        code if code.is_client_error() => Ok(None),
        code => Err(format!("/openapi/v3: {}", code.as_u16())),
    }
}

/// Uses only the entry of this group and version: a server does not describe the groups of others.
fn read(body: &[u8], group: &str, version: &str) -> Result<Option<String>, String> {
    let document: Object =
        machinery::json::from_slice(body).map_err(|error| format!("/openapi/v3: {error}"))?;
    let place = crate::path(group, version);
    let place = place.trim_start_matches('/');
    let url = tree::text(&tree::get(&document, "paths")[place]["serverRelativeURL"]);
    let is_own = url.split('?').next() == Some(format!("/openapi/v3/{place}").as_str());
    Ok(is_own.then(|| url.to_owned()))
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
        let expected = "/openapi/v3/apis/a.b/v1?hash=1";
        assert_eq!(found("a.b").as_deref(), Some(expected));
        assert_eq!(found("c.d"), None);
        assert_eq!(found("e.f"), None);
        assert!(read(b"no", "a.b", "v1").is_err());
    }
}
