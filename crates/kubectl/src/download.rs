//! Manifests from URLs.

use anyhow::{Context, Result, bail};
use client::{
    Kubeconfig,
    kube::client::Body,
    kubeconfig::{Cluster, User},
};
use http::{Request, header};
use http_body_util::{BodyExt, Limited};

const MAX_SIZE: usize = 64 << 20;
const MAX_REDIRECTS: usize = 10;

/// The text at an `http://` or `https://` URL.
pub(crate) async fn text(url: &str) -> Result<String> {
    let mut url = url.to_owned();
    for _ in 0..MAX_REDIRECTS {
        let response = fetch(&url)
            .await
            .with_context(|| format!("unable to read URL {url:?}"))?;
        let status = response.status();
        if status.is_redirection() {
            let next = response
                .headers()
                .get(header::LOCATION)
                .and_then(|value| value.to_str().ok());
            url = absolute(&url, next.context("a redirect without a location")?);
            continue;
        }
        if !status.is_success() {
            bail!(
                "unable to read URL {url:?}, server reported {status}, status code={}",
                status.as_u16()
            );
        }
        let body = Limited::new(response.into_body(), MAX_SIZE).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("unable to read URL {url:?}: {error}"))?;
        return Ok(String::from_utf8_lossy(&body.to_bytes()).into_owned());
    }
    bail!("unable to read URL {url:?}: stopped after {MAX_REDIRECTS} redirects")
}

async fn fetch(url: &str) -> Result<http::Response<Body>> {
    let (scheme, rest) = url.split_once("://").context("not a URL")?;
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let server = format!("{scheme}://{host}");
    let tls = Kubeconfig::default().tls(&Cluster::default(), &User::default())?;
    let options = client::Options {
        allow_plaintext: true,
        ..client::Options::default()
    };
    let client = client::https(&server, tls, options)?;
    let request = Request::get(format!("/{path}"))
        .header(header::ACCEPT, "*/*")
        .body(Body::empty())?;
    Ok(client.send(request).await?)
}

/// The target of a redirect.
fn absolute(from: &str, to: &str) -> String {
    if to.contains("://") {
        return to.to_owned();
    }
    let (scheme, rest) = from.split_once("://").unwrap_or(("https", from));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    match to.strip_prefix('/') {
        Some(to) => format!("{scheme}://{host}/{to}"),
        None => {
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            format!("{scheme}://{host}/{directory}/{to}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_relative_to_where_they_come_from() {
        for (from, to, expected) in [
            ("https://a/b/c", "https://d/e", "https://d/e"),
            ("https://a/b/c", "/e", "https://a/e"),
            ("https://a/b/c", "e", "https://a/b/e"),
        ] {
            assert_eq!(absolute(from, to), expected);
        }
    }
}
