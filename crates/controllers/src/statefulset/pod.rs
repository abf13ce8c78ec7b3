//! The identity of a StatefulSet's pods: name, host name, labels and storage of their ordinal.
//! Pure.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume},
};

use super::claims;
use crate::{history, podcontrol};

const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The ordinal in a pod's name, if it is a name of this set.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i64> {
    let (name, number) = pod.metadata.name.as_deref()?.rsplit_once('-')?;
    let ordinal: i64 = number.parse().ok().filter(|ordinal| *ordinal >= 0)?;
    let canonical = ordinal.to_string() == number;
    (canonical && Some(name) == set.metadata.name.as_deref()).then_some(ordinal)
}

/// The first ordinal, and their number.
pub(super) fn range(set: &StatefulSet) -> (i64, i32) {
    let spec = set.spec.as_ref();
    let ordinals = spec.and_then(|spec| spec.ordinals.as_ref());
    let first = ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0);
    // The last ordinal may be greater than the greatest i32.
    (
        first.into(),
        spec.and_then(|spec| spec.replicas).unwrap_or(1),
    )
}

/// Whether the set wants a pod with this ordinal.
pub(super) fn is_wanted(set: &StatefulSet, ordinal: i64) -> bool {
    let (first, replicas) = range(set);
    (first..first + i64::from(replicas)).contains(&ordinal)
}

/// The name of a pod's revision.
pub(super) fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels
        .and_then(|labels| labels.get(history::HASH))
        .map(String::as_str)
        .unwrap_or_default()
}

pub(super) fn name(set: &StatefulSet, ordinal: i64) -> String {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    format!("{name}-{ordinal}")
}

/// A new pod of an ordinal.
pub(super) fn new(
    set: &StatefulSet,
    ordinal: i64,
    revision: &str,
    template: Option<&PodTemplateSpec>,
) -> Pod {
    let mut pod = podcontrol::from_template(set, template);
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name(set, ordinal));
    identify(set, ordinal, &mut pod);
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(history::HASH.into(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name(set, ordinal));
    let service = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    spec.subdomain = service.filter(|name| !name.is_empty());
    pod
}

/// Sets labels and volumes of the ordinal.
fn identify(set: &StatefulSet, ordinal: i64, pod: &mut Pod) {
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(NAME_LABEL.into(), name(set, ordinal));
    labels.insert(INDEX_LABEL.into(), ordinal.to_string());
    let names = claims::names(set, ordinal);
    if names.is_empty() {
        return;
    }
    let volumes = pod
        .spec
        .get_or_insert_default()
        .volumes
        .get_or_insert_default();
    let own = |volume: &Volume| names.iter().any(|(name, _)| *name == volume.name);
    volumes.retain(|volume| !own(volume));
    let claimed = names.iter().map(|(name, claim)| Volume {
        name: name.clone(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.clone(),
            read_only: None,
        }),
        ..Default::default()
    });
    volumes.splice(0..0, claimed);
}

/// The pod with corrected labels and volumes; `None` if nothing is missing.
pub(super) fn corrected(set: &StatefulSet, pod: &Pod) -> Option<Pod> {
    let ordinal = ordinal(set, pod)?;
    let labels = pod.metadata.labels.as_ref();
    let named = labels.and_then(|labels| labels.get(NAME_LABEL)) == pod.metadata.name.as_ref();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let claims = |name: &str, claim: &str| {
        volumes.into_iter().flatten().any(|volume| {
            let source = volume.persistent_volume_claim.as_ref();
            volume.name == name && source.is_some_and(|source| source.claim_name == claim)
        })
    };
    let names = claims::names(set, ordinal);
    if named && names.iter().all(|(name, claim)| claims(name, claim)) {
        return None;
    }
    let mut right = pod.clone();
    identify(set, ordinal, &mut right);
    Some(right)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set() -> StatefulSet {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "uid": "set"},
            "spec": {
                "serviceName": "peers", "selector": {}, "template": {}, "replicas": 3,
                "ordinals": {"start": 2},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_has_the_name_host_name_and_storage_of_its_ordinal() {
        let template: PodTemplateSpec = serde_json::from_value(json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "more"}]},
        }))
        .unwrap();
        let pod = new(&set(), 2, "db-abc", Some(&template));
        assert_eq!(pod.metadata.name.as_deref(), Some("db-2"));
        assert_eq!(
            (pod.metadata.generate_name.as_deref(), revision(&pod)),
            (None, "db-abc")
        );
        let labels = pod.metadata.labels.clone().unwrap();
        assert_eq!(
            (labels[NAME_LABEL].as_str(), labels[INDEX_LABEL].as_str()),
            ("db-2", "2")
        );
        let spec = pod.spec.clone().unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("db-2"));
        assert_eq!(spec.subdomain.as_deref(), Some("peers"));
        let volumes = spec.volumes.unwrap();
        let names: Vec<_> = volumes.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["data", "more"]);
        let claim = volumes[0]
            .persistent_volume_claim
            .clone()
            .unwrap()
            .claim_name;
        assert_eq!(claim, "data-db-2");
        assert_eq!(corrected(&set(), &pod), None);
        let mut changed = pod.clone();
        changed.metadata.labels = None;
        let right = corrected(&set(), &changed).unwrap();
        assert_eq!(right.metadata.labels.unwrap()[NAME_LABEL], "db-2");
    }

    #[test]
    fn only_names_of_the_set_have_an_ordinal() {
        for (name, expected) in [
            ("db-0", Some(0)),
            ("db-12", Some(12)),
            ("db-x", None),
            ("db-01", None),
            ("db--1", None),
            ("other-1", None),
            ("db", None),
        ] {
            let mut pod = Pod::default();
            pod.metadata.name = Some(name.into());
            assert_eq!(ordinal(&set(), &pod), expected, "{name}");
        }
        let wanted: Vec<_> = (0..8)
            .filter(|ordinal| is_wanted(&set(), *ordinal))
            .collect();
        assert_eq!(wanted, [2, 3, 4]);
    }
}
