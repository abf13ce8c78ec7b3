//! The volume with a pod's service account token. Admission gives it a name with a random suffix, by which the specs of
//! equal pods differ; nothing that the scheduler decides depends on it.

/// How the name begins, as JSON of a volume and of its mounts.
const NAME: &str = r#""name":"kube-api-access-"#;
/// The length of the suffix.
const SUFFIX: usize = 5;
/// What follows the name in a volume and in a mount. A volume of another type with such a name is no token volume: the
/// names of ephemeral volumes matter. The brace also tells it from labels that a user calls `name` and `projected`.
const AFTER: [&[u8]; 2] = [br#"","projected":{"#, br#"","readOnly":true,"mountPath":"#];

/// Where the random suffixes are in the JSON of a spec or of one of its fields.
pub(crate) fn suffixes(json: &str) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let starts = json.match_indices(NAME).map(|(at, _)| at + NAME.len());
    starts.filter_map(|start| {
        let (suffix, rest) = json.as_bytes().get(start..)?.split_at_checked(SUFFIX)?;
        let is_token = is_suffix(suffix) && AFTER.iter().any(|after| rest.starts_with(after));
        is_token.then_some(start..start + SUFFIX)
    })
}

fn is_suffix(bytes: &[u8]) -> bool {
    let mut bytes = bytes.iter();
    bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// JSON whose random suffixes may differ.
#[derive(Debug)]
pub(crate) struct Pattern {
    json: String,
    suffixes: Vec<std::ops::Range<usize>>,
}

impl Pattern {
    pub(crate) fn new(json: String) -> Self {
        let suffixes = suffixes(&json).collect();
        Self { json, suffixes }
    }

    /// The text after the pattern, if the text begins with it.
    pub(crate) fn strip<'a>(&self, text: &'a str) -> Option<&'a str> {
        let (start, rest) = text.split_at_checked(self.json.len())?;
        let (own, start) = (self.json.as_bytes(), start.as_bytes());
        let mut at = 0;
        for suffix in &self.suffixes {
            let is_equal = own[at..suffix.start] == start[at..suffix.start];
            if !is_equal || !is_suffix(&start[suffix.clone()]) {
                return None;
            }
            at = suffix.end;
        }
        (own[at..] == start[at..]).then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(volume: &str, mount: &str) -> String {
        format!(
            r#"{{"volumes":[{{"name":"{volume}","projected":{{"sources":[]}}}}],"containers":[{{"name":"c","volumeMounts":[{{"name":"{mount}","readOnly":true,"mountPath":"/x"}}]}}]"#
        )
    }

    #[test]
    fn specs_that_differ_only_in_the_names_of_their_token_volumes_match() {
        let one = spec("kube-api-access-abc12", "kube-api-access-abc12");
        let pattern = Pattern::new(one.clone());
        assert_eq!(pattern.suffixes.len(), 2);
        let equal = spec("kube-api-access-zzz99", "kube-api-access-zzz99");
        for text in [one, equal] {
            assert_eq!(pattern.strip(&format!("{text},rest")), Some(",rest"));
        }
        for other in [
            spec("kube-api-access-zzz9", "kube-api-access-zzz99x"),
            spec("kube-api-access-zz\"99", "kube-api-access-zzz99"),
            spec("kube-api-access-zzz99", "kube-api-access-ZZZ99"),
            spec("kube-api-axcess-zzz99", "kube-api-access-zzz99"),
            spec("kube-api-access-zzz99", "kube-api-access-zzz99").replace("/x", "/y"),
            String::new(),
        ] {
            assert_eq!(pattern.strip(&other), None, "{other}");
        }
    }

    #[test]
    fn other_volumes_and_names_are_no_token_volumes() {
        for text in [
            r#"[{"name":"kube-api-access-abc12","ephemeral":{}}]"#,
            r#"[{"name":"kube-api-access-abc12"}]"#,
            // A node selector, on which the decision depends.
            r#"{"name":"kube-api-access-abc12","projected":"x"}"#,
            r#"[{"name":"kube-api-access-abc1","projected":{}}]"#,
            r#"[{"name":"kube-api-access-abc123","projected":{}}]"#,
            r#"[{"value":"\"name\":\"kube-api-access-abc12\",\"projected\":"}]"#,
            r#""name":"kube-api-access-"#,
            r#""name":"kube-api-access-ab"#,
        ] {
            assert_eq!(suffixes(text).count(), 0, "{text}");
        }
    }
}
