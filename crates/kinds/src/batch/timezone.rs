//! The name of a CronJob's time zone.

use machinery::cron;

/// Validates the name of a time zone.
pub(super) fn check(name: &str) -> Vec<String> {
    if name.is_empty() {
        return vec!["timeZone must be nil or non-empty string".to_owned()];
    }
    let sound = |part: &str| {
        (1..=14).contains(&part.len())
            && part != "."
            && part != ".."
            && !part.starts_with('-')
            && part
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b".-_+".contains(&b))
    };
    let unknown = format!("unknown time zone {name}");
    if !name.split('/').all(sound) {
        return vec![unknown];
    }
    let mut found = Vec::new();
    if name.eq_ignore_ascii_case("local") {
        found.push(
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
                .to_owned(),
        );
        if name == "Local" {
            return found;
        }
    }
    if cron::find_zone(name).is_none() {
        found.push(unknown);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_named_in_full() {
        assert_eq!(check("UTC"), Vec::<String>::new());
        assert_eq!(check("Europe/Berlin"), Vec::<String>::new());
        assert_eq!(check("europe/berlin"), ["unknown time zone europe/berlin"]);
        assert_eq!(check("../x"), ["unknown time zone ../x"]);
        assert_eq!(check(""), ["timeZone must be nil or non-empty string"]);
        assert!(check("Local")[0].starts_with("timeZone must be an explicit time zone"));
    }
}
