//! Volumes of cloud providers that CSI drivers serve, although their type is in Kubernetes' own API: by which driver
//! and handle they count, and by which label of nodes the driver knows zones. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, Volume},
    storage::v1::CSINode,
};
use reconcile::{placement::matches_any, storage};

/// The annotation of a CSINode with the plugins that its kubelet leaves to CSI drivers.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Stands for a part of a disk's path that the volume does not name.
const UNSPECIFIED: &str = "UNSPECIFIED";

/// A plugin, and the driver that serves its volumes.
struct Plugin {
    name: &'static str,
    driver: &'static str,
    /// The driver's label of nodes for their zone, if volumes are restricted to zones by labels.
    zone: Option<&'static str>,
}

const AWS: &Plugin = &Plugin {
    name: "kubernetes.io/aws-ebs",
    driver: "ebs.csi.aws.com",
    zone: Some("topology.ebs.csi.aws.com/zone"),
};
const GCE: &Plugin = &Plugin {
    name: "kubernetes.io/gce-pd",
    driver: "pd.csi.storage.gke.io",
    zone: Some("topology.gke.io/zone"),
};
const AZURE: &Plugin = &Plugin {
    name: "kubernetes.io/azure-disk",
    driver: "disk.csi.azure.com",
    zone: None,
};
const CINDER: &Plugin = &Plugin {
    name: "kubernetes.io/cinder",
    driver: "cinder.csi.openstack.org",
    zone: Some("topology.cinder.csi.openstack.org/zone"),
};
const PORTWORX: &Plugin = &Plugin {
    name: "kubernetes.io/portworx-volume",
    driver: "pxd.portworx.com",
    zone: None,
};

/// The driver of the volumes that a class with this provisioner makes.
pub(crate) fn driver_of_provisioner(provisioner: &str) -> &str {
    let mut plugins = [AWS, GCE, AZURE, CINDER, PORTWORX].into_iter();
    let plugin = plugins.find(|plugin| plugin.name == provisioner);
    plugin.map_or(provisioner, |plugin| plugin.driver)
}

/// Driver and handle of a volume in a pod's spec.
pub(crate) fn inline(volume: &Volume) -> Option<(&'static str, String)> {
    let (plugin, handle) = if let Some(aws) = &volume.aws_elastic_block_store {
        (AWS, aws_handle(&aws.volume_id)?)
    } else if let Some(gce) = &volume.gce_persistent_disk {
        (GCE, gce_handle(&gce.pd_name, ""))
    } else if let Some(azure) = &volume.azure_disk {
        (AZURE, azure_handle(azure.kind.as_deref(), &azure.disk_uri)?)
    } else if let Some(cinder) = &volume.cinder {
        (CINDER, cinder.volume_id.clone())
    } else {
        let portworx = volume.portworx_volume.as_ref()?;
        (PORTWORX, portworx.volume_id.clone())
    };
    Some((plugin.driver, handle))
}

/// Driver and handle of a PersistentVolume.
pub(crate) fn persistent(volume: &PersistentVolume) -> Option<(&'static str, String)> {
    let (plugin, handle) = plugin(volume)?;
    Some((plugin.driver, handle?))
}

/// The plugin of a volume, and its handle if it has a valid one.
fn plugin(volume: &PersistentVolume) -> Option<(&'static Plugin, Option<String>)> {
    let spec = volume.spec.as_ref()?;
    Some(if let Some(aws) = &spec.aws_elastic_block_store {
        (AWS, aws_handle(&aws.volume_id))
    } else if let Some(gce) = &spec.gce_persistent_disk {
        let zones = label(volume, OLD_ZONE).filter(|zones| !zones.is_empty());
        let zones = zones.or_else(|| label(volume, ZONE)).unwrap_or_default();
        (GCE, Some(gce_handle(&gce.pd_name, zones)))
    } else if let Some(azure) = &spec.azure_disk {
        let handle = azure_handle(azure.kind.as_deref(), &azure.disk_uri);
        (AZURE, handle)
    } else if let Some(cinder) = &spec.cinder {
        (CINDER, Some(cinder.volume_id.clone()))
    } else {
        let portworx = spec.portworx_volume.as_ref()?;
        (PORTWORX, Some(portworx.volume_id.clone()))
    })
}

/// The ID itself, or that in `aws://ZONE/ID`.
fn aws_handle(id: &str) -> Option<String> {
    let Some(path) = id.strip_prefix("aws://") else {
        return Some(id.to_owned());
    };
    let (_, id) = path.split_once('/')?;
    let id = id.trim_matches('/');
    (id.starts_with("vol-") && !id.contains('/')).then(|| id.to_owned())
}

/// The path of a disk in a zone, or in a region if it has several zones.
fn gce_handle(disk: &str, zones: &str) -> String {
    let place = match zones.split_once("__") {
        None if zones.is_empty() => format!("zones/{UNSPECIFIED}"),
        None => format!("zones/{zones}"),
        Some((first, _)) => {
            let region = first.rsplit_once('-').map_or(first, |(region, _)| region);
            format!("regions/{region}")
        }
    };
    format!("projects/{UNSPECIFIED}/{place}/disks/{disk}")
}

fn azure_handle(kind: Option<&str>, uri: &str) -> Option<String> {
    let is_managed = kind.is_none_or(|kind| kind.eq_ignore_ascii_case("Managed"));
    is_managed.then(|| uri.to_owned())
}

fn label<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    let labels = volume.metadata.labels.as_ref()?;
    labels.get(key).map(String::as_str)
}

/// Whether a node with these labels can access a bound volume. If the node leaves the volume's plugin to a CSI driver,
/// the zone in the volume is compared with the driver's label of the node.
pub(crate) fn reaches(
    volume: &PersistentVolume,
    csi_node: Option<&CSINode>,
    labels: &BTreeMap<String, String>,
    node: &str,
) -> bool {
    let zone = plugin(volume).and_then(|(plugin, _)| {
        let is_migrated = csi_node.is_some_and(|csi_node| is_migrated(csi_node, plugin.name));
        plugin.zone.filter(|_| is_migrated)
    });
    match zone {
        None => storage::reaches(volume, labels, node),
        Some(zone) => {
            let terms = translated(volume, zone);
            terms.is_none_or(|terms| matches_any(&terms, labels, node))
        }
    }
}

/// The plugins that a node leaves to CSI drivers, separated by commas.
pub(crate) fn migrated_plugins(node: &CSINode) -> &str {
    let annotations = node.metadata.annotations.as_ref();
    let migrated = annotations.and_then(|annotations| annotations.get(MIGRATED));
    migrated.map_or("", String::as_str)
}

fn is_migrated(node: &CSINode, plugin: &str) -> bool {
    migrated_plugins(node).split(',').any(|one| one == plugin)
}

/// The terms of a volume's node affinity with the driver's label instead of that of the zone; a volume without zones in
/// its affinity has those in its labels. `None` if there are no terms.
fn translated(volume: &PersistentVolume, zone: &str) -> Option<Vec<NodeSelectorTerm>> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref();
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    let mut terms = required.map_or_else(Vec::new, |required| required.node_selector_terms.clone());
    let has = |key: &str| {
        let mut expressions = terms
            .iter()
            .flat_map(|term| term.match_expressions.iter().flatten());
        expressions.any(|expression| expression.key == key)
    };
    let known = [ZONE, OLD_ZONE].into_iter().find(|key| has(key));
    match known {
        Some(known) => {
            rename(&mut terms, known, zone);
            if known == OLD_ZONE {
                rename(&mut terms, OLD_REGION, REGION);
            }
        }
        None => {
            let zones = label(volume, ZONE).or_else(|| label(volume, OLD_ZONE));
            let zones = zones.unwrap_or_default().split("__").map(str::trim);
            let zones: Vec<_> = zones.filter(|zone| !zone.is_empty()).collect();
            if !zones.is_empty() {
                require(&mut terms, zone, &zones);
            }
        }
    }
    (!terms.is_empty()).then_some(terms)
}

fn rename(terms: &mut [NodeSelectorTerm], from: &str, to: &str) {
    let expressions = terms
        .iter_mut()
        .flat_map(|term| term.match_expressions.iter_mut().flatten());
    for expression in expressions.filter(|expression| expression.key == from) {
        to.clone_into(&mut expression.key);
    }
}

/// Adds an expression to every term.
fn require(terms: &mut Vec<NodeSelectorTerm>, key: &str, values: &[&str]) {
    let values = values.iter().map(|value| (*value).to_owned());
    let expression = NodeSelectorRequirement {
        key: key.to_owned(),
        operator: "In".to_owned(),
        values: Some(values.collect()),
    };
    if terms.is_empty() {
        terms.push(NodeSelectorTerm::default());
    }
    for term in terms {
        let expressions = term.match_expressions.get_or_insert_default();
        expressions.push(expression.clone());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(labels: Value, mut spec: Value, affinity: &[(&str, &str)]) -> PersistentVolume {
        if !affinity.is_empty() {
            let expression = |(key, value): &(&str, &str)| json!({"key": key, "operator": "In", "values": [value]});
            let expressions: Vec<_> = affinity.iter().map(expression).collect();
            spec["nodeAffinity"] =
                json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}});
        }
        let volume = json!({"metadata": {"name": "v", "labels": labels}, "spec": spec});
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn volumes_have_the_handles_of_their_drivers() {
        let ebs = |id: &str| json!({"awsElasticBlockStore": {"volumeID": id}});
        let gce = || json!({"gcePersistentDisk": {"pdName": "d"}});
        let azure =
            |kind: &str| json!({"azureDisk": {"diskName": "d", "diskURI": "/d", "kind": kind}});
        let unknown = "pd.csi.storage.gke.io projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
        for (spec, expected) in [
            (ebs("vol-1"), "ebs.csi.aws.com vol-1"),
            (ebs("aws://us-east-1a/vol-1"), "ebs.csi.aws.com vol-1"),
            (ebs("aws://us-east-1a/x"), ""),
            (gce(), unknown),
            (azure("managed"), "disk.csi.azure.com /d"),
            (azure("Shared"), ""),
            (
                json!({"cinder": {"volumeID": "c"}}),
                "cinder.csi.openstack.org c",
            ),
            (
                json!({"portworxVolume": {"volumeID": "p"}}),
                "pxd.portworx.com p",
            ),
            (json!({"nfs": {"server": "s", "path": "/"}}), ""),
        ] {
            let shown = |found: Option<(&str, String)>| {
                found.map_or_else(String::new, |(driver, handle)| format!("{driver} {handle}"))
            };
            let found = persistent(&volume(json!({}), spec.clone(), &[]));
            assert_eq!(shown(found), expected, "{spec}");
            let mut inlined = spec.clone();
            inlined["name"] = json!("v");
            let found = inline(&serde_json::from_value(inlined).unwrap());
            assert_eq!(shown(found), expected, "{spec}");
        }
        for (key, zones, expected) in [
            (OLD_ZONE, "us-central1-a", "zones/us-central1-a"),
            (ZONE, "us-central1-a__us-central1-b", "regions/us-central1"),
        ] {
            let (_, handle) = persistent(&volume(json!({key: zones}), gce(), &[])).unwrap();
            assert_eq!(handle, format!("projects/UNSPECIFIED/{expected}/disks/d"));
        }
        assert_eq!(
            driver_of_provisioner("kubernetes.io/aws-ebs"),
            "ebs.csi.aws.com"
        );
        assert_eq!(driver_of_provisioner("x.io"), "x.io");
    }

    #[test]
    fn zones_are_compared_with_the_label_of_the_driver_where_the_node_has_one() {
        let aws = || json!({"awsElasticBlockStore": {"volumeID": "vol-1"}});
        let cinder = || json!({"cinder": {"volumeID": "c"}});
        let csi_node = |plugins: &str| {
            let node = json!({"metadata": {"name": "n", "annotations": {MIGRATED: plugins}}, "spec": {"drivers": []}});
            serde_json::from_value::<CSINode>(node).unwrap()
        };
        let both = "kubernetes.io/aws-ebs,kubernetes.io/cinder";
        let ebs = "topology.ebs.csi.aws.com/zone";
        let (other, no_plugins) = ("kubernetes.io/cinder", "");
        let plain = |zone: &str| volume(json!({}), aws(), &[(ZONE, zone)]);
        let old = volume(json!({}), aws(), &[(OLD_ZONE, "a"), (OLD_REGION, "r")]);
        let labelled = || volume(json!({ZONE: "a__b"}), aws(), &[]);
        let of_cinder = volume(json!({}), cinder(), &[(ZONE, "a")]);
        let (in_a, in_b, in_c) = ([(ebs, "a")], [(ebs, "b")], [(ebs, "c")]);
        let with_region = [(ebs, "a"), (REGION, "r")];
        for (name, volume, plugins, labels, expected) in [
            ("translated", plain("a"), both, &in_a[..], true),
            ("another zone", plain("a"), both, &in_b, false),
            ("the old label", old, both, &with_region, true),
            ("only in labels", labelled(), both, &in_b, true),
            ("not in labels", labelled(), both, &in_c, false),
            ("no zone", volume(json!({}), aws(), &[]), both, &[], true),
            ("of another driver", of_cinder, both, &in_a, false),
            ("not migrated", plain("a"), other, &in_a, false),
            ("as it is", plain("a"), no_plugins, &[(ZONE, "a")], true),
        ] {
            let labels = labels
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            let labels = labels.collect();
            let node = csi_node(plugins);
            assert_eq!(
                reaches(&volume, Some(&node), &labels, "n"),
                expected,
                "{name}"
            );
            let plain = storage::reaches(&volume, &labels, "n");
            assert_eq!(reaches(&volume, None, &labels, "n"), plain, "{name}");
        }
    }
}
