//! The IP families of a Service: by its request, its addresses, and the cluster's configuration.
//! Pure.

use std::net::IpAddr;

use machinery::{
    Object, Value,
    field::{Error, Errors, Path},
};

use super::{list, text};

const SINGLE: &str = "SingleStack";

pub(super) fn family_of(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn other(family: &str) -> &'static str {
    if family == "IPv4" { "IPv6" } else { "IPv4" }
}

/// Sets `ipFamilyPolicy`, `ipFamilies` and, if the secondary family is released, `clusterIPs`.
/// `cluster` are the IP families of the cluster, the primary one first.
pub(super) fn default_and_validate(
    spec: &mut Object,
    old: Option<&Object>,
    cluster: &[&'static str],
) -> Errors {
    if spec.get("ipFamilyPolicy").is_none_or(Value::is_null) {
        let before = old.map(|old| text(old, "ipFamilyPolicy"));
        let policy = match before {
            Some(before) if !before.is_empty() => before,
            // A headless service without a selector may have endpoints of both families.
            _ if is_free(spec) => "RequireDualStack",
            _ => SINGLE,
        };
        spec.insert("ipFamilyPolicy".to_owned(), policy.into());
    }
    let before = old.cloned().map_or(Value::Null, Value::Object);
    let malformed = kinds::core::service::address_errors(&Value::Object(spec.clone()), &before);
    if !malformed.is_empty() {
        return malformed;
    }
    let mut errors = Errors::new();
    if let Some(old) = old {
        release_second(spec, old, &mut errors);
    }
    let at = Path::new("spec.ipFamilyPolicy");
    let policy = text(spec, "ipFamilyPolicy").to_owned();
    let (addresses, mut families) = (list(spec, "clusterIPs"), list(spec, "ipFamilies"));
    if policy == SINGLE {
        let why = "must be 'RequireDualStack' or 'PreferDualStack' when multiple";
        if addresses.len() == 2 {
            let why = format!("{why} cluster IPs are specified");
            errors.push(Error::invalid(&at, policy.as_str(), why));
        }
        if families.len() == 2 {
            let why = format!("{why} IP families are specified");
            errors.push(Error::invalid(&at, policy.as_str(), why));
        }
    }
    infer(&addresses, &mut families, cluster, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    let free = is_free(spec);
    if !free {
        if policy == "RequireDualStack" && cluster.len() < 2 {
            let why = "this cluster is not configured for dual-stack services";
            errors.push(Error::invalid(&at, policy.as_str(), why));
        }
        let at = Path::new("spec.ipFamilies");
        for (index, family) in families.iter().enumerate() {
            if !cluster.iter().any(|known| known == family) {
                let why = "not configured on this cluster";
                errors.push(Error::invalid(&at.index(index), family.as_str(), why));
            }
        }
        if !errors.is_empty() {
            return errors;
        }
    }
    if families.is_empty() {
        families.extend(cluster.first().map(|&family| family.to_owned()));
    }
    // A headless service without a selector may have endpoints of both families.
    if policy != SINGLE && families.len() == 1 && (free || cluster.len() == 2) {
        families.push(other(&families[0]).to_owned());
    }
    spec.insert("ipFamilies".to_owned(), families.into());
    errors
}

/// Whether it is headless without a selector.
fn is_free(spec: &Object) -> bool {
    let selects = spec
        .get("selector")
        .and_then(Value::as_object)
        .is_some_and(|selector| !selector.is_empty());
    text(spec, "clusterIP") == "None" && !selects
}

/// Whether an update leaves a PreferDualStack service unchanged. A changed cluster configuration
/// alone changes no service.
pub(super) fn stays(spec: &Object, old: &Object) -> bool {
    let has_address = matches!(
        text(spec, "type"),
        "ClusterIP" | "NodePort" | "LoadBalancer"
    );
    let prefers = text(spec, "ipFamilyPolicy") == "PreferDualStack";
    has_address
        && prefers
        && ["type", "ipFamilyPolicy"]
            .iter()
            .all(|key| text(spec, key) == text(old, key))
        && ["clusterIPs", "ipFamilies"]
            .iter()
            .all(|key| list(spec, key) == list(old, key))
}

/// SingleStack releases the secondary address and family, if they are unchanged; other policies do
/// not.
fn release_second(spec: &mut Object, old: &Object, errors: &mut Errors) {
    let policy = text(spec, "ipFamilyPolicy").to_owned();
    let at = Path::new("spec.ipFamilyPolicy");
    for (key, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (now, before) = (list(spec, key), list(old, key));
        if policy == SINGLE {
            if now == before && now.len() > 1 {
                spec.insert(key.to_owned(), vec![now[0].clone()].into());
            }
        } else if !now.is_empty() && now.len() < before.len() {
            let why = format!("must be 'SingleStack' to release the secondary {what}");
            errors.push(Error::invalid(&at, policy.as_str(), why));
        }
    }
}

/// Infers missing families from the addresses.
fn infer(addresses: &[String], families: &mut Vec<String>, cluster: &[&str], errors: &mut Errors) {
    for (index, address) in addresses.iter().enumerate().skip(families.len()) {
        // `None` is always the only one.
        let Ok(parsed) = address.parse::<IpAddr>() else {
            return;
        };
        let family = family_of(&parsed);
        if cluster.contains(&family) {
            families.push(family.to_owned());
        } else {
            let at = Path::new("spec.clusterIPs");
            let at = at.index(index);
            let why = format!("{family} is not configured on this cluster");
            errors.push(Error::invalid(&at, addresses.to_vec(), why));
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;

    const DUAL: &[&str] = &["IPv4", "IPv6"];

    fn settled(spec: Value, old: Value, cluster: &[&'static str]) -> Result<Value, String> {
        let mut spec = spec.as_object().cloned().unwrap();
        let errors = default_and_validate(&mut spec, old.as_object(), cluster);
        match errors.first() {
            None => Ok(json!([
                spec["ipFamilyPolicy"],
                spec["ipFamilies"],
                spec.get("clusterIPs")
            ])),
            Some(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn families_follow_policy_addresses_and_cluster() {
        let new = |spec, cluster| settled(spec, Value::Null, cluster);
        let cases = [
            (json!({}), DUAL, json!(["SingleStack", ["IPv4"], null])),
            (
                json!({"ipFamilyPolicy": "PreferDualStack"}),
                DUAL,
                json!(["PreferDualStack", ["IPv4", "IPv6"], null]),
            ),
            (
                json!({"ipFamilyPolicy": "PreferDualStack"}),
                &DUAL[..1],
                json!(["PreferDualStack", ["IPv4"], null]),
            ),
            (
                json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}),
                DUAL,
                json!(["PreferDualStack", ["IPv6", "IPv4"], null]),
            ),
            (
                json!({"clusterIPs": ["fd00::7"], "clusterIP": "fd00::7"}),
                DUAL,
                json!(["SingleStack", ["IPv6"], ["fd00::7"]]),
            ),
            (
                json!({"clusterIP": "None", "clusterIPs": ["None"]}),
                &DUAL[..1],
                json!(["RequireDualStack", ["IPv4", "IPv6"], ["None"]]),
            ),
        ];
        for (spec, cluster, expected) in cases {
            assert_eq!(new(spec.clone(), cluster), Ok(expected), "{spec}");
        }
        let refused = new(json!({"ipFamilyPolicy": "RequireDualStack"}), &DUAL[..1]).unwrap_err();
        assert!(refused.contains("this cluster is not configured for dual-stack services"));
        let refused = new(json!({"ipFamilies": ["IPv6"]}), &DUAL[..1]).unwrap_err();
        assert!(refused.contains("spec.ipFamilies[0]") && refused.contains("not configured"));
    }

    #[test]
    fn the_second_family_goes_only_with_a_policy_of_one() {
        let old = json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"],
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"]});
        let mut new = old.clone();
        new["ipFamilyPolicy"] = "SingleStack".into();
        assert_eq!(
            settled(new, old.clone(), DUAL),
            Ok(json!(["SingleStack", ["IPv4"], ["10.0.0.1"]]))
        );
        let mut new = old.clone();
        new["clusterIPs"] = json!(["10.0.0.1"]);
        let refused = settled(new, old, DUAL).unwrap_err();
        assert!(refused.contains("must be 'SingleStack' to release the secondary cluster IP"));
    }
}
