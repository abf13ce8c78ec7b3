//! Label selectors over typed objects, compiled once and matched often.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

type Labels = BTreeMap<String, String>;

/// Values are sorted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    DoesNotExist(String),
}

/// A selector: all requirements must match.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Option<Vec<Requirement>>,
}

impl Selector {
    /// A selector that matches nothing.
    pub fn nothing() -> Self {
        Self { requirements: None }
    }

    /// A missing selector matches nothing, an empty one everything. An unknown operator matches
    /// nothing, since matching too little is safer than matching wrong objects.
    pub fn from_label_selector(selector: Option<&LabelSelector>) -> Self {
        let Some(selector) = selector else {
            return Self::nothing();
        };
        let equal = selector.match_labels.iter().flatten();
        let equal = equal.map(|(key, value)| Requirement::In(key.clone(), vec![value.clone()]));
        let mut requirements: Vec<Requirement> = equal.collect();
        for expression in selector.match_expressions.iter().flatten() {
            let (key, values) = (expression.key.clone(), expression.values.clone());
            let mut values = values.unwrap_or_default();
            // A user chooses how many there are, and every object is compared with them.
            values.sort_unstable();
            requirements.push(match expression.operator.as_str() {
                "In" => Requirement::In(key, values),
                "NotIn" => Requirement::NotIn(key, values),
                "Exists" => Requirement::Exists(key),
                "DoesNotExist" => Requirement::DoesNotExist(key),
                _ => return Self::nothing(),
            });
        }
        Self {
            requirements: Some(requirements),
        }
    }

    /// Requires these labels; an empty map matches everything.
    pub fn labels(labels: &Labels) -> Self {
        let equal =
            |(key, value): (&String, &String)| Requirement::In(key.clone(), vec![value.clone()]);
        Self {
            requirements: Some(labels.iter().map(equal).collect()),
        }
    }

    /// Matches what both match.
    pub fn and(&self, other: &Self) -> Self {
        let both = self.requirements.as_ref().zip(other.requirements.as_ref());
        let requirements = both.map(|(one, other)| one.iter().chain(other).cloned().collect());
        Self { requirements }
    }

    /// A label and value that everything selected has, for index lookups.
    pub fn required_label(&self) -> Option<(&str, &str)> {
        self.required_labels().next()
    }

    /// All labels with values that everything selected has.
    pub fn required_labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let requirements = self.requirements.iter().flatten();
        requirements.filter_map(|requirement| match requirement {
            Requirement::In(key, values) if values.len() == 1 => {
                Some((key.as_str(), values[0].as_str()))
            }
            _ => None,
        })
    }

    /// Whether it matches everything.
    pub fn is_everything(&self) -> bool {
        self.requirements.as_ref().is_some_and(Vec::is_empty)
    }

    /// Whether it matches these labels.
    pub fn matches(&self, labels: Option<&Labels>) -> bool {
        self.matches_with(|key| {
            labels
                .and_then(|labels| labels.get(key))
                .map(String::as_str)
        })
    }

    /// Whether it matches labels given as a function from key to value.
    pub fn matches_with<'a>(&self, get: impl Fn(&str) -> Option<&'a str>) -> bool {
        let is_one_of = |value: &str, values: &[String]| {
            let found = values.binary_search_by(|one| one.as_str().cmp(value));
            found.is_ok()
        };
        self.requirements.as_ref().is_some_and(|requirements| {
            requirements.iter().all(|requirement| match requirement {
                Requirement::In(key, values) => {
                    get(key).is_some_and(|value| is_one_of(value, values))
                }
                Requirement::NotIn(key, values) => {
                    get(key).is_none_or(|value| !is_one_of(value, values))
                }
                Requirement::Exists(key) => get(key).is_some(),
                Requirement::DoesNotExist(key) => get(key).is_none(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn expression(key: &str, operator: &str, values: &[&str]) -> Selector {
        let requirement = LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: Some(values.iter().map(|value| (*value).to_owned()).collect()),
        };
        let selector = LabelSelector {
            match_expressions: Some(vec![requirement]),
            ..Default::default()
        };
        Selector::from_label_selector(Some(&selector))
    }

    #[test]
    fn an_absent_selector_matches_nothing_and_an_empty_one_everything() {
        assert!(!Selector::from_label_selector(None).matches(Some(&labels(&[("a", "1")]))));
        assert!(Selector::from_label_selector(Some(&LabelSelector::default())).matches(None));
    }

    #[test]
    fn operators_treat_missing_labels_as_in_kubernetes() {
        let set = labels(&[("tier", "web")]);
        for (selector, with, without) in [
            (expression("tier", "In", &["web", "db"]), true, false),
            (expression("tier", "NotIn", &["web"]), false, true),
            (expression("tier", "Exists", &[]), true, false),
            (expression("tier", "DoesNotExist", &[]), false, true),
            (expression("tier", "Near", &[]), false, false),
        ] {
            assert_eq!(selector.matches(Some(&set)), with, "{selector:?}");
            assert_eq!(selector.matches(None), without, "{selector:?}");
        }
    }
}
