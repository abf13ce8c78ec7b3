//! The volume sources of pods and PersistentVolumes, with their required fields. Most drivers no
//! longer exist; their fields are still validated, because objects that name them are still
//! written.

use crate::check;
use crate::core::persistent_volume_claim::validate_template;
use crate::pod::{check_downward, check_projected, no_backsteps};
use crate::tree::{entries, int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::quantity::Quantity;
use machinery::{Value, format};

type Check = fn(&Value, &Path, &mut Errors);

/// One volume source.
struct Source {
    field: &'static str,
    /// The name in the error for more than one source.
    named: &'static str,
    /// The name in errors of its own fields.
    below: &'static str,
    check: Check,
}

const fn source(field: &'static str, check: Check) -> Source {
    Source {
        field,
        named: field,
        below: field,
        check,
    }
}

const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";
const ISCSI_START: &str = "must be valid format starting with iqn, eui, or naa";
const ISCSI_FORM: &str = "must be valid format";

const HOST_PATH: Source = source("hostPath", host_path);
const GCE: Source = Source {
    below: "persistentDisk",
    ..source("gcePersistentDisk", |s, p, e| disk(s, "pdName", p, e))
};
const AWS: Source = source("awsElasticBlockStore", |s, p, e| disk(s, "volumeID", p, e));
const FLOCKER: Source = source("flocker", flocker);
const NFS: Source = source("nfs", nfs);
const RBD: Source = source("rbd", |s, p, e| {
    need_list(s, "monitors", p, e);
    need(s, &["image"], p, e);
});
const CEPHFS: Source = Source {
    named: "cephFS",
    ..source("cephfs", |s, p, e| need_list(s, "monitors", p, e))
};
const QUOBYTE: Source = source("quobyte", quobyte);
const FC: Source = source("fc", fibre_channel);
const FLEX: Source = source("flexVolume", flex);
const VSPHERE: Source = source("vsphereVolume", |s, p, e| need(s, &["volumePath"], p, e));
const PHOTON: Source = source("photonPersistentDisk", |s, p, e| need(s, &["pdID"], p, e));
const PORTWORX: Source = source("portworxVolume", |s, p, e| need(s, &["volumeID"], p, e));
const AZURE_DISK: Source = source("azureDisk", azure_disk);
const SCALE_IO: Source = source("scaleIO", |s, p, e| {
    need(s, &["gateway", "system", "volumeName"], p, e);
});

/// The sources of a pod's volume, in the order of errors.
const POD: &[Source] = &[
    source("emptyDir", |s, p, e| {
        if is_negative(&s["sizeLimit"]) {
            let detail = "SizeLimit field must be a valid resource quantity";
            e.push(Error::forbidden(&p.child("sizeLimit"), detail));
        }
    }),
    HOST_PATH,
    source("gitRepo", |s, p, e| {
        need(s, &["repository"], p, e);
        descending(text(&s["directory"]), &p.child("directory"), e);
    }),
    GCE,
    AWS,
    source("secret", |s, p, e| {
        need(s, &["secretName"], p, e);
        check_mode(&s["defaultMode"], &p.child("defaultMode"), e);
        check_items(&s["items"], p, e);
    }),
    NFS,
    source("iscsi", |s, p, e| iscsi(s, ISCSI_START, p, e)),
    source("glusterfs", |s, p, e| need(s, &["endpoints", "path"], p, e)),
    FLOCKER,
    source("persistentVolumeClaim", |s, p, e| {
        need(s, &["claimName"], p, e);
    }),
    RBD,
    source("cinder", |s, p, e| {
        need(s, &["volumeID"], p, e);
        need_reference(&s["secretRef"], &["name"], &p.child("secretRef"), e);
    }),
    CEPHFS,
    QUOBYTE,
    Source {
        named: "downwarAPI",
        ..source("downwardAPI", |s, p, e| {
            check_mode(&s["defaultMode"], &p.child("defaultMode"), e);
            for item in list(&s["items"]) {
                check_downward(item, p, e);
            }
        })
    },
    FC,
    FLEX,
    source("configMap", |s, p, e| {
        need(s, &["name"], p, e);
        check_mode(&s["defaultMode"], &p.child("defaultMode"), e);
        check_items(&s["items"], p, e);
    }),
    source("azureFile", |s, p, e| {
        need(s, &["secretName", "shareName"], p, e)
    }),
    VSPHERE,
    PHOTON,
    PORTWORX,
    AZURE_DISK,
    source("storageos", |s, p, e| storage_os(s, &["name"], p, e)),
    source("projected", check_projected),
    SCALE_IO,
    source("csi", |s, p, e| {
        csi_driver_name(text(&s["driver"]), &p.child("driver"), e);
        let secret = &s["nodePublishSecretRef"];
        match text(&secret["name"]) {
            _ if !is_set(secret) => {}
            "" => e.push(Error::required(
                &p.child("nodePublishSecretRef").child("name"),
                "",
            )),
            name => check::form(format::dns1123_subdomain(name), name, &p.child("name"), e),
        }
    }),
    source("ephemeral", |s, p, e| {
        let at = p.child("volumeClaimTemplate");
        if is_set(&s["volumeClaimTemplate"]) {
            validate_template(&s["volumeClaimTemplate"], &at, e);
        } else {
            e.push(Error::required(&at, ""));
        }
    }),
    // The other rules of image volumes depend on their position: see `check_pod_volume`.
    source("image", |s, p, e| {
        check::known(
            &s["pullPolicy"],
            &["Always", "IfNotPresent", "Never"],
            &p.child("pullPolicy"),
            e,
        );
    }),
];

/// The sources of a PersistentVolume, in the order of errors.
const PERSISTENT: &[Source] = &[
    HOST_PATH,
    GCE,
    AWS,
    source("glusterfs", |s, p, e| {
        need(s, &["endpoints", "path"], p, e);
        let at = p.child("endpointsNamespace");
        match s["endpointsNamespace"].as_str() {
            Some("") => {
                let detail = "if the endpointnamespace is set, it must be a valid namespace name";
                e.push(Error::invalid(&at, "", detail));
            }
            Some(name) => check::form(format::dns1123_label(name), name, &at, e),
            None => {}
        }
    }),
    FLOCKER,
    NFS,
    RBD,
    QUOBYTE,
    CEPHFS,
    source("iscsi", |s, p, e| iscsi(s, ISCSI_FORM, p, e)),
    source("cinder", |s, p, e| {
        need(s, &["volumeID"], p, e);
        let secret = p.child("secretRef");
        need_reference(&s["secretRef"], &["name", "namespace"], &secret, e);
    }),
    FC,
    FLEX,
    source("azureFile", |s, p, e| {
        need(s, &["secretName", "shareName"], p, e);
        if s["secretNamespace"].as_str() == Some("") {
            e.push(Error::required(&p.child("secretNamespace"), ""));
        }
    }),
    VSPHERE,
    PHOTON,
    PORTWORX,
    AZURE_DISK,
    SCALE_IO,
    source("local", absolute_or_local),
    source("storageos", |s, p, e| {
        storage_os(s, &["name", "namespace"], p, e)
    }),
    source("csi", |s, p, e| {
        csi_driver_name(text(&s["driver"]), &p.child("driver"), e);
        need(s, &["volumeHandle"], p, e);
        for name in [
            "controllerPublishSecretRef",
            "controllerExpandSecretRef",
            "nodePublishSecretRef",
            "nodeExpandSecretRef",
        ] {
            secret_reference(&s[name], &p.child(name), e);
        }
    }),
];

/// Validates the source of a pod's volume; `pod` is the pod's name, `None` for a template.
pub(crate) fn check_pod_volume(
    volume: &Value,
    pod: Option<&str>,
    path: &Path,
    errors: &mut Errors,
) {
    let image = &volume["image"];
    let alone = POD
        .iter()
        .all(|s| s.field == "image" || !is_set(&volume[s.field]));
    if pod.is_some() && alone && is_set(image) {
        let at = path.child("image.reference");
        check::required(&image["reference"], &at, errors);
    }
    check_sources(POD, volume, path, errors);
    let (name, iscsi) = (text(&volume["name"]), &volume["iscsi"]);
    let portal = text(&iscsi["targetPortal"]);
    if is_set(&iscsi["initiatorName"]) && name.len() + portal.len() + 1 > 64 {
        errors.push(Error::invalid(&path.child("name"), name, ISCSI_LENGTH));
    }
    if let Some(pod) = pod.filter(|pod| !pod.is_empty())
        && is_set(&volume["ephemeral"])
        && !name.is_empty()
    {
        let claim = format!("{pod}-{name}");
        for complaint in format::dns1123_subdomain(&claim) {
            let detail = format!("PVC name {}: {complaint}", machinery::text::quote(&claim));
            errors.push(Error::invalid(&path.child("name"), name, detail));
        }
    }
}

const ISCSI_LENGTH: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";

/// Validates the source in a PersistentVolume's spec.
pub(crate) fn check_persistent(spec: &Value, name: &str, path: &Path, errors: &mut Errors) {
    check_sources(PERSISTENT, spec, path, errors);
    let iscsi = &spec["iscsi"];
    let portal = text(&iscsi["targetPortal"]);
    if is_set(&iscsi["initiatorName"]) && name.len() + portal.len() + 1 > 64 {
        let at = path.child("iscsi.targetportal");
        errors.push(Error::invalid(&at, portal, ISCSI_LENGTH));
    }
}

/// The sources set in a PersistentVolume's spec.
pub(crate) fn persistent_fields(spec: &Value) -> Vec<(&'static str, &Value)> {
    PERSISTENT
        .iter()
        .filter(|s| is_set(&spec[s.field]))
        .map(|s| (s.field, &spec[s.field]))
        .collect()
}

fn check_sources(known: &[Source], holder: &Value, path: &Path, errors: &mut Errors) {
    let mut found = false;
    for source in known {
        let value = &holder[source.field];
        if !is_set(value) {
            continue;
        }
        // Upstream accepts flexVolume as a second source of a PersistentVolume.
        let is_second = found && (source.field != "flexVolume" || known.len() != PERSISTENT.len());
        if is_second {
            let detail = "may not specify more than 1 volume type";
            errors.push(Error::forbidden(&path.child(source.named), detail));
        } else {
            (source.check)(value, &path.child(source.below), errors);
            if source.field == "local" && !is_set(&holder["nodeAffinity"]) {
                let detail = "Local volume requires node affinity";
                errors.push(Error::required(&path.child("nodeAffinity"), detail));
            }
        }
        found = true;
    }
    if !found {
        errors.push(Error::required(path, "must specify a volume type"));
    }
}

fn need(source: &Value, fields: &[&str], path: &Path, errors: &mut Errors) {
    for field in fields {
        check::required(&source[*field], &path.child(field), errors);
    }
}

fn need_list(source: &Value, field: &str, path: &Path, errors: &mut Errors) {
    if list(&source[field]).is_empty() {
        errors.push(Error::required(&path.child(field), ""));
    }
}

fn need_reference(reference: &Value, fields: &[&str], path: &Path, errors: &mut Errors) {
    if is_set(reference) {
        need(reference, fields, path, errors);
    }
}

fn is_negative(quantity: &Value) -> bool {
    text(quantity)
        .parse::<Quantity>()
        .is_ok_and(Quantity::is_negative)
}

/// Validates a file mode.
pub(crate) fn check_mode(mode: &Value, path: &Path, errors: &mut Errors) {
    if is_set(mode) && !(0..=0o777).contains(&int(mode)) {
        errors.push(Error::invalid(path, int(mode), MODE));
    }
}

/// Validates the mapping of keys to files.
pub(crate) fn check_items(items: &Value, path: &Path, errors: &mut Errors) {
    for (i, item) in list(items).iter().enumerate() {
        let at = path.child("items");
        let at = at.index(i);
        need(item, &["key", "path"], &at, errors);
        local_path(text(&item["path"]), &at.child("path"), errors);
        check_mode(&item["mode"], &at.child("mode"), errors);
    }
}

/// A relative path without `..`.
pub(crate) fn descending(target: &str, path: &Path, errors: &mut Errors) {
    if target.starts_with('/') {
        errors.push(Error::invalid(path, target, "must be a relative path"));
    }
    no_backsteps(target, path, errors);
}

/// The same, and not a name that atomic writers use.
pub(crate) fn local_path(target: &str, path: &Path, errors: &mut Errors) {
    descending(target, path, errors);
    if target.starts_with("..") && !target.starts_with("../") {
        errors.push(Error::invalid(path, target, "must not start with '..'"));
    }
}

fn absolute_or_local(source: &Value, path: &Path, errors: &mut Errors) {
    let at = path.child("path");
    match text(&source["path"]) {
        "" => errors.push(Error::required(&at, "")),
        target => no_backsteps(target, &at, errors),
    }
}

fn host_path(source: &Value, path: &Path, errors: &mut Errors) {
    const KINDS: &[&str] = &[
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    absolute_or_local(source, path, errors);
    if !text(&source["path"]).is_empty() && is_set(&source["type"]) {
        check::one_of(&source["type"], KINDS, &path.child("type"), errors);
    }
}

fn disk(source: &Value, id: &str, path: &Path, errors: &mut Errors) {
    need(source, &[id], path, errors);
    let partition = int(&source["partition"]);
    if !(0..=255).contains(&partition) {
        let detail = format::range_message(1, 255);
        errors.push(Error::invalid(&path.child("partition"), partition, detail));
    }
}

fn nfs(source: &Value, path: &Path, errors: &mut Errors) {
    need(source, &["server", "path"], path, errors);
    let target = text(&source["path"]);
    if !target.starts_with('/') {
        let at = path.child("path");
        errors.push(Error::invalid(&at, target, "must be an absolute path"));
    }
}

fn flocker(source: &Value, path: &Path, errors: &mut Errors) {
    let (name, id) = (text(&source["datasetName"]), text(&source["datasetUUID"]));
    if name.is_empty() && id.is_empty() {
        let detail = "one of datasetName and datasetUUID is required";
        errors.push(Error::required(path, detail));
    }
    if !name.is_empty() && !id.is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(Error::invalid(path, "resource", detail));
    }
    if name.contains('/') {
        let at = path.child("datasetName");
        errors.push(Error::invalid(&at, name, "must not contain '/'"));
    }
}

/// Whether a text is a host and a port.
fn is_host_port(pair: &str) -> bool {
    match pair.rsplit_once(':') {
        Some((host, _)) if host.starts_with('[') => host.ends_with(']'),
        Some((host, port)) => !host.contains(':') && !port.contains([']', '[']),
        None => false,
    }
}

fn quobyte(source: &Value, path: &Path, errors: &mut Errors) {
    let detail = "must be a host:port pair or multiple pairs separated by commas";
    let (registry, at) = (text(&source["registry"]), path.child("registry"));
    if registry.is_empty() {
        errors.push(Error::required(&at, detail));
    } else if text(&source["tenant"]).len() >= 65 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.push(Error::required(&path.child("tenant"), detail));
    } else {
        for _ in registry.split(',').filter(|pair| !is_host_port(pair)) {
            errors.push(Error::invalid(&at, registry, detail));
        }
    }
    need(source, &["volume"], path, errors);
}

fn is_iscsi_name(name: &str) -> bool {
    let alphanumeric = |s: &str| s.bytes().all(|b| b.is_ascii_alphanumeric());
    if name.starts_with("eui") || name.starts_with("naa") {
        let length = if name.starts_with("eui") { 16 } else { 32 };
        // Any one character may follow the three letters.
        let mut rest = name[3..].chars();
        return rest.next().is_some()
            && rest.as_str().len() == length
            && alphanumeric(rest.as_str());
    }
    let Some(rest) = name.strip_prefix("iqn.") else {
        return false;
    };
    let (date, rest) = match (rest.get(..8), rest.get(8..)) {
        (Some(date), Some(rest)) => (date.as_bytes(), rest),
        _ => return false,
    };
    let dated = date.iter().enumerate().all(|(i, b)| match i {
        4 => *b == b'-',
        7 => *b == b'.',
        _ => b.is_ascii_digit(),
    });
    let Some((authority, target)) = rest.split_once(':') else {
        return false;
    };
    let clean = |c: char| !",;*&$|".contains(c) && !c.is_whitespace();
    dated
        && !authority.is_empty()
        && authority
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
        && !target.is_empty()
        && target.chars().all(clean)
}

fn iscsi(source: &Value, start: &str, path: &Path, errors: &mut Errors) {
    need(source, &["targetPortal"], path, errors);
    let name = |field: &Value, at: &Path, errors: &mut Errors| {
        let name = text(field);
        if !["iqn", "eui", "naa"].iter().any(|p| name.starts_with(p)) {
            errors.push(Error::invalid(at, name, start));
        } else if !is_iscsi_name(name) {
            errors.push(Error::invalid(at, name, ISCSI_FORM));
        }
    };
    match text(&source["iqn"]) {
        "" => errors.push(Error::required(&path.child("iqn"), "")),
        _ => name(&source["iqn"], &path.child("iqn"), errors),
    }
    let lun = int(&source["lun"]);
    for complaint in format::in_range(lun, 0, 255) {
        errors.push(Error::invalid(&path.child("lun"), lun, complaint));
    }
    let authenticated = truth(&source["chapAuthDiscovery"]) || truth(&source["chapAuthSession"]);
    let secret = path.child("secretRef");
    if authenticated && !is_set(&source["secretRef"]) {
        errors.push(Error::required(&secret, ""));
    }
    // Only a PersistentVolume's secret has a required name; the message tells which one this is.
    if start == ISCSI_FORM {
        need_reference(&source["secretRef"], &["name"], &secret, errors);
    }
    if is_set(&source["initiatorName"]) {
        name(
            &source["initiatorName"],
            &path.child("initiatorname"),
            errors,
        );
    }
}

fn fibre_channel(source: &Value, path: &Path, errors: &mut Errors) {
    let (names, ids) = (list(&source["targetWWNs"]), list(&source["wwids"]));
    let at = path.child("targetWWNs");
    if names.is_empty() && ids.is_empty() {
        let detail = "must specify either targetWWNs or wwids, but not both";
        errors.push(Error::required(&at, detail));
    }
    if names.is_empty() {
        return;
    }
    if !ids.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        errors.push(Error::invalid(&at, source["targetWWNs"].clone(), detail));
    }
    let at = path.child("lun");
    if is_set(&source["lun"]) {
        let lun = int(&source["lun"]);
        for complaint in format::in_range(lun, 0, 255) {
            errors.push(Error::invalid(&at, lun, complaint));
        }
    } else {
        let detail = "lun is required if targetWWNs is specified";
        errors.push(Error::required(&at, detail));
    }
}

fn flex(source: &Value, path: &Path, errors: &mut Errors) {
    need(source, &["driver"], path, errors);
    for (key, _) in entries(&source["options"]) {
        let namespace = key.split_once('/').map_or(key.as_str(), |(n, _)| n);
        let dotted = format!(".{}", namespace.to_lowercase());
        if dotted.ends_with(".kubernetes.io") || dotted.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            let at = path.child("options");
            let at = at.key(key);
            errors.push(Error::invalid(&at, key.as_str(), detail));
        }
    }
}

fn azure_disk(source: &Value, path: &Path, errors: &mut Errors) {
    need(source, &["diskName", "diskURI"], path, errors);
    let (caching, kind) = (&source["cachingMode"], &source["kind"]);
    if is_set(caching) {
        let modes = ["None", "ReadOnly", "ReadWrite"];
        check::one_of(caching, &modes, &path.child("cachingMode"), errors);
    }
    if !is_set(kind) {
        return;
    }
    let kinds = ["Dedicated", "Managed", "Shared"];
    check::one_of(kind, &kinds, &path.child("kind"), errors);
    let (start, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    let uri = text(&source["diskURI"]);
    if !uri.starts_with(start) {
        errors.push(Error::not_supported(&path.child("diskURI"), uri, &[form]));
    }
}

fn storage_os(source: &Value, reference: &[&str], path: &Path, errors: &mut Errors) {
    let at = path.child("volumeName");
    match text(&source["volumeName"]) {
        "" => errors.push(Error::required(&at, "")),
        name => check::form(format::dns1123_label(name), name, &at, errors),
    }
    let namespace = text(&source["volumeNamespace"]);
    if !namespace.is_empty() {
        let at = path.child("volumeNamespace");
        check::form(format::dns1123_label(namespace), namespace, &at, errors);
    }
    need_reference(
        &source["secretRef"],
        reference,
        &path.child("secretRef"),
        errors,
    );
}

/// The name of a CSI driver.
pub(crate) fn csi_driver_name(name: &str, path: &Path, errors: &mut Errors) {
    if name.is_empty() {
        errors.push(Error::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(Error::too_long(path, 63));
    }
    let complaints = format::dns1123_subdomain(&name.to_lowercase());
    check::form(complaints, name, path, errors);
}

fn secret_reference(reference: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(reference) {
        return;
    }
    for (field, form) in [
        ("name", format::dns1123_subdomain as fn(&str) -> Vec<String>),
        ("namespace", format::dns1123_label),
    ] {
        let at = path.child(field);
        match text(&reference[field]) {
            "" => errors.push(Error::required(&at, "")),
            value => check::form(form(value), value, &at, errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    fn pod(volume: Value) -> Vec<String> {
        let mut errors = Vec::new();
        check_pod_volume(&volume, Some("p"), &Path::new("v"), &mut errors);
        lines(errors)
    }

    #[test]
    fn every_volume_type_reports_its_missing_fields() {
        let cases = [
            (
                json!({}),
                vec!["v: Required value: must specify a volume type"],
            ),
            (
                json!({"emptyDir": {}, "hostPath": {}, "cephfs": {}}),
                vec![
                    "v.hostPath: Forbidden: may not specify more than 1 volume type",
                    "v.cephFS: Forbidden: may not specify more than 1 volume type",
                ],
            ),
            (
                json!({"gcePersistentDisk": {"partition": 300}}),
                vec![
                    "v.persistentDisk.pdName: Required value",
                    "v.persistentDisk.partition: Invalid value: 300: must be between 1 and 255, inclusive",
                ],
            ),
            (
                json!({"iscsi": {"targetPortal": "t", "iqn": "iqn.2020-01.io.k8s", "lun": 0}}),
                vec!["v.iscsi.iqn: Invalid value: \"iqn.2020-01.io.k8s\": must be valid format"],
            ),
            (
                json!({"iscsi": {"targetPortal": "t", "iqn": "iqn.2020-01.io.k8s:a", "lun": 0}}),
                vec![],
            ),
            (
                json!({"quobyte": {"registry": "a:1,b", "volume": "v"}}),
                vec![
                    "v.quobyte.registry: Invalid value: \"a:1,b\": must be a host:port pair or multiple pairs separated by commas",
                ],
            ),
            (
                json!({"fc": {"targetWWNs": ["a"]}}),
                vec!["v.fc.lun: Required value: lun is required if targetWWNs is specified"],
            ),
            (
                json!({"flexVolume": {"driver": "d", "options": {"x.K8s.io/a": ""}}}),
                vec![
                    "v.flexVolume.options[x.K8s.io/a]: Invalid value: \"x.K8s.io/a\": kubernetes.io and k8s.io namespaces are reserved",
                ],
            ),
            (
                json!({"image": {"pullPolicy": "Always"}}),
                vec!["v.image.reference: Required value"],
            ),
            (
                json!({"azureDisk": {"diskName": "a", "diskURI": "b", "kind": "Managed"}}),
                vec![
                    "v.azureDisk.diskURI: Unsupported value: \"b\": supported values: \"/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}\"",
                ],
            ),
        ];
        for (volume, expected) in cases {
            assert_eq!(pod(volume.clone()), expected, "{volume}");
        }
    }

    #[test]
    fn names_of_iscsi_ends_have_their_forms() {
        assert!(is_iscsi_name("eui.0123456789abcdef"));
        assert!(!is_iscsi_name("eui.0123"));
        assert!(is_iscsi_name(&format!("naa.{}", "a".repeat(32))));
        assert!(!is_iscsi_name("iqn.2020-01"));
        assert!(!is_iscsi_name("iqn.2020é01.x:y"));
    }
}
