//! FlowSchemas and PriorityLevelConfigurations, parsed for the table. Invalid objects are ignored.

use http::HeaderValue;
use kinds::tree;
use machinery::{Object, Value};

use super::{defaults, limits::Share, queues::Queuing, rules::Rules};

/// A priority level.
#[derive(Debug)]
pub(super) struct LevelSpec {
    pub(super) name: String,
    /// `None` if the object does not exist yet.
    pub(super) uid: Option<HeaderValue>,
    pub(super) share: Share,
    pub(super) response: Response,
}

/// What happens to requests without a free seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Response {
    /// No limit.
    Exempt,
    Reject,
    Queue(Queuing),
}

/// A flow schema.
#[derive(Debug)]
pub(super) struct SchemaSpec {
    pub(super) name: String,
    pub(super) uid: Option<HeaderValue>,
    pub(super) precedence: i64,
    pub(super) level: String,
    pub(super) distinguisher: Option<Distinguisher>,
    pub(super) rules: Rules,
}

/// What distinguishes the flows of a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Distinguisher {
    User,
    Namespace,
}

fn uid(object: &Object) -> Option<HeaderValue> {
    let uid = tree::text(&tree::get(object, "metadata")["uid"]);
    HeaderValue::from_str(uid)
        .ok()
        .filter(|uid| !uid.is_empty())
}

fn number(value: &Value) -> u32 {
    u32::try_from(tree::int(value)).unwrap_or_default()
}

fn size(value: &Value) -> usize {
    usize::try_from(tree::int(value)).unwrap_or_default()
}

impl LevelSpec {
    pub(super) fn new(object: &Object) -> Option<Self> {
        let spec = tree::get(object, "spec");
        let name = tree::name(object).to_owned();
        let is_exempt = spec["type"] == "Exempt";
        let terms = &spec[if is_exempt { "exempt" } else { "limited" }];
        // Only the level named `exempt` may be exempt.
        if !tree::is_set(terms) || is_exempt != (name == defaults::EXEMPT) {
            return None;
        }
        let share = Share {
            shares: number(&terms["nominalConcurrencyShares"]),
            lendable_percent: number(&terms["lendablePercent"]),
            borrowing_percent: Some(&terms["borrowingLimitPercent"])
                .filter(|percent| tree::is_set(percent))
                .map(number),
        };
        let queuing = &terms["limitResponse"]["queuing"];
        let response = if is_exempt {
            Response::Exempt
        } else if tree::is_set(queuing) {
            let queuing = Queuing {
                queues: size(&queuing["queues"]),
                hand_size: size(&queuing["handSize"]),
                length_limit: size(&queuing["queueLengthLimit"]),
            };
            let is_good = (1..=queuing.queues).contains(&queuing.hand_size);
            is_good.then_some(Response::Queue(queuing))?
        } else {
            Response::Reject
        };
        Some(Self {
            name,
            uid: uid(object),
            share,
            response,
        })
    }
}

impl SchemaSpec {
    pub(super) fn new(object: &Object) -> Self {
        let spec = tree::get(object, "spec");
        Self {
            name: tree::name(object).to_owned(),
            uid: uid(object),
            precedence: tree::int(&spec["matchingPrecedence"]),
            level: tree::text(&spec["priorityLevelConfiguration"]["name"]).to_owned(),
            distinguisher: match tree::text(&spec["distinguisherMethod"]["type"]) {
                "ByUser" => Some(Distinguisher::User),
                "ByNamespace" => Some(Distinguisher::Namespace),
                _ => None,
            },
            rules: Rules::new(&spec["rules"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use registry_testing::object;

    #[test]
    fn a_level_is_read_and_a_broken_one_is_none() {
        let level = |name: &str, spec: Value| {
            LevelSpec::new(&object(json!({"metadata": {"name": name}, "spec": spec})))
        };
        let queuing = json!({"queues": 4, "handSize": 2, "queueLengthLimit": 9});
        let limited = json!({
            "nominalConcurrencyShares": 7, "lendablePercent": 50, "borrowingLimitPercent": 20,
            "limitResponse": {"type": "Queue", "queuing": queuing},
        });
        let read = level("x", json!({"type": "Limited", "limited": limited})).unwrap();
        let expected = Share {
            shares: 7,
            lendable_percent: 50,
            borrowing_percent: Some(20),
        };
        assert_eq!((read.share, read.uid), (expected, None));
        let queuing = Queuing {
            queues: 4,
            hand_size: 2,
            length_limit: 9,
        };
        assert_eq!(read.response, Response::Queue(queuing));
        let exempt = json!({"type": "Exempt", "exempt": {}});
        assert!(
            level("x", exempt.clone()).is_none(),
            "the name says who is exempt"
        );
        assert_eq!(level("exempt", exempt).unwrap().response, Response::Exempt);
        assert!(level("x", json!({"type": "Limited"})).is_none());
        let hand = json!({"queues": 1, "handSize": 2, "queueLengthLimit": 9});
        let limited = json!({"limitResponse": {"type": "Queue", "queuing": hand}});
        assert!(level("x", json!({"type": "Limited", "limited": limited})).is_none());
    }

    #[test]
    fn every_default_is_good() {
        for default in defaults::levels() {
            assert!(
                LevelSpec::new(&default.object).is_some(),
                "{:?}",
                default.object
            );
        }
        let schemas = defaults::schemas();
        let specs: Vec<SchemaSpec> = schemas.iter().map(|d| SchemaSpec::new(&d.object)).collect();
        assert!(specs.is_sorted_by_key(|spec| (spec.precedence, spec.name.clone())));
    }
}
