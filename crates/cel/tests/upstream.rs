//! Expressions with the results of kube-apiserver v1.36.4: value, runtime error or compilation
//! error, estimated cost and actual cost. The tables hold observed results, one expression per
//! line. `MAINSTAY_CEL_TABLE` names another table to compare with.

mod upstream {
    pub(crate) mod environment;
    pub(crate) mod shown;
}

use cel::{PER_CALL_LIMIT, Program, compile, cost::estimate::estimate};
use machinery::json;

use upstream::{environment::Environment, shown::shown};

/// The result of an expression, in the form of the tables.
fn found(environment: &Environment, row: &json::Value) -> json::Value {
    let text = row["e"].as_str().unwrap_or_default();
    let env = environment.env(row["patch"] == true);
    let checked = match compile(env, text) {
        Ok(checked) => checked,
        Err(issues) => return json::json!({"issue": issues.to_string()}),
    };
    let estimated = estimate(env, &checked);
    let program = match Program::new(env, &checked) {
        Ok(program) => program,
        Err(error) => return json::json!({"issue": format!("program: {}", error.message)}),
    };
    let evaluation = program.evaluate(&environment.values(), PER_CALL_LIMIT);
    let estimated = json::json!([estimated.min, estimated.max]);
    match evaluation.result {
        Ok(value) => {
            json::json!({"v": shown(&value), "est": estimated, "cost": evaluation.cost})
        }
        Err(error) => {
            json::json!({"error": error.message, "est": estimated, "cost": evaluation.cost})
        }
    }
}

#[test]
fn expressions_have_upstreams_results_and_costs() {
    let environment = Environment::new();
    let mut rows = 0;
    let mut differences = Vec::new();
    let table = match std::env::var_os("MAINSTAY_CEL_TABLE") {
        Some(path) => std::fs::read_to_string(path).expect("a table can be read"),
        None => include_str!("upstream/expressions.jsonl").to_owned(),
    };
    for line in table.lines() {
        let row: json::Value = json::from_str(line).expect("a row is JSON");
        let found = found(&environment, &row);
        rows += 1;
        for key in ["v", "error", "issue", "est", "cost"] {
            if row[key] != found[key] {
                let expression = &row["e"];
                differences.push(format!(
                    "{key} {expression}\n    upstream {row}\n    ours     {found}"
                ));
                break;
            }
        }
    }
    let count = differences.len();
    assert!(
        differences.is_empty(),
        "{count} of {rows} differ\n{}",
        differences.join("\n")
    );
}
