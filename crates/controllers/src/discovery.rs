//! What the API server serves: every resource in its preferred version, custom ones included.

use kube::api::ApiResource;

/// One kind of object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// Group, version, kind and plural.
    pub api: ApiResource,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
    /// What can be done with it.
    pub verbs: Vec<String>,
}

impl Resource {
    /// Whether all of these can be done.
    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs
            .iter()
            .all(|verb| self.verbs.iter().any(|known| known == verb))
    }

    /// The same objects whatever the version.
    pub fn identity(&self) -> (String, String) {
        (self.api.group.clone(), self.api.plural.clone())
    }
}

/// All resources, and the groups with versions that did not answer.
pub async fn discover(client: &kube::Client) -> Result<(Vec<Resource>, Vec<String>), kube::Error> {
    let mut resources = Vec::new();
    let core = client.list_core_api_resources("v1").await?;
    extend(&mut resources, "", "v1", core.resources);
    let mut failed = Vec::new();
    for group in client.list_api_groups().await?.groups {
        let preferred = group
            .preferred_version
            .or_else(|| group.versions.first().cloned());
        let Some(version) = preferred else { continue };
        match client
            .list_api_group_resources(&version.group_version)
            .await
        {
            Ok(list) => extend(
                &mut resources,
                &group.name,
                &version.version,
                list.resources,
            ),
            Err(_) => failed.push(version.group_version),
        }
    }
    Ok((resources, failed))
}

fn extend(
    resources: &mut Vec<Resource>,
    group: &str,
    version: &str,
    found: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource>,
) {
    for resource in found
        .into_iter()
        .filter(|resource| !resource.name.contains('/'))
    {
        let api_version = if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        };
        let api = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version,
            kind: resource.kind,
            plural: resource.name,
        };
        resources.push(Resource {
            api,
            namespaced: resource.namespaced,
            verbs: resource.verbs,
        });
    }
}
