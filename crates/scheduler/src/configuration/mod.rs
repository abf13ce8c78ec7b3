//! `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`: profiles, their plugins with
//! weights and arguments, the percentage of nodes to score, and backoffs.
//!
//! Unsupported settings are rejected, not ignored.

mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

pub use process::LeaderElection;
use process::{ClientConnection, LeaderElectionDocument};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    extender,
    framework::{
        Plugin, Point,
        profile::{Enabled, Profile},
    },
    plugins::ALL,
    queue::Backoff,
};

/// A parsed configuration.
#[derive(Debug)]
pub struct Configuration {
    /// The profiles.
    pub profiles: Vec<Profile>,
    /// The backoffs.
    pub backoff: Backoff,
    /// The extenders.
    pub extenders: Vec<extender::Settings>,
    /// `None` if the document does not mention leader election, or turns it off.
    pub leader_election: Option<LeaderElection>,
    /// Whether the document mentions leader election.
    pub speaks_of_election: bool,
    /// `clientConnection.kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `clientConnection.qps` and `burst`: how many requests are sent; `None`: only the API server limits them.
    pub rate: Option<client::Rate>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    #[serde(default)]
    profiles: Vec<ProfileDocument>,
    percentage_of_nodes_to_score: Option<usize>,
    pod_initial_backoff_seconds: Option<u64>,
    pod_max_backoff_seconds: Option<u64>,
    #[serde(default)]
    extenders: Vec<extender::Settings>,
    /// The number of goroutines of upstream's filters; here one loop does it, and decisions do not
    /// depend on it.
    parallelism: Option<i64>,
    leader_election: Option<LeaderElectionDocument>,
    client_connection: Option<ClientConnection>,
    #[expect(dead_code, reason = "accepted: it does not affect decisions")]
    enable_profiling: Option<bool>,
    #[expect(dead_code, reason = "accepted: it does not affect decisions")]
    enable_contention_profiling: Option<bool>,
    /// Here nothing is watched before this process leads in any case.
    #[expect(dead_code, reason = "accepted: a standby never fills its caches")]
    delay_cache_until_active: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ProfileDocument {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<usize>,
    plugins: BTreeMap<String, PluginSet>,
    plugin_config: Vec<PluginConfig>,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct PluginSet {
    enabled: Vec<PluginName>,
    disabled: Vec<PluginName>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PluginName {
    name: String,
    #[serde(default)]
    weight: i64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PluginConfig {
    name: String,
    #[serde(default)]
    args: Value,
}

const POINTS: [(&str, Point); 12] = [
    ("preEnqueue", Point::PreEnqueue),
    ("queueSort", Point::QueueSort),
    ("preFilter", Point::PreFilter),
    ("filter", Point::Filter),
    ("postFilter", Point::PostFilter),
    ("preScore", Point::PreScore),
    ("score", Point::Score),
    ("reserve", Point::Reserve),
    ("permit", Point::Permit),
    ("preBind", Point::PreBind),
    ("bind", Point::Bind),
    ("postBind", Point::PostBind),
];

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        let mut disabled = self.disabled.iter();
        disabled.any(|plugin| plugin.name == "*" || plugin.name == name)
    }
}

/// Parses a configuration.
pub fn parse(value: &Value) -> Result<Configuration, String> {
    let document = Document::deserialize(value).map_err(|error| error.to_string())?;
    let known = (
        "kubescheduler.config.k8s.io/v1",
        "KubeSchedulerConfiguration",
    );
    if (document.api_version.as_str(), document.kind.as_str()) != known {
        let (version, kind) = (document.api_version, document.kind);
        return Err(format!("unknown configuration {version} {kind}"));
    }
    extender::validate(&document.extenders)?;
    if document.parallelism.is_some_and(|threads| threads <= 0) {
        return Err("parallelism should be an integer value greater than zero".into());
    }
    let managed = document
        .extenders
        .iter()
        .flat_map(|one| &one.managed_resources);
    let ignored = managed.filter(|resource| resource.ignored_by_scheduler);
    let ignored: Vec<&str> = ignored.map(|resource| resource.name.as_str()).collect();
    let percentage = percentage(document.percentage_of_nodes_to_score.unwrap_or(0))?;
    let mut profiles = document.profiles;
    if profiles.is_empty() {
        profiles.push(ProfileDocument::default());
    }
    let alone = profiles.len() == 1;
    let mut names = BTreeSet::new();
    let mut made = Vec::new();
    for mut profile in profiles {
        if alone && profile.scheduler_name.is_none() {
            profile.scheduler_name = Some("default-scheduler".into());
        }
        let name = profile.scheduler_name.clone().unwrap_or_default();
        if name.is_empty() || !names.insert(name.clone()) {
            return Err(format!("profiles need different names, not {name:?}"));
        }
        ignore_resources(&mut profile, &ignored);
        made.push(build(&name, &profile, percentage).map_err(|why| format!("{name}: {why}"))?);
    }
    let speaks_of_election = document.leader_election.is_some();
    let election = document.leader_election.map(LeaderElectionDocument::read);
    let connection = document.client_connection.unwrap_or_default();
    let (kubeconfig, rate) = connection.read()?;
    Ok(Configuration {
        extenders: document.extenders,
        leader_election: election.transpose()?.flatten(),
        speaks_of_election,
        kubeconfig,
        rate,
        profiles: made,
        backoff: backoff(
            document.pod_initial_backoff_seconds,
            document.pod_max_backoff_seconds,
        )?,
    })
}

/// Resources that extenders manage are ignored by NodeResourcesFit.
fn ignore_resources(profile: &mut ProfileDocument, names: &[&str]) {
    const FIT: &str = "NodeResourcesFit";
    if names.is_empty() {
        return;
    }
    let known = profile
        .plugin_config
        .iter()
        .position(|config| config.name == FIT);
    let at = known.unwrap_or_else(|| {
        profile.plugin_config.push(PluginConfig {
            name: FIT.into(),
            args: Value::Null,
        });
        profile.plugin_config.len() - 1
    });
    let arguments = &mut profile.plugin_config[at].args;
    if arguments.is_null() {
        *arguments = Value::Object(serde_json::Map::new());
    }
    if let Some(fields) = arguments.as_object_mut() {
        let list = fields
            .entry("ignoredResources")
            .or_insert_with(|| Value::Array(Vec::new()));
        if let Some(list) = list.as_array_mut() {
            list.extend(names.iter().map(|name| Value::from(*name)));
        }
    }
}

fn percentage(percentage: usize) -> Result<usize, String> {
    if percentage > 100 {
        return Err("percentageOfNodesToScore must be between 0 and 100".into());
    }
    Ok(percentage)
}

fn backoff(first: Option<u64>, last: Option<u64>) -> Result<Backoff, String> {
    let default = Backoff::default();
    let first = first.map_or(default.first, Duration::from_secs);
    let last = last.map_or(default.last, Duration::from_secs);
    if first.is_zero() {
        return Err("podInitialBackoffSeconds must be greater than 0".into());
    }
    if last < first {
        return Err("podMaxBackoffSeconds must not be less than podInitialBackoffSeconds".into());
    }
    Ok(Backoff {
        first,
        last,
        ..default
    })
}

/// Every plugin with its arguments in the profile.
fn instances(profile: &ProfileDocument) -> Result<Vec<Enabled>, String> {
    let mut seen = BTreeSet::new();
    for config in &profile.plugin_config {
        if !ALL.iter().any(|plugin| plugin.name == config.name) {
            return Err(format!(
                "pluginConfig of the unknown plugin {:?}",
                config.name
            ));
        }
        if !seen.insert(&config.name) {
            return Err(format!("pluginConfig of {} is given twice", config.name));
        }
    }
    let instance = |registration: &crate::plugins::Registration| {
        let mut configs = profile.plugin_config.iter();
        let config = configs.find(|config| config.name == registration.name);
        let arguments = config.map_or(&Value::Null, |config| &config.args);
        let plugin = (registration.new)(arguments);
        Ok(Enabled {
            plugin: plugin.map_err(|why| format!("{}: {why}", registration.name))?,
            weight: registration.weight,
        })
    };
    ALL.iter().map(instance).collect()
}

fn build(name: &str, profile: &ProfileDocument, percentage: usize) -> Result<Profile, String> {
    let all = instances(profile)?;
    let find = |wanted: &PluginName| -> Result<Enabled, String> {
        let mut known = all.iter();
        let found = known.find(|enabled| enabled.plugin.name() == wanted.name);
        let found = found.ok_or_else(|| format!("unknown plugin {:?}", wanted.name))?;
        let weight = if wanted.weight == 0 {
            found.weight
        } else {
            wanted.weight
        };
        Ok(Enabled {
            plugin: found.plugin.clone(),
            weight,
        })
    };
    for point in profile.plugins.keys() {
        if point != "multiPoint" && !POINTS.iter().any(|(known, _)| known == point) {
            return Err(format!("unknown extension point {point:?}"));
        }
    }
    let everywhere = multi_point(profile.plugins.get("multiPoint"), &all, &find)?;
    let mut points: BTreeMap<Point, Vec<Enabled>> = BTreeMap::new();
    for (key, point) in POINTS {
        let set = profile.plugins.get(key).cloned().unwrap_or_default();
        let mut enabled: Vec<Enabled> = Vec::new();
        for wanted in &set.enabled {
            let one = find(wanted)?;
            if !one.plugin.points().contains(&point) {
                return Err(format!("{} does not take part in {key}", wanted.name));
            }
            enabled.push(one);
        }
        for one in &everywhere {
            let name = one.plugin.name();
            let given = enabled.iter().any(|other| other.plugin.name() == name);
            if one.plugin.points().contains(&point) && !given && !set.disables(name) {
                enabled.push(one.clone());
            }
        }
        points.insert(point, enabled);
    }
    check(&points)?;
    let own = profile.percentage_of_nodes_to_score;
    let percentage = self::percentage(own.unwrap_or(percentage))?;
    Ok(Profile::new(name, percentage, points))
}

/// The default plugins, changed by `multiPoint`: replaced in place, or appended.
fn multi_point(
    set: Option<&PluginSet>,
    all: &[Enabled],
    find: &impl Fn(&PluginName) -> Result<Enabled, String>,
) -> Result<Vec<Enabled>, String> {
    let none = PluginSet::default();
    let set = set.unwrap_or(&none);
    let defaults = all
        .iter()
        .filter(|enabled| !set.disables(enabled.plugin.name()));
    let mut everywhere: Vec<Enabled> = defaults.cloned().collect();
    for wanted in &set.enabled {
        let one = find(wanted)?;
        let mut known = everywhere.iter_mut();
        match known.find(|other| other.plugin.name() == one.plugin.name()) {
            Some(other) => *other = one,
            None => everywhere.push(one),
        }
    }
    Ok(everywhere)
}

/// Validates what every profile needs.
fn check(points: &BTreeMap<Point, Vec<Enabled>>) -> Result<(), String> {
    let at = |point: Point| points.get(&point).map_or(&[][..], Vec::as_slice);
    if at(Point::QueueSort).len() != 1 {
        return Err("exactly one queueSort plugin is needed".into());
    }
    if at(Point::Bind).is_empty() {
        return Err("at least one bind plugin is needed".into());
    }
    // Filter and Score need what the previous extension point has prepared.
    for (before, after) in [
        (Point::PreFilter, Point::Filter),
        (Point::PreScore, Point::Score),
    ] {
        for enabled in at(after) {
            let plugin: &Arc<dyn Plugin> = &enabled.plugin;
            let prepared = at(before)
                .iter()
                .any(|other| other.plugin.name() == plugin.name());
            if plugin.points().contains(&before) && !prepared {
                let name = plugin.name();
                return Err(format!("{name} at {after:?} needs {name} at {before:?}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(fields: Value) -> Result<Configuration, String> {
        let mut document = json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
        });
        let fields = fields.as_object().unwrap().clone();
        document.as_object_mut().unwrap().extend(fields);
        parse(&document)
    }

    fn profile(fields: Value) -> Result<Profile, String> {
        Ok(with(json!({"profiles": [fields]}))?.profiles.remove(0))
    }

    fn names(profile: &Profile, point: Point) -> Vec<(&'static str, i64)> {
        let named = |enabled: &Enabled| (enabled.plugin.name(), enabled.weight);
        profile.at(point).iter().map(named).collect()
    }

    #[test]
    fn an_empty_configuration_is_the_default_scheduler() {
        let configuration = with(json!({})).unwrap();
        let [one] = configuration.profiles.as_slice() else {
            panic!("{configuration:?}");
        };
        let default = Profile::default_scheduler();
        assert_eq!(one.name, default.name);
        for (_, point) in POINTS {
            assert_eq!(names(one, point), names(&default, point), "{point:?}");
        }
        let scores = names(one, Point::Score);
        assert_eq!(scores[..2], [("TaintToleration", 3), ("NodeAffinity", 2)]);
        assert_eq!(configuration.backoff.last, Duration::from_secs(10));
    }

    #[test]
    fn plugins_are_enabled_disabled_and_weighted() {
        let plugins = json!({
            "multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 7}],
                "disabled": [{"name": "NodeAffinity"}]},
            "score": {"enabled": [{"name": "InterPodAffinity", "weight": 50}],
                "disabled": [{"name": "PodTopologySpread"}]},
        });
        let one = profile(json!({"schedulerName": "mine", "plugins": plugins})).unwrap();
        let scores = names(&one, Point::Score);
        assert_eq!(scores[0], ("InterPodAffinity", 50), "named ones come first");
        assert!(scores.contains(&("ImageLocality", 7)));
        let has = |point, name| names(&one, point).iter().any(|(known, _)| *known == name);
        assert!(!has(Point::Score, "PodTopologySpread") && has(Point::Filter, "PodTopologySpread"));
        assert!(!has(Point::Filter, "NodeAffinity") && !has(Point::Score, "NodeAffinity"));
        let few = json!({"score": {"disabled": [{"name": "*"}],
            "enabled": [{"name": "NodeResourcesFit"}]}});
        let few = profile(json!({"plugins": few})).unwrap();
        assert_eq!(names(&few, Point::Score), [("NodeResourcesFit", 1)]);
    }

    #[test]
    fn arguments_reach_their_plugin_and_several_schedulers_have_names() {
        let config = json!([{"name": "NodeResourcesFit", "args": {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "NodeResourcesFitArgs",
            "scoringStrategy": {"type": "MostAllocated"}}}]);
        let two = with(json!({"percentageOfNodesToScore": 30, "profiles": [
            {"schedulerName": "spread"},
            {"schedulerName": "pack", "pluginConfig": config, "percentageOfNodesToScore": 50},
        ]}));
        let two = two.unwrap().profiles;
        let percentages = two.iter().map(|profile| profile.percentage_of_nodes);
        assert_eq!(percentages.collect::<Vec<_>>(), [30, 50]);
        let fit = two[1].plugin("NodeResourcesFit").unwrap();
        let mut cluster = crate::samples::cluster(&[("a", "4", "8Gi")]);
        let pod = crate::samples::pod("p", "1", "2Gi");
        let scores = crate::samples::scored(&**fit, &pod, &mut cluster, &[0]);
        assert_eq!(scores.unwrap(), [25]);
    }

    #[test]
    fn a_process_is_elected_as_the_configuration_says() {
        assert_eq!(with(json!({})).unwrap().leader_election, None);
        let off = with(json!({"leaderElection": {"leaderElect": false}})).unwrap();
        assert!(off.leader_election.is_none() && off.speaks_of_election);
        let named = json!({"leaderElection": {"leaderElect": true, "resourceName": "mine",
            "leaseDuration": "30s"}, "clientConnection": {"kubeconfig": "/k"}});
        let named = with(named).unwrap();
        assert_eq!(named.kubeconfig, Some("/k".into()));
        let expected = LeaderElection {
            name: "mine".into(),
            lease_duration: Duration::from_secs(30),
            ..LeaderElection::default()
        };
        assert_eq!(named.leader_election, Some(expected));
    }

    #[test]
    fn resources_that_an_extender_accounts_for_are_not_checked_on_nodes() {
        let managed = json!([{"name": "example.com/card", "ignoredByScheduler": true}]);
        let extenders = json!([{"urlPrefix": "http://x", "managedResources": managed}]);
        let mut pod = crate::samples::api_pod("p", &[]);
        let spec = json!({"containers": [{"name": "c",
            "resources": {"requests": {"example.com/card": "1"}}}]});
        pod.spec = serde_json::from_value(spec).unwrap();
        let pod = Arc::new(crate::pod::PodInfo::new(&pod));
        for (fields, fits) in [(json!({}), false), (json!({"extenders": extenders}), true)] {
            let mut scheduling = crate::cycle::Scheduling::new(1);
            scheduling.cluster = crate::samples::cluster(&[("a", "4", "8Gi")]);
            let profile = with(fields).unwrap().profiles.remove(0);
            let outcome = scheduling.schedule(&profile, &pod);
            let found = matches!(outcome, crate::cycle::Outcome::Node { .. });
            assert_eq!(found, fits, "{outcome:?}");
        }
    }

    #[test]
    fn invalid_configurations_are_refused() {
        for (wrong, word) in [
            (
                json!({"extenders": [{"urlPrefix": "ftp://x"}]}),
                "extenders[0].urlPrefix",
            ),
            (
                json!({"extenders": [{"urlPrefix": "http://x", "prioritizeVerb": "p"}]}),
                "positive weight",
            ),
            (
                json!({"extenders": [{"urlPrefix": "http://x", "bindVerb": "b"},
                    {"urlPrefix": "http://y", "bindVerb": "b"}]}),
                "only one extender can implement bind",
            ),
            (
                json!({"extenders": [{"urlPrefix": "http://x", "managedResources": [{"name": "cpu"}]}]}),
                "invalid extended resource name",
            ),
            (
                json!({"extenders": [{"urlPrefix": "http://x", "httpTimeout": "soon"}]}),
                "httpTimeout",
            ),
            (json!({"parallelism": 0}), "parallelism"),
            (
                json!({"leaderElection": {"leaseDuration": "5s"}}),
                "leaseDuration",
            ),
            (
                json!({"leaderElection": {"resourceLock": "endpoints"}}),
                "resourceLock",
            ),
            (json!({"clientConnection": {"burst": -1}}), "burst"),
            (
                json!({"clientConnection": {"contentType": "text/plain"}}),
                "content types",
            ),
            (
                json!({"percentageOfNodesToScore": 101}),
                "percentageOfNodesToScore",
            ),
            (
                json!({"podInitialBackoffSeconds": 0}),
                "podInitialBackoffSeconds",
            ),
            (json!({"podMaxBackoffSeconds": 0}), "podMaxBackoffSeconds"),
            (json!({"profile": []}), "unknown field"),
            (json!({"kind": "Other"}), "unknown configuration"),
            (json!({"profiles": [{}, {}]}), "different names"),
        ] {
            let why = with(wrong.clone()).unwrap_err();
            assert!(why.contains(word), "{wrong}: {why}");
        }
        for (wrong, word) in [
            (
                json!({"plugins": {"filters": {}}}),
                "unknown extension point",
            ),
            (
                json!({"plugins": {"filter": {"enabled": [{"name": "X"}]}}}),
                "unknown plugin",
            ),
            (
                json!({"plugins": {"filter": {"enabled": [{"name": "ImageLocality"}]}}}),
                "does not take part",
            ),
            (
                json!({"plugins": {"bind": {"disabled": [{"name": "*"}]}}}),
                "bind",
            ),
            (
                json!({"plugins": {"queueSort": {"disabled": [{"name": "*"}]}}}),
                "queueSort",
            ),
            (
                json!({"plugins": {"preFilter": {"disabled": [{"name": "*"}]}}}),
                "needs",
            ),
            (json!({"pluginConfig": [{"name": "X"}]}), "unknown plugin"),
            (
                json!({"pluginConfig": [{"name": "NodePorts", "args": {"a": 1}}]}),
                "takes no arguments",
            ),
        ] {
            let why = profile(wrong.clone()).unwrap_err();
            assert!(why.contains(word), "{wrong}: {why}");
        }
    }
}
