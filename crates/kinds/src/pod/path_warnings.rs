//! Overlapping paths within one volume.

use crate::tree::{is_set, list, text};
use machinery::Value;
use machinery::text::quote;

/// A path in a volume, with its source if ambiguous.
#[derive(Clone)]
struct VolumePath<'a> {
    path: &'a str,
    source: String,
}

impl VolumePath<'_> {
    fn shown(&self) -> String {
        match self.source.as_str() {
            "" => quote(self.path),
            source => format!("{} ({source})", quote(self.path)),
        }
    }

    /// Whether the paths are equal, or one contains the other.
    fn overlaps(&self, other: &Self) -> bool {
        let within =
            |a: &str, b: &str| a == b || a.strip_prefix(b).is_some_and(|r| r.starts_with('/'));
        let (a, b) = (self.path, other.path);
        !a.is_empty() && !b.is_empty() && (within(a, b) || within(b, a))
    }
}

/// Warns of overlapping paths in volumes.
pub(super) fn overlapping_paths(volumes: &Value, out: &mut Vec<String>) {
    for volume in list(volumes) {
        let name = quote(text(&volume["name"]));
        let mut tell = |described: &str, places: Vec<VolumePath<'_>>| {
            for (new, old) in collisions(places) {
                out.push(format!(
                    "volume {name} ({described}): overlapping paths: {} with {}",
                    new.shown(),
                    old.shown()
                ));
            }
        };
        let (map, secret) = (&volume["configMap"], &volume["secret"]);
        tell(
            &format!("ConfigMap {}", quote(text(&map["name"]))),
            items(map, ""),
        );
        tell(
            &format!("Secret {}", quote(text(&secret["secretName"]))),
            items(secret, ""),
        );
        tell("DownwardAPI", items(&volume["downwardAPI"], ""));
        let sources = list(&volume["projected"]["sources"]);
        tell("Projected", sources.iter().flat_map(projected).collect());
        for source in sources {
            if source.as_object().is_none_or(|s| !s.values().any(is_set)) {
                out.push(format!("volume {name} (Projected) has no sources provided"));
            }
        }
    }
}

fn items<'a>(source: &'a Value, described: &str) -> Vec<VolumePath<'a>> {
    let place = |item: &'a Value| VolumePath {
        path: text(&item["path"]),
        source: described.to_owned(),
    };
    list(&source["items"]).iter().map(place).collect()
}

fn projected(source: &Value) -> Vec<VolumePath<'_>> {
    let (map, secret) = (&source["configMap"], &source["secret"]);
    if is_set(&map["items"]) {
        return items(map, &format!("ConfigMap {}", quote(text(&map["name"]))));
    }
    if is_set(&secret["items"]) {
        return items(secret, &format!("Secret {}", quote(text(&secret["name"]))));
    }
    if is_set(&source["downwardAPI"]["items"]) {
        return items(&source["downwardAPI"], "DownwardAPI");
    }
    let (token, bundle) = (
        &source["serviceAccountToken"],
        &source["clusterTrustBundle"],
    );
    if is_set(token) {
        return vec![VolumePath {
            path: text(&token["path"]),
            source: "ServiceAccountToken".to_owned(),
        }];
    }
    if is_set(bundle) {
        let name = bundle["name"]
            .as_str()
            .unwrap_or(text(&bundle["signerName"]));
        return vec![VolumePath {
            path: text(&bundle["path"]),
            source: format!("ClusterTrustBundle {}", quote(name)),
        }];
    }
    let certificate = &source["podCertificate"];
    [
        ("certificateChainPath", "chain"),
        ("keyPath", "key"),
        ("credentialBundlePath", "credential bundle"),
    ]
    .into_iter()
    .map(|(field, what)| VolumePath {
        path: text(&certificate[field]),
        source: format!("PodCertificate {what}"),
    })
    .filter(|place| !place.path.is_empty())
    .collect()
}

fn collisions(places: Vec<VolumePath<'_>>) -> Vec<(VolumePath<'_>, VolumePath<'_>)> {
    let mut seen: Vec<VolumePath<'_>> = Vec::new();
    let mut out = Vec::new();
    for mut place in places {
        place.path = place.path.trim_end_matches('/');
        let before = seen.iter().filter(|old| place.overlaps(old));
        out.extend(before.map(|old| (place.clone(), old.clone())));
        seen.push(place);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn overlapping_paths_of_a_volume_are_warned_about() {
        let reported = |volume: Value| {
            let mut out = Vec::new();
            overlapping_paths(&json!([volume]), &mut out);
            out
        };
        assert_eq!(
            reported(json!({"name": "v", "configMap": {"name": "m", "items": [
                {"key": "a", "path": "x"}, {"key": "b", "path": "x/y"}, {"key": "c", "path": "xy"}]}})),
            [r#"volume "v" (ConfigMap "m"): overlapping paths: "x/y" with "x""#]
        );
        assert_eq!(
            reported(json!({"name": "v", "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}},
                {"secret": {"name": "s", "items": [{"key": "k", "path": "t"}]}},
                {}]}})),
            [
                r#"volume "v" (Projected): overlapping paths: "t" (Secret "s") with "t" (ServiceAccountToken)"#,
                r#"volume "v" (Projected) has no sources provided"#,
            ]
        );
    }
}
