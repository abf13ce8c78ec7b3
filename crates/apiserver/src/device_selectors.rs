//! Validates the CEL selectors in DeviceClasses, ResourceClaims and ResourceClaimTemplates: each must compile and stay
//! below the cost limit. Updates check unchanged expressions of classes and templates again, as upstream;
//! stored expressions compile with the same environment as new ones.

use cel::{DEVICE_COST_LIMIT, DeviceSelector, SelectorError};
use kinds::tree::{get, list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

/// The validation errors of the selectors of a resource.k8s.io object. The spec of a claim is immutable, so it is
/// checked only on create.
pub(crate) fn check(plural: &str, object: &Object, old: Option<&Object>) -> Errors {
    let mut errors = Errors::new();
    let (spec, path) = (get(object, "spec"), Path::new("spec"));
    match plural {
        "deviceclasses" => check_all(&spec["selectors"], &path.child("selectors"), &mut errors),
        "resourceclaims" if old.is_none() => check_claim(spec, &path, &mut errors),
        "resourceclaimtemplates" => check_claim(&spec["spec"], &path.child("spec"), &mut errors),
        _ => {}
    }
    errors
}

fn check_claim(spec: &Value, path: &Path, errors: &mut Errors) {
    let path = path.child("devices");
    let path = path.child("requests");
    for (i, request) in list(&spec["devices"]["requests"]).iter().enumerate() {
        let path = path.index(i);
        let exactly = path.child("exactly");
        let selectors = &request["exactly"]["selectors"];
        check_all(selectors, &exactly.child("selectors"), errors);
        let path = path.child("firstAvailable");
        for (i, alternative) in list(&request["firstAvailable"]).iter().enumerate() {
            let path = path.index(i);
            check_all(&alternative["selectors"], &path.child("selectors"), errors);
        }
    }
}

fn check_all(selectors: &Value, path: &Path, errors: &mut Errors) {
    for (i, selector) in list(selectors).iter().enumerate() {
        let path = path.index(i);
        let path = path.child("cel");
        let path = path.child("expression");
        let expression = text(&selector["cel"]["expression"]);
        match DeviceSelector::compile(expression) {
            Ok(selector) if selector.max_cost() <= DEVICE_COST_LIMIT => {}
            Ok(_) => errors.push(Error::forbidden(&path, "too complex, exceeds cost limit")),
            Err(SelectorError::Invalid(why)) => {
                errors.push(Error::invalid(&path, expression, why));
            }
            Err(SelectorError::Internal(why)) => errors.push(Error::internal(&path, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    fn messages(plural: &str, object: &Value, updates: bool) -> Vec<String> {
        let object = object.as_object().cloned().unwrap_or_default();
        let errors = check(plural, &object, updates.then_some(&object));
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn selectors_of_classes_claims_and_templates_have_to_compile() {
        let selectors = |text: &str| json!([{"cel": {"expression": text}}]);
        let class = json!({"spec": {"selectors": selectors("1")}});
        let claim = json!({"spec": {"devices": {"requests": [
            {"exactly": {"selectors": selectors("true")}},
            {"firstAvailable": [{}, {"selectors": selectors("1")}]}
        ]}}});
        let template = json!({"spec": claim.clone()});
        let no = |path: &str| {
            vec![format!(
                "{path}.cel.expression: Invalid value: \"1\": must evaluate to bool or the unknown type, not int"
            )]
        };
        let at = "devices.requests[1].firstAvailable[1].selectors[0]";
        for updates in [false, true] {
            let found = messages("deviceclasses", &class, updates);
            assert_eq!(found, no("spec.selectors[0]"));
            let found = messages("resourceclaimtemplates", &template, updates);
            assert_eq!(found, no(&format!("spec.spec.{at}")));
        }
        let found = messages("resourceclaims", &claim, false);
        assert_eq!(found, no(&format!("spec.{at}")));
        assert_eq!(messages("resourceclaims", &claim, true), [""; 0]);
    }

    #[test]
    fn selectors_have_a_bound_on_their_cost() {
        let digits = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
        let loops: String = (0..7).map(|i| format!("{digits}.all(z{i}, ")).collect();
        let text = format!("{loops}true{}", ")".repeat(7));
        let class = json!({"spec": {"selectors": [{"cel": {"expression": text}}]}});
        assert_eq!(
            messages("deviceclasses", &class, false),
            ["spec.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit"]
        );
    }
}
