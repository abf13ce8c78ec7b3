//! Transition rules with the results of Kubernetes v1.36.4: verdict, estimated and actual cost. `upstream.json` holds
//! observed results; each row is one rule at the root of the schema, about a new and an old object.
//! `MAINSTAY_RULES_TABLE` names another table to compare with.

use cel::{PER_CALL_LIMIT, Value as Cel};
use machinery::{
    Value,
    field::{Errors, Path},
    json::{from_str, json},
};

use super::{
    super::{ratchet::CorrelatedValue, structural::Schema},
    Rules,
    evaluate::variables,
};

#[test]
fn transition_rules_have_upstreams_results_and_costs() {
    let table = match std::env::var_os("MAINSTAY_RULES_TABLE") {
        Some(path) => std::fs::read_to_string(path).unwrap(),
        None => include_str!("upstream.json").to_owned(),
    };
    let table: Value = from_str(&table).unwrap();
    let structural = Schema::read(&table["schema"]);
    let (mut differences, mut seen) = (Vec::new(), 0);
    for row in table["rows"].as_array().unwrap() {
        let object = |key: &str| &table["objects"][row[key].as_str().unwrap()];
        let (new, old) = (object("new"), object("old"));
        let mut schema = table["schema"].clone();
        schema["x-kubernetes-validations"] = json!([{"rule": row["rule"]}]);
        let rules = Rules::read(&schema).unwrap();
        seen += 1;
        let was = CorrelatedValue::new(&structural, new.into(), old.into());
        let mut errors = Errors::new();
        rules.check_update(was, &Path::new(""), &mut errors);
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let compiled = rules.rules[0].compiled.as_ref().unwrap();
        let values = variables(new.into(), Some(old.into()), rules.decl.as_deref(), false).unwrap();
        let evaluation = compiled.program.evaluate(&values, PER_CALL_LIMIT);
        let holds = matches!(evaluation.result, Ok(Cel::Bool(true)));
        let found = json!({"rule": row["rule"], "new": row["new"], "old": row["old"], "errors": errors,
            "max": compiled.max_cost, "cost": evaluation.cost});
        if found != *row || holds != errors.is_empty() {
            differences.push(format!("upstream {row}\nours     {found}"));
        }
    }
    let count = differences.len();
    assert!(
        differences.is_empty(),
        "{count} of {seen} differ\n{}",
        differences.join("\n")
    );
}
