//! The kinds of flowcontrol.apiserver.k8s.io.

pub mod flow_schema;
pub mod priority_level_configuration;

use crate::tree::{list, text};
use machinery::Value;
use machinery::field::{Error, Errors, Path};

/// Conditions have a type of their own.
fn check_conditions(status: &Value, errors: &mut Errors) {
    let path = Path::new("status").child("conditions");
    let all = list(&status["conditions"]);
    for (i, condition) in all.iter().enumerate() {
        let (kind, at) = (text(&condition["type"]), path.index(i).child("type"));
        if all[..i].iter().any(|c| text(&c["type"]) == kind) {
            errors.push(Error::duplicate(&at, kind));
        }
        if kind.is_empty() {
            errors.push(Error::required(&at, ""));
        }
    }
}
