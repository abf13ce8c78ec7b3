//! Validates the CEL selectors in DeviceClasses, ResourceClaims and ResourceClaimTemplates: each must compile and stay
//! below the cost limit. Updates check unchanged expressions of classes and templates again, as upstream;
//! stored expressions compile with the same environment as new ones.

use cel::{DEVICE_COST_LIMIT, DeviceSelector, SelectorError};
use kinds::VisitSelectors;
use kinds::tree::{list, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

/// The validation errors of the selectors of an object; `visit` finds them.
pub(crate) fn check(visit: VisitSelectors, object: &Object, old: Option<&Object>) -> Errors {
    let mut errors = Errors::new();
    visit(object, old, &mut |path, selectors| {
        check_all(selectors, path, &mut errors);
    });
    errors
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
    use kinds::Expressions;
    use machinery::json::json;

    use super::*;

    fn messages(plural: &str, object: &Value, updates: bool) -> Vec<String> {
        let object = object.as_object().cloned().unwrap_or_default();
        let kind = kinds::find("resource.k8s.io", "v1", plural).unwrap();
        let Expressions::DeviceSelectors(visit) = kind.server_side().expressions else {
            panic!("{plural} have no selectors");
        };
        let errors = check(visit, &object, updates.then_some(&object));
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
