//! The objects of a resource: their metadata in pages, and a write of each that changes nothing but how it is stored.

use std::cmp::Ordering;

use client::Api;
use kube::{
    Client, Resource as _,
    api::{DynamicObject, Patch, PatchParams},
};
use reconcile::Error;
use serde::Deserialize;
use serde_json::json;
use stdx::percent;

use crate::discovery::Resource;

const MANAGER: &str = "storage-version-migrator-controller";
const PAGE: usize = 500;
/// Metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    r#continue: String,
}

#[derive(Deserialize)]
struct Item {
    #[serde(default)]
    metadata: ItemMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ItemMeta {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

/// The newest resource version of a resource.
pub(super) async fn latest_resource_version(
    client: &Client,
    resource: &Resource,
) -> Result<String, Error> {
    let page = page(client, resource, 1, "").await?;
    Ok(page.metadata.resource_version)
}

/// Writes the objects that were last changed at `until` or before. The first error ends it.
pub(super) async fn migrate(
    client: &Client,
    resource: &Resource,
    until: &str,
) -> Result<(), Error> {
    let mut token = String::new();
    loop {
        let page = page(client, resource, PAGE, &token).await?;
        for item in page.items.into_iter().flatten() {
            if order(&item.metadata.resource_version, until) != Ordering::Greater {
                write(client, resource, &item.metadata).await?;
            }
        }
        token = page.metadata.r#continue;
        if token.is_empty() {
            return Ok(());
        }
    }
}

async fn page(
    client: &Client,
    resource: &Resource,
    limit: usize,
    token: &str,
) -> Result<Page, Error> {
    let path = DynamicObject::url_path(&resource.api, None);
    let token = percent::encode(token, "");
    let request = http::Request::get(format!("{path}?limit={limit}&continue={token}"))
        .header(http::header::ACCEPT, METADATA)
        .body(Vec::new())
        .map_err(kube::Error::HttpError)?;
    Ok(client.request(request).await?)
}

/// Applies nothing to an object. Uid and resource version are preconditions: an object that was changed, deleted or
/// created again since it was listed needs no migration.
async fn write(client: &Client, resource: &Resource, meta: &ItemMeta) -> Result<(), Error> {
    let api: Api<DynamicObject> = match resource.namespaced {
        true => Api::namespaced_with(client.clone(), &meta.namespace, &resource.api),
        false => Api::all_with(client.clone(), &resource.api),
    };
    let nothing = json!({
        "apiVersion": resource.api.api_version,
        "kind": resource.api.kind,
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
    });
    let params = PatchParams::apply(MANAGER);
    let patch = Patch::Apply(&nothing);
    let written = api.patch_metadata(&meta.name, &params, &patch).await;
    match written.map_err(Error::from) {
        Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Whether repeating the migration would not help: the server answered, and neither with an internal error nor
/// because it had too much to do or a list expired.
pub(super) fn is_final(error: &Error) -> bool {
    let passing = [410, 429, 500, 503, 504];
    error.code().is_some_and(|code| !passing.contains(&code))
}

/// Compares resource versions, which are numbers without leading zeros.
fn order(one: &str, other: &str) -> Ordering {
    one.len().cmp(&other.len()).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_versions_are_compared_as_numbers() {
        assert_eq!(order("9", "10"), Ordering::Less);
        assert_eq!(order("10", "10"), Ordering::Equal);
        assert_eq!(order("11", "9"), Ordering::Greater);
    }
}
