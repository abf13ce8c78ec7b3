//! Reads a KubeletConfiguration from a file and the drop-in files beside it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value};

use super::{API_VERSION, KIND, KubeletConfiguration, fixed};

/// The files of a configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sources {
    pub file: Option<PathBuf>,
    /// A directory of drop-in files.
    pub drop_ins: Option<PathBuf>,
}

/// A configuration and its files.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub configuration: KubeletConfiguration,
    pub sources: Sources,
}

/// Reads the file and the drop-in files (`*.conf`, in the order of their paths) of the directory,
/// each if given. Fields of later files win; maps are merged by key.
pub fn load(sources: Sources) -> Result<Loaded, String> {
    let mut merged = Map::new();
    let mut files: Vec<PathBuf> = sources.file.iter().cloned().collect();
    if let Some(dir) = &sources.drop_ins {
        drop_in_files(dir, &mut files)?;
    }
    for path in &files {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let fields = parse(&text).map_err(|why| format!("{}: {why}", path.display()))?;
        merge(&mut merged, fields);
    }
    let configuration: KubeletConfiguration = serde_json::from_value(Value::Object(merged))
        .map_err(|error| format!("kubelet configuration: {error}"))?;
    let configuration = configuration.complete();
    let problems = configuration.problems();
    if problems.is_empty() {
        Ok(Loaded {
            configuration,
            sources,
        })
    } else {
        Err(format!("kubelet configuration: {}", problems.join("; ")))
    }
}

/// Collects `*.conf` files recursively, in the order of their paths.
fn drop_in_files(dir: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let bad = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(bad)? {
        paths.push(entry.map_err(bad)?.path());
    }
    paths.sort();
    for path in paths {
        let is_conf = path.extension().is_some_and(|ending| ending == "conf");
        if path.is_dir() {
            drop_in_files(&path, files)?;
        } else if is_conf && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}

fn parse(text: &str) -> Result<Map<String, Value>, String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(mut fields) = value else {
        return Err("not an object".into());
    };
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if fields.get(key).and_then(Value::as_str) != Some(wanted) {
            return Err(format!("{key} must be {wanted}"));
        }
    }
    let mut refused = Vec::new();
    fields.retain(|key, value| match fixed::check(key, value) {
        None => true,
        Some(checked) => {
            let line = || format!("line {}: ", line_of(text, key));
            refused.extend(checked.err().map(|why| line() + &why));
            false
        }
    });
    if !refused.is_empty() {
        return Err(refused.join("; "));
    }
    // Null means unset.
    fields.retain(|_, value| !value.is_null());
    serde_json::from_value::<KubeletConfiguration>(Value::Object(fields.clone()))
        .map_err(|error| explain(&error.to_string(), text))?;
    Ok(fields)
}

/// Adds the line of an unknown field and the most similar known name to the error.
fn explain(error: &str, text: &str) -> String {
    let Some(unknown) = error
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split('`').next())
    else {
        return error.to_owned();
    };
    let mut candidates: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    let fixed: Vec<&'static str> = fixed::names().collect();
    candidates.extend_from_slice(&fixed);
    let line = line_of(text, unknown);
    let nearest = candidates
        .into_iter()
        .map(|known| (distance(unknown, known), known))
        .min()
        .filter(|(distance, _)| *distance <= 1 + unknown.len() / 4);
    match nearest {
        Some((_, known)) => {
            format!("line {line}: unknown field {unknown:?}, did you mean {known:?}?")
        }
        None => format!("line {line}: unknown field {unknown:?}"),
    }
}

fn line_of(text: &str, key: &str) -> usize {
    let names = |line: &str| {
        let line = line.trim_start_matches([' ', '-', '{', '"', '\'']);
        line.strip_prefix(key)
            .is_some_and(|rest| rest.trim_start_matches(['"', '\'', ' ']).starts_with(':'))
    };
    text.lines().position(names).map_or(1, |index| index + 1)
}

/// The edit distance of two names, ignoring case.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn merge(into: &mut Map<String, Value>, fields: Map<String, Value>) {
    for (key, value) in fields {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(known)), Value::Object(more)) => merge(known, more),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn written(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), format!("{HEAD}{text}")).unwrap();
        file
    }

    fn load_files(file: &Path, drop_ins: Option<&Path>) -> Result<KubeletConfiguration, String> {
        let sources = Sources {
            file: Some(file.to_owned()),
            drop_ins: drop_ins.map(Path::to_owned),
        };
        load(sources).map(|loaded| loaded.configuration)
    }

    fn refused(text: &str) -> String {
        load_files(written(text).path(), None).unwrap_err()
    }

    #[test]
    fn unknown_fields_are_refused_with_their_line_and_a_suggestion() {
        let reported = refused("maxPods: 5\nmaxPod: 6\n");
        assert!(
            reported.contains("line 4") && reported.contains("\"maxPods\""),
            "{reported}"
        );
        let nested = refused("authentication:\n  webhook:\n    cacheTtl: 1m\n");
        assert!(
            nested.contains("line 5") && nested.contains("cacheTTL"),
            "{nested}"
        );
        let far = refused("colour: blue\n");
        assert!(far.contains("colour") && !far.contains("mean"), "{far}");
        let wrong = refused("maxPods: many\n");
        assert!(wrong.contains("many"), "{wrong}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "kind: Pod\n").unwrap();
        assert!(load_files(file.path(), None).is_err());
    }

    #[test]
    fn restarts_and_pulls_are_bounded_and_their_bounds_checked() {
        let file = written(
            "crashLoopBackOff: {maxContainerRestartPeriod: 30s}\nregistryPullQPS: 3\nmaxParallelImagePulls: 4\n",
        );
        let loaded = load_files(file.path(), None).unwrap();
        assert_eq!(loaded.longest_restart_delay().as_secs(), 30);
        assert_eq!(loaded.max_parallel_image_pulls, Some(4));
        for (text, expected) in [
            (
                "crashLoopBackOff: {maxContainerRestartPeriod: 10m}\n",
                "between 1s and 300s, not 10m",
            ),
            ("maxParallelImagePulls: 0\n", "greater than 0"),
            (
                "serializeImagePulls: true\nmaxParallelImagePulls: 2\n",
                "unless serializeImagePulls is false",
            ),
            ("registryBurst: -1\n", "registryBurst must not be negative"),
        ] {
            let reported = refused(text);
            assert!(reported.contains(expected), "{reported}");
        }
    }

    #[test]
    fn settings_without_effect_are_refused_with_their_line() {
        let file = written("maxPods: 7\nhairpinMode: none\ncpuManagerPolicy: none\n");
        assert_eq!(load_files(file.path(), None).unwrap().max_pods, 7);
        let reported = refused("maxPods: 7\ncpuManagerPolicy: static\n");
        assert!(
            reported.contains("line 4: cpuManagerPolicy cannot be"),
            "{reported}"
        );
    }

    #[test]
    fn a_kubelet_configuration_written_by_kubeadm_is_accepted() {
        let file = written(
            "authentication:\n  anonymous: {enabled: false}\n  webhook: {cacheTTL: 0s, enabled: true}\n  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}\nauthorization:\n  mode: Webhook\n  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}\ncgroupDriver: systemd\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\ncontainerRuntimeEndpoint: \"\"\ncpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {}\nevictionPressureTransitionPeriod: 0s\nfileCheckFrequency: 0s\nhealthzBindAddress: 127.0.0.1\nhealthzPort: 10248\nhttpCheckFrequency: 0s\nimageMaximumGCAge: 0s\nimageMinimumGCAge: 0s\nlogging:\n  flushFrequency: 0\n  options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}\n  verbosity: 0\nmemorySwap: {}\nnodeStatusReportFrequency: 0s\nnodeStatusUpdateFrequency: 0s\nrotateCertificates: true\nruntimeRequestTimeout: 0s\nshutdownGracePeriod: 0s\nshutdownGracePeriodCriticalPods: 0s\nstaticPodPath: /etc/kubernetes/manifests\nstreamingConnectionIdleTimeout: 0s\nsyncFrequency: 0s\nvolumeStatsAggPeriod: 0s\n",
        );
        let loaded = load_files(file.path(), None).unwrap();
        assert_eq!(loaded.cluster_dns, ["10.96.0.10"]);
        assert_eq!(loaded.image_minimum_gc_age.0.as_secs(), 120);
    }

    #[test]
    fn drop_ins_win_in_the_order_of_their_names() {
        let file = written("maxPods: 7\nkubeReserved: {cpu: 100m, memory: 1Gi}\n");
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("20-b.conf", "maxPods: 9\nkubeReserved: {memory: 2Gi}\n"),
            ("10-a.conf", "maxPods: 8\npodPidsLimit: 50\n"),
            ("ignored.yaml", "maxPods: 1\n"),
        ] {
            fs::write(dir.path().join(name), format!("{HEAD}{text}")).unwrap();
        }
        let below = dir.path().join("30-c");
        fs::create_dir(&below).unwrap();
        fs::write(below.join("x.conf"), format!("{HEAD}podsPerCore: 3\n")).unwrap();
        let loaded = load_files(file.path(), Some(dir.path())).unwrap();
        assert_eq!(loaded.pods_per_core, 3);
        assert_eq!((loaded.max_pods, loaded.pod_pids_limit), (9, 50));
        assert_eq!(loaded.kube_reserved["cpu"], "100m");
        assert_eq!(loaded.kube_reserved["memory"], "2Gi");
    }

    #[test]
    fn no_field_is_known_twice() {
        let own = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        let own = own.as_object().unwrap();
        assert!(fixed::names().all(|name| !own.contains_key(name)));
    }
}
