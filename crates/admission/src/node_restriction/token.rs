//! Tokens that a kubelet may request: bound to a pod on its node, and for an audience that the pod
//! itself requests (in a projected volume, or through the CSI driver of one of its volumes). Other
//! audiences require the verb `request-serviceaccounts-token-audience` on a resource named like the
//! audience.

use kinds::tree;
use machinery::{Object, Status, Value};

use super::on;
use crate::{
    Attributes,
    authz::{self, Decision},
    signers::Authorizers,
};

const VERB: &str = "request-serviceaccounts-token-audience";

/// The CSI drivers of migrated in-tree volumes.
const MIGRATED: &[(&str, &str)] = &[
    ("awsElasticBlockStore", "ebs.csi.aws.com"),
    ("azureDisk", "disk.csi.azure.com"),
    ("azureFile", "file.csi.azure.com"),
    ("cinder", "cinder.csi.openstack.org"),
    ("gcePersistentDisk", "pd.csi.storage.gke.io"),
    ("portworxVolume", "pxd.portworx.com"),
    ("vsphereVolume", "csi.vsphere.vmware.com"),
];

pub(super) async fn admit(
    attributes: &Attributes<'_>,
    authorizers: &Authorizers,
    node: &str,
    asked: &Object,
) -> Result<(), Status> {
    let refuse = |why: &str| Err(attributes.forbidden(why));
    let spec = tree::get(asked, "spec");
    let bound = &spec["boundObjectRef"];
    let (name, uid) = (tree::text(&bound["name"]), tree::text(&bound["uid"]));
    if bound["kind"] != "Pod" || bound["apiVersion"] != "v1" || name.is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let found = attributes
        .reader
        .get("", "pods", attributes.namespace, name)
        .await?;
    let pod = found
        .ok_or_else(|| Status::not_found("", "pod", name))?
        .parse();
    if tree::get(&pod, "metadata")["uid"] != uid {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return refuse(&why);
    }
    if !on(&pod, node) {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    check_audience(attributes, authorizers, spec, &pod)
        .await
        .map_err(|why| attributes.forbidden(&why))
}

async fn check_audience(
    attributes: &Attributes<'_>,
    authorizers: &Authorizers,
    spec: &Value,
    pod: &Object,
) -> Result<(), String> {
    let audience = match tree::list(&spec["audiences"]) {
        [] => "",
        [one] => tree::text(one),
        _ => return Err("node may only request 0 or 1 audiences".to_owned()),
    };
    let found = asks_for(attributes, pod, audience).await;
    if found.map_err(|why| format!("error validating audience {audience:?}: {why}"))? {
        return Ok(());
    }
    let user = attributes.user;
    let permission = authz::Attributes {
        user,
        verb: VERB,
        is_resource: true,
        group: "",
        version: "v1",
        resource: audience,
        subresource: "",
        namespace: attributes.namespace,
        name: attributes.name,
        path: "",
        field_selector: "",
        label_selector: "",
    };
    match authz::decide(authorizers, &permission).await {
        Decision::Allow => Ok(()),
        _ => Err(format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
            user.name
        )),
    }
}

/// Whether a pod requests tokens for an audience. A failed read is an error only if nothing else
/// requests it.
async fn asks_for(
    attributes: &Attributes<'_>,
    pod: &Object,
    audience: &str,
) -> Result<bool, String> {
    let mut errors = Vec::new();
    for volume in tree::list(&tree::get(pod, "spec")["volumes"]) {
        let sources = tree::list(&volume["projected"]["sources"]).iter();
        let mut tokens = sources.map(|source| &source["serviceAccountToken"]);
        if tokens.any(|token| tree::is_set(token) && tree::text(&token["audience"]) == audience) {
            return Ok(true);
        }
        match driver_asks_for(attributes, pod, volume, audience).await {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(why) => errors.push(why),
        }
    }
    match errors.as_slice() {
        [] => Ok(false),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

async fn driver_asks_for(
    attributes: &Attributes<'_>,
    pod: &Object,
    volume: &Value,
    audience: &str,
) -> Result<bool, String> {
    let claim = tree::text(&volume["persistentVolumeClaim"]["claimName"]);
    let driver = if tree::is_set(&volume["ephemeral"]["volumeClaimTemplate"]) {
        let claim = format!("{}-{}", tree::name(pod), tree::text(&volume["name"]));
        driver_of_claim(attributes, &claim).await?
    } else if !claim.is_empty() {
        driver_of_claim(attributes, claim).await?
    } else {
        driver(volume)
    };
    if driver.is_empty() {
        return Ok(false);
    }
    let found = read(attributes, "storage.k8s.io", "csidrivers", "", &driver).await?;
    let requests = tree::list(&tree::get(&found, "spec")["tokenRequests"]).iter();
    let mut audiences = requests.map(|request| tree::text(&request["audience"]));
    Ok(audiences.any(|known| known == audience))
}

/// The CSI driver of a volume source; empty if it has none.
fn driver(source: &Value) -> String {
    let own = tree::text(&source["csi"]["driver"]);
    if !own.is_empty() {
        return own.to_owned();
    }
    let mut migrated = MIGRATED.iter();
    let migrated = migrated.find(|(field, _)| tree::is_set(&source[*field]));
    migrated.map_or_else(String::new, |(_, driver)| (*driver).to_owned())
}

async fn driver_of_claim(attributes: &Attributes<'_>, claim: &str) -> Result<String, String> {
    let namespace = attributes.namespace;
    let claim = read(attributes, "", "persistentvolumeclaims", namespace, claim).await?;
    let volume = tree::text(&tree::get(&claim, "spec")["volumeName"]);
    let volume = read(attributes, "", "persistentvolumes", "", volume).await?;
    Ok(driver(tree::get(&volume, "spec")))
}

async fn read(
    attributes: &Attributes<'_>,
    group: &str,
    plural: &str,
    namespace: &str,
    name: &str,
) -> Result<Object, String> {
    let found = attributes.reader.get(group, plural, namespace, name).await;
    let found = found.map_err(|status| status.message)?;
    let singular = plural.trim_end_matches('s');
    let missing = || Status::not_found(group, singular, name).message;
    Ok(found.ok_or_else(missing)?.parse())
}
