//! PriorityLevelConfiguration: concurrency and queuing of a priority level.

use super::COMMON;
use crate::Column;
use crate::builtin::Builtin;
use crate::check;
use crate::columns::{AGE, NAME, age, column, name_cell};
use crate::tree::{child, child_or_new, default_empty, default_to, get, int, is_set, name, text};
use machinery::field::{Error, Errors, Path};
use machinery::{Object, Value};

pub const KIND: Builtin = Builtin {
    kind: "PriorityLevelConfiguration",
    plural: "prioritylevelconfigurations",
    schema: "flowcontrol/v1.PriorityLevelConfiguration",
    default,
    validate_create: validate,
    validate_update: |object, _, subresource| super::validate_update(object, subresource, validate),
    columns: COLUMNS,
    row,
    ..COMMON
};

const COLUMNS: &[Column] = &[
    NAME,
    column("Type", "string", "Limited or exempt."),
    column(
        "NominalConcurrencyShares",
        "string",
        "Its share of the server.",
    ),
    column("Queues", "string", "How many queues."),
    column("HandSize", "string", "How many queues a flow may use."),
    column(
        "QueueLengthLimit",
        "string",
        "How many may wait in a queue.",
    ),
    AGE,
];

fn row(object: &Object, now: i64) -> Vec<Value> {
    let spec = get(object, "spec");
    let limited = &spec["limited"];
    let queuing = &limited["limitResponse"]["queuing"];
    let cell = |v: &Value| {
        if is_set(v) {
            v.clone()
        } else {
            Value::from("<none>")
        }
    };
    vec![
        name_cell(object),
        text(&spec["type"]).into(),
        cell(&limited["nominalConcurrencyShares"]),
        cell(&queuing["queues"]),
        cell(&queuing["handSize"]),
        cell(&queuing["queueLengthLimit"]),
        age(object, now),
    ]
}

fn default(object: &mut Object) {
    let spec = child_or_new(object, "spec");
    if let Some(exempt) = child(spec, "exempt") {
        default_to(exempt, "nominalConcurrencyShares", 0);
        default_to(exempt, "lendablePercent", 0);
    }
    if let Some(limited) = child(spec, "limited") {
        default_to(limited, "nominalConcurrencyShares", 30);
        default_to(limited, "lendablePercent", 0);
        if let Some(queuing) = child(limited, "limitResponse").and_then(|r| child(r, "queuing")) {
            default_empty(queuing, "handSize", 8);
            default_empty(queuing, "queues", 64);
            default_empty(queuing, "queueLengthLimit", 50);
        }
    }
}

const QUEUES_MAX: i64 = 10_000_000;
/// Hash bits available for shuffle sharding.
const HASH_BITS: u32 = 60;

fn validate(object: &Object) -> Errors {
    let mut errors = Vec::new();
    let spec = get(object, "spec");
    let path = Path::new("spec");
    let (kind, at) = (text(&spec["type"]), path.child("type"));
    if (name(object) == "exempt") != (kind == "Exempt") {
        let detail = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(Error::invalid(&at, kind, detail));
    }
    let (exempt, limited) = (&spec["exempt"], &spec["limited"]);
    match kind {
        "Exempt" => {
            if is_set(limited) {
                let detail = "must be nil if the type is not Limited";
                errors.push(Error::forbidden(&path.child("limited"), detail));
            }
            check_shares(exempt, &path.child("exempt"), &mut errors);
            check_lendable(exempt, &path.child("exempt"), &mut errors);
        }
        "Limited" => {
            if is_set(exempt) {
                let detail = "must be nil if the type is Limited";
                errors.push(Error::forbidden(&path.child("exempt"), detail));
            }
            if is_set(limited) {
                check_limited(limited, &path.child("limited"), &mut errors);
            } else {
                let detail = "must not be empty when type is Limited";
                errors.push(Error::required(&path.child("limited"), detail));
            }
        }
        _ => check::known(&spec["type"], &["Exempt", "Limited"], &at, &mut errors),
    }
    super::check_conditions(get(object, "status"), &mut errors);
    errors
}

fn check_shares(level: &Value, path: &Path, errors: &mut Errors) {
    let shares = int(&level["nominalConcurrencyShares"]);
    if shares < 0 {
        let at = path.child("nominalConcurrencyShares");
        errors.push(Error::invalid(
            &at,
            shares,
            "must be a non-negative integer",
        ));
    }
}

fn check_lendable(level: &Value, path: &Path, errors: &mut Errors) {
    let percent = int(&level["lendablePercent"]);
    if !(0..=100).contains(&percent) {
        let detail = "must be between 0 and 100, inclusive";
        errors.push(Error::invalid(
            &path.child("lendablePercent"),
            percent,
            detail,
        ));
    }
}

fn check_limited(limited: &Value, path: &Path, errors: &mut Errors) {
    check_shares(limited, path, errors);
    check_response(
        &limited["limitResponse"],
        &path.child("limitResponse"),
        errors,
    );
    check_lendable(limited, path, errors);
    let borrowed = int(&limited["borrowingLimitPercent"]);
    if borrowed < 0 {
        let at = path.child("borrowingLimitPercent");
        let detail = "if specified, must be a non-negative integer";
        errors.push(Error::invalid(&at, borrowed, detail));
    }
}

fn check_response(response: &Value, path: &Path, errors: &mut Errors) {
    let (queuing, at) = (&response["queuing"], path.child("queuing"));
    match text(&response["type"]) {
        "Reject" => {
            if is_set(queuing) {
                let detail = "must be nil if limited.limitResponse.type is not Limited";
                errors.push(Error::forbidden(&at, detail));
            }
        }
        "Queue" if is_set(queuing) => check_queuing(queuing, &at, errors),
        "Queue" => {
            let detail = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(Error::required(&at, detail));
        }
        _ => {
            let types = ["Queue", "Reject"];
            check::known(&response["type"], &types, &path.child("type"), errors);
        }
    }
}

fn check_queuing(queuing: &Value, path: &Path, errors: &mut Errors) {
    let amount = |name: &str| int(&queuing[name]);
    let (queues, hand) = (amount("queues"), amount("handSize"));
    if amount("queueLengthLimit") <= 0 {
        let at = path.child("queueLengthLimit");
        errors.push(Error::invalid(
            &at,
            amount("queueLengthLimit"),
            "must be positive",
        ));
    }
    let at = path.child("queues");
    if queues <= 0 {
        errors.push(Error::invalid(&at, queues, "must be positive"));
    } else if queues > QUEUES_MAX {
        let detail = format!("must not be greater than {QUEUES_MAX}");
        errors.push(Error::invalid(&at, queues, detail));
    }
    let at = path.child("handSize");
    if hand <= 0 {
        errors.push(Error::invalid(&at, hand, "must be positive"));
    } else if hand > queues {
        let detail = format!("should not be greater than queues ({queues})");
        errors.push(Error::invalid(&at, hand, detail));
    } else if entropy_bits(queues, hand) > HASH_BITS {
        let detail = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {HASH_BITS}"
        );
        errors.push(Error::invalid(&at, hand, detail));
    }
}

/// The bits needed to deal a hand of `hand` queues out of `deck`.
fn entropy_bits(deck: i64, hand: i64) -> u32 {
    // Approximate: the exact value does not matter beyond the limit.
    let mut bits = 0.0_f64;
    for left in ((deck - hand + 1)..=deck).rev() {
        bits += (left as f64).log2();
        if bits > f64::from(HASH_BITS) {
            return HASH_BITS + 1;
        }
    }
    bits.ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{lines, object};
    use machinery::json::json;

    #[test]
    fn queues_are_dealt_by_a_hash() {
        let said = |queues: i64, hand: i64| {
            let mut errors = Vec::new();
            let queuing = json!({"queues": queues, "handSize": hand, "queueLengthLimit": 1});
            check_queuing(&queuing, &Path::new("q"), &mut errors);
            lines(errors)
        };
        let none: [&str; 0] = [];
        assert_eq!(said(64, 8), none);
        assert_eq!(said(128, 6), none);
        assert_eq!(
            said(1024, 7),
            [
                "q.handSize: Invalid value: 7: required entropy bits of deckSize 1024 and handSize 7 should not be greater than 60"
            ]
        );
        assert_eq!(
            said(1, 2),
            ["q.handSize: Invalid value: 2: should not be greater than queues (1)"]
        );
    }

    #[test]
    fn only_one_level_is_exempt() {
        let level = object(r#"{"metadata": {"name": "x"}, "spec": {"type": "Exempt"}}"#);
        assert_eq!(
            lines(validate(&level)),
            [
                "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'"
            ]
        );
    }
}
