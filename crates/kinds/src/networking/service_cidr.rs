//! ServiceCIDR: ranges of Service addresses.

use crate::address::strict_cidr;
use crate::builtin::{Builtin, STATUS};
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{get, list, text};
use crate::{Column, Scope, Subresource};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    group: "networking.k8s.io",
    kind: "ServiceCIDR",
    plural: "servicecidrs",
    scope: Scope::Cluster,
    schema: "networking/v1.ServiceCIDR",
    subresources: &[STATUS],
    has_status: true,
    validate_create: validate,
    validate_update: |object, old, subresource: Subresource<'_>| {
        if subresource.is_none() {
            validate_update(object, old)
        } else {
            Vec::new()
        }
    },
    columns: COLUMNS,
    row,
    status_resets: &[&["metadata"], &["spec"]],
    ..Builtin::EMPTY
};

const COLUMNS: &[Column] = &[NAME, column("CIDRs", "string", "The ranges."), AGE];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let ranges: Vec<&str> = list(&get(object, "spec")["cidrs"])
        .iter()
        .map(text)
        .collect();
    vec![name_cell(object), ranges.join(",").into(), age(object, now)]
}

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let at = Path::new("spec.cidrs");
    let value = &get(object, "spec")["cidrs"];
    let ranges = list(value);
    if ranges.is_empty() {
        errors.push(Error::required(&at, "at least one CIDR required"));
        return errors;
    }
    if ranges.len() > 2 {
        let spec = json!({"CIDRs": value});
        errors.push(Error::invalid(&at, spec, "may only hold up to 2 values"));
        return errors;
    }
    for (i, range) in ranges.iter().enumerate() {
        strict_cidr(text(range), &at.index(i), &mut errors);
    }
    let is_v6 = |range: &Value| check::loose_network(text(range)).map(|(ip, _)| ip.is_ipv6());
    if let [a, b] = ranges
        && is_v6(a).is_some()
        && is_v6(a) == is_v6(b)
    {
        let detail = "may specify no more than one IP for each IP family, \
                      i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(Error::invalid(&at, value.clone(), detail));
    }
    errors
}

/// A range is immutable; a second one of the other IP family may be added.
fn validate_update(object: &Object, old: &Object) -> Errors {
    let mut errors = Vec::new();
    let at = Path::new("spec.cidrs");
    let (value, before) = (&get(object, "spec")["cidrs"], &get(old, "spec")["cidrs"]);
    let (now, was) = (list(value), list(before));
    if now.len() == was.len() || (was.len() == 1 && now.len() == 2) {
        for (i, (range, _)) in now.iter().zip(was).enumerate().filter(|(_, (a, b))| a != b) {
            errors.push(Error::invalid(&at.index(i), text(range), check::IMMUTABLE));
        }
        if now.len() > was.len() {
            errors.extend(validate(object));
        }
    } else {
        errors.push(Error::invalid(&at, value.clone(), check::IMMUTABLE));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};

    fn ranges(json: &str) -> Object {
        object(&format!(r#"{{"spec": {{"cidrs": {json}}}}}"#))
    }

    #[test]
    fn one_range_for_each_family() {
        let cases = [
            (r#"["10.0.0.0/8", "2001:db8::/64"]"#, ""),
            (
                "[]",
                "spec.cidrs: Required value: at least one CIDR required",
            ),
            (
                r#"["a", "b", "c"]"#,
                r#"spec.cidrs: Invalid value: {"CIDRs":["a","b","c"]}: may only hold up to 2 values"#,
            ),
            (
                r#"["10.0.0.1/8"]"#,
                r#"spec.cidrs[0]: Invalid value: "10.0.0.1/8": must not have bits set beyond the prefix length"#,
            ),
            (
                r#"["10.0.0.0/8", "11.0.0.0/8"]"#,
                r#"spec.cidrs: Invalid value: ["10.0.0.0/8","11.0.0.0/8"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"#,
            ),
        ];
        for (json, expected) in cases {
            assert_eq!(lines(validate(&ranges(json))).join(" "), expected, "{json}");
        }
    }

    #[test]
    fn ranges_stay_and_may_become_two() {
        let reported =
            |old: &str, new: &str| lines(validate_update(&ranges(new), &ranges(old))).join(" ");
        let one = r#"["10.0.0.0/8"]"#;
        assert_eq!(reported(one, r#"["10.0.0.0/8", "2001:db8::/64"]"#), "");
        assert_eq!(
            reported(one, r#"["11.0.0.0/8"]"#),
            r#"spec.cidrs[0]: Invalid value: "11.0.0.0/8": field is immutable"#
        );
        assert_eq!(
            reported(r#"["10.0.0.0/8", "2001:db8::/64"]"#, one),
            r#"spec.cidrs: Invalid value: ["10.0.0.0/8"]: field is immutable"#
        );
    }
}
