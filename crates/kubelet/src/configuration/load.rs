//! Reads a KubeletConfiguration from a file and the drop-in files beside it.

use std::{fs, path::Path};

use serde_json::{Map, Value};

use super::{API_VERSION, KIND, KubeletConfiguration};

/// Fields of upstream's type that do nothing here, because what they set does not exist here (yet).
pub const WITHOUT_EFFECT: &[&str] = &[
    "address",
    "cgroupDriver",
    "cgroupRoot",
    "cgroupsPerQOS",
    "clusterDNS",
    "clusterDomain",
    "configMapAndSecretChangeDetectionStrategy",
    "containerLogMaxWorkers",
    "containerRuntimeEndpoint",
    "contentType",
    "cpuCFSQuota",
    "cpuCFSQuotaPeriod",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "cpuManagerReconcilePeriod",
    "enableContentionProfiling",
    "enableControllerAttachDetach",
    "enableDebugFlagsHandler",
    "enableDebuggingHandlers",
    "enableProfilingHandler",
    "enableServer",
    "enableSystemLogQuery",
    "eventBurst",
    "eventRecordQPS",
    "failCgroupV1",
    "failSwapOn",
    "fileCheckFrequency",
    "hairpinMode",
    "httpCheckFrequency",
    "imagePullCredentialsVerificationPolicy",
    "imageServiceEndpoint",
    "iptablesDropBit",
    "iptablesMasqueradeBit",
    "kernelMemcgNotification",
    "kubeAPIBurst",
    "kubeAPIQPS",
    "kubeReservedCgroup",
    "kubeletCgroups",
    "logging",
    "makeIPTablesUtilChains",
    "maxOpenFiles",
    "memoryManagerPolicy",
    "memoryReservationPolicy",
    "memorySwap",
    "memoryThrottlingFactor",
    "oomScoreAdj",
    "podCIDR",
    "port",
    "preloadedImagesVerificationAllowlist",
    "protectKernelDefaults",
    "providerID",
    "qosReserved",
    "readOnlyPort",
    "registerNode",
    "reservedMemory",
    "reservedSystemCPUs",
    "rotateCertificates",
    "runOnce",
    "runtimeRequestTimeout",
    "serverTLSBootstrap",
    "showHiddenMetricsForVersion",
    "shutdownGracePeriod",
    "shutdownGracePeriodByPodPriority",
    "shutdownGracePeriodCriticalPods",
    "singleProcessOOMKill",
    "staticPodURL",
    "staticPodURLHeader",
    "streamingConnectionIdleTimeout",
    "syncFrequency",
    "systemCgroups",
    "systemReservedCgroup",
    "tlsCertFile",
    "tlsCipherSuites",
    "tlsCurvePreferences",
    "tlsMinVersion",
    "tlsPrivateKeyFile",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
    "tracing",
    "userNamespaces",
    "volumePluginDir",
];

/// A configuration and what its author should know about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub configuration: KubeletConfiguration,
    /// Fields that are set and have no effect.
    pub warnings: Vec<String>,
}

/// Reads the file, if one is given, and the drop-in files (`*.conf`, in the order of their names) of
/// the directory, if one is given. A later file's fields win; maps are merged by key.
pub fn load(file: Option<&Path>, drop_ins: Option<&Path>) -> Result<Loaded, String> {
    let mut merged = Map::new();
    let mut warnings = Vec::new();
    let mut sources: Vec<std::path::PathBuf> = file.into_iter().map(Path::to_path_buf).collect();
    if let Some(dir) = drop_ins {
        sources.extend(drop_in_files(dir)?);
    }
    for path in &sources {
        let text =
            fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let fields =
            parse(&text, &mut warnings).map_err(|why| format!("{}: {why}", path.display()))?;
        merge(&mut merged, fields);
    }
    let configuration: KubeletConfiguration = serde_json::from_value(Value::Object(merged))
        .map_err(|error| format!("kubelet configuration: {error}"))?;
    let configuration = configuration.complete();
    let problems = configuration.problems();
    if problems.is_empty() {
        Ok(Loaded {
            configuration,
            warnings,
        })
    } else {
        Err(format!("kubelet configuration: {}", problems.join("; ")))
    }
}

fn drop_in_files(dir: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let bad = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).map_err(bad)? {
        let path = entry.map_err(bad)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "conf")
            && path.is_file()
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn parse(text: &str, warnings: &mut Vec<String>) -> Result<Map<String, Value>, String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let Value::Object(mut fields) = value else {
        return Err("not an object".into());
    };
    for (key, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        if fields.get(key).and_then(Value::as_str) != Some(wanted) {
            return Err(format!("{key} must be {wanted}"));
        }
    }
    let without: Vec<String> = fields
        .keys()
        .filter(|key| WITHOUT_EFFECT.contains(&key.as_str()))
        .cloned()
        .collect();
    for key in without {
        fields.remove(&key);
        warnings.push(format!(
            "{key} (line {}) has no effect here",
            line_of(text, &key)
        ));
    }
    // Null is as good as absent.
    fields.retain(|_, value| !value.is_null());
    serde_json::from_value::<KubeletConfiguration>(Value::Object(fields.clone()))
        .map_err(|error| explain(&error.to_string(), text))?;
    Ok(fields)
}

/// An unknown field with its line and the name that may have been meant.
fn explain(error: &str, text: &str) -> String {
    let Some(unknown) = error
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split('`').next())
    else {
        return error.to_owned();
    };
    let candidates: Vec<&str> = error
        .split('`')
        .skip(3)
        .step_by(2)
        .chain(WITHOUT_EFFECT.iter().copied())
        .collect();
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

/// Edits between two names, without regard to case.
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

    fn refused(text: &str) -> String {
        load(Some(written(text).path()), None).unwrap_err()
    }

    #[test]
    fn unknown_fields_are_refused_with_their_line_and_a_suggestion() {
        let told = refused("maxPods: 5\nmaxPod: 6\n");
        assert!(
            told.contains("line 4") && told.contains("\"maxPods\""),
            "{told}"
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
        assert!(load(Some(file.path()), None).is_err());
    }

    #[test]
    fn restarts_and_pulls_are_bounded_and_their_bounds_checked() {
        let file = written(
            "crashLoopBackOff: {maxContainerRestartPeriod: 30s}\nregistryPullQPS: 3\nmaxParallelImagePulls: 4\n",
        );
        let loaded = load(Some(file.path()), None).unwrap().configuration;
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
            let told = refused(text);
            assert!(told.contains(expected), "{told}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said() {
        let file = written("maxPods: 7\nhairpinMode: none\n");
        let loaded = load(Some(file.path()), None).unwrap();
        assert_eq!(loaded.configuration.max_pods, 7);
        assert_eq!(loaded.warnings, ["hairpinMode (line 4) has no effect here"]);
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
        let loaded = load(Some(file.path()), Some(dir.path()))
            .unwrap()
            .configuration;
        assert_eq!((loaded.max_pods, loaded.pod_pids_limit), (9, 50));
        assert_eq!(loaded.kube_reserved["cpu"], "100m");
        assert_eq!(loaded.kube_reserved["memory"], "2Gi");
    }

    #[test]
    fn no_field_is_known_twice() {
        let own = serde_json::to_value(KubeletConfiguration::default()).unwrap();
        let own = own.as_object().unwrap();
        assert!(WITHOUT_EFFECT.iter().all(|name| !own.contains_key(*name)));
    }
}
