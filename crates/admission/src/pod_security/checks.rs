//! The rules of the Pod Security Standards, one function each. Each returns why a pod violates it,
//! or `None`.

use std::collections::BTreeSet;

use kinds::tree;
use machinery::Value;

/// A violation: a short reason and the details.
pub(super) type Violation = (String, String);

/// The input of the rules.
pub(super) struct Subject<'a> {
    pub(super) metadata: &'a Value,
    pub(super) spec: &'a Value,
    /// The standard's version: 36 for v1.36.
    pub(super) minor: u16,
}

impl Subject<'_> {
    /// Whether rules for Linux do not apply, since v1.25 of the standards.
    fn is_windows(&self) -> bool {
        self.minor >= 25 && self.spec["os"]["name"] == "windows"
    }

    fn allows(&self, known: &[(u16, &str)], name: &str) -> bool {
        let mut known = known.iter();
        known.any(|(since, known)| *since <= self.minor && *known == name)
    }

    /// Whether the pod has a user namespace, in which root has no privileges outside.
    fn has_own_users(&self) -> bool {
        self.minor >= 35 && self.spec["hostUsers"] == false
    }
}

/// A rule of a standard, over the pod's metadata and spec.
type Check = fn(&Subject) -> Option<Violation>;

/// A rule and the minor versions of the standard that include it.
pub(super) struct Rule(std::ops::Range<u16>, Check);

impl Rule {
    /// The violation, if the version includes the rule.
    pub(super) fn ask(&self, subject: &Subject) -> Option<Violation> {
        self.0
            .contains(&subject.minor)
            .then(|| (self.1)(subject))
            .flatten()
    }
}

/// Later than any existing version.
pub(super) const LATEST: u16 = u16::MAX - 1;
const ALWAYS: std::ops::Range<u16> = 0..u16::MAX;

const fn from(minor: u16) -> std::ops::Range<u16> {
    minor..u16::MAX
}

/// Rules of the baseline standard, in the order they are reported.
pub(super) const BASELINE: &[Rule] = &[
    Rule(ALWAYS, app_armor),
    Rule(ALWAYS, capabilities),
    Rule(ALWAYS, host_namespaces),
    Rule(ALWAYS, host_path_volumes),
    Rule(ALWAYS, host_ports),
    Rule(from(34), probe_hosts),
    Rule(ALWAYS, privileged),
    Rule(ALWAYS, proc_mount),
    Rule(ALWAYS, se_linux),
    Rule(0..19, seccomp_annotations),
    Rule(from(19), seccomp),
    Rule(ALWAYS, sysctls),
    Rule(ALWAYS, windows_host_process),
];

/// Rules of the restricted standard. Stricter ones replace those of the baseline.
pub(super) const RESTRICTED: &[Rule] = &[
    Rule(ALWAYS, app_armor),
    Rule(0..22, capabilities),
    Rule(ALWAYS, host_namespaces),
    Rule(ALWAYS, host_ports),
    Rule(from(34), probe_hosts),
    Rule(ALWAYS, privileged),
    Rule(ALWAYS, proc_mount_restricted),
    Rule(ALWAYS, se_linux),
    Rule(0..19, seccomp_annotations),
    Rule(ALWAYS, sysctls),
    Rule(ALWAYS, windows_host_process),
    Rule(from(8), allow_privilege_escalation),
    Rule(from(22), capabilities_restricted),
    Rule(ALWAYS, restricted_volumes),
    Rule(ALWAYS, run_as_non_root),
    Rule(from(23), run_as_user),
    Rule(from(19), seccomp_restricted),
];

const DEFAULT_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// With the first version that allows them.
const SAFE_SYSCTLS: &[(u16, &str)] = &[
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];
/// With the first version that allows them.
const SE_LINUX_TYPES: &[(u16, &str)] = &[
    (0, ""),
    (0, "container_t"),
    (0, "container_init_t"),
    (0, "container_kvm_t"),
    (31, "container_engine_t"),
];
const RESTRICTED_VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"]
        .into_iter()
        .flat_map(|list| tree::list(&spec[list]))
}

fn quoted<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let quoted: Vec<String> = names
        .into_iter()
        .map(|name| format!("{:?}", name.as_ref()))
        .collect();
    quoted.join(", ")
}

fn plural<'a>(count: usize, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "a"` or `containers "a", "b"`.
fn named(names: &[&str]) -> String {
    format!(
        "{} {}",
        plural(names.len(), "container", "containers"),
        quoted(names)
    )
}

/// Names of the containers that satisfy `holds`.
fn containers_where(spec: &Value, holds: impl Fn(&Value) -> bool) -> Vec<&str> {
    containers(spec)
        .filter(|c| holds(c))
        .map(|c| tree::text(&c["name"]))
        .collect()
}

/// What sets a forbidden value: the pod, containers, or both.
fn setters(pod: bool, containers: &[&str]) -> Option<String> {
    let mut setters = Vec::new();
    if pod {
        setters.push("pod".to_owned());
    }
    if !containers.is_empty() {
        setters.push(named(containers));
    }
    (!setters.is_empty()).then(|| setters.join(" and "))
}

fn violation(reason: &str, detail: String) -> Option<Violation> {
    Some((reason.to_owned(), detail))
}

fn host_namespaces(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let set = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|f| spec[f] == true);
    let set: Vec<String> = set.map(|field| format!("{field}=true")).collect();
    if set.is_empty() {
        None
    } else {
        violation("host namespaces", set.join(", "))
    }
}

fn privileged(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let bad = containers_where(spec, |c| c["securityContext"]["privileged"] == true);
    if bad.is_empty() {
        return None;
    }
    violation(
        "privileged",
        format!(
            "{} must not set securityContext.privileged=true",
            named(&bad)
        ),
    )
}

fn capabilities(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    added_capabilities(spec, DEFAULT_CAPABILITIES)
        .and_then(|detail| violation("non-default capabilities", detail))
}

fn added_capabilities(spec: &Value, allowed: &[&str]) -> Option<String> {
    let forbidden = |container: &Value| -> Vec<String> {
        let added = tree::list(&container["securityContext"]["capabilities"]["add"]).iter();
        let added = added.map(tree::text).filter(|name| !allowed.contains(name));
        added.map(str::to_owned).collect()
    };
    let bad = containers_where(spec, |container| !forbidden(container).is_empty());
    let all: BTreeSet<String> = containers(spec).flat_map(forbidden).collect();
    (!bad.is_empty()).then(|| {
        let bad = named(&bad);
        format!(
            "{bad} must not include {} in securityContext.capabilities.add",
            quoted(all)
        )
    })
}

fn capabilities_restricted(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    if subject.is_windows() {
        return None;
    }
    let mut details = Vec::new();
    let keeps = containers_where(spec, |container| {
        let dropped = tree::list(&container["securityContext"]["capabilities"]["drop"]);
        !dropped.iter().any(|name| name == "ALL")
    });
    if !keeps.is_empty() {
        let keeps = named(&keeps);
        details.push(format!(
            "{keeps} must set securityContext.capabilities.drop=[\"ALL\"]"
        ));
    }
    details.extend(added_capabilities(spec, &["NET_BIND_SERVICE"]));
    if details.is_empty() {
        return None;
    }
    violation("unrestricted capabilities", details.join("; "))
}

fn host_path_volumes(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let volumes = tree::list(&spec["volumes"]).iter();
    let bad = volumes.filter(|volume| tree::is_set(&volume["hostPath"]));
    let bad: Vec<&str> = bad.map(|volume| tree::text(&volume["name"])).collect();
    if bad.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {}",
        plural(bad.len(), "volume", "volumes"),
        quoted(&bad)
    );
    violation("hostPath volumes", detail)
}

fn restricted_volumes(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let (mut names, mut kinds) = (Vec::new(), BTreeSet::new());
    for volume in tree::list(&spec["volumes"]) {
        let bad = tree::entries(volume)
            .map(|(field, _)| field.as_str())
            .find(|field| *field != "name" && !RESTRICTED_VOLUMES.contains(field));
        if let Some(kind) = bad {
            names.push(tree::text(&volume["name"]));
            kinds.insert(kind);
        }
    }
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} {} {} restricted volume {} {}",
        plural(names.len(), "volume", "volumes"),
        quoted(&names),
        plural(names.len(), "uses", "use"),
        plural(kinds.len(), "type", "types"),
        quoted(&kinds)
    );
    violation("restricted volume types", detail)
}

fn host_ports(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let ports = |container: &Value| -> Vec<i64> {
        let ports = tree::list(&container["ports"]).iter();
        ports
            .map(|port| tree::int(&port["hostPort"]))
            .filter(|port| *port != 0)
            .collect()
    };
    let bad = containers_where(spec, |container| !ports(container).is_empty());
    if bad.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = containers(spec)
        .flat_map(ports)
        .map(|port| port.to_string())
        .collect();
    let detail = format!(
        "{} {} {} {}",
        named(&bad),
        plural(bad.len(), "uses", "use"),
        plural(all.len(), "hostPort", "hostPorts"),
        all.into_iter().collect::<Vec<_>>().join(", ")
    );
    violation("hostPort", detail)
}

fn probe_hosts(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let hosts = |container: &Value| -> Vec<String> {
        let probes = ["livenessProbe", "readinessProbe", "startupProbe"];
        let handlers = probes.iter().map(|probe| &container[probe]);
        let hooks = ["postStart", "preStop"]
            .iter()
            .map(|hook| &container["lifecycle"][hook]);
        let hosts = handlers
            .chain(hooks)
            .flat_map(|handler| [&handler["httpGet"]["host"], &handler["tcpSocket"]["host"]]);
        hosts
            .map(tree::text)
            .filter(|host| !host.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let bad = containers_where(spec, |container| !hosts(container).is_empty());
    if bad.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = containers(spec).flat_map(hosts).collect();
    let detail = format!(
        "{} {} probe or lifecycle {} {}",
        named(&bad),
        plural(bad.len(), "uses", "use"),
        plural(all.len(), "host", "hosts"),
        quoted(&all)
    );
    violation("probe or lifecycle host", detail)
}

fn proc_mount(subject: &Subject) -> Option<Violation> {
    if subject.has_own_users() {
        return None;
    }
    proc_mount_restricted(subject)
}

fn proc_mount_restricted(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let value = |container: &Value| {
        let mount = tree::text(&container["securityContext"]["procMount"]).to_owned();
        (!matches!(mount.as_str(), "" | "Default")).then_some(mount)
    };
    let bad = containers_where(spec, |container| value(container).is_some());
    if bad.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = containers(spec).filter_map(value).collect();
    let detail = format!(
        "{} must not set securityContext.procMount to {}",
        named(&bad),
        quoted(all)
    );
    violation("procMount", detail)
}

fn app_armor(subject: &Subject) -> Option<Violation> {
    let (metadata, spec) = (subject.metadata, subject.spec);
    let bad_type = |context: &Value| {
        let kind = tree::text(&context["appArmorProfile"]["type"]);
        (!matches!(kind, "" | "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
    };
    let bad = containers_where(spec, |c| bad_type(&c["securityContext"]).is_some());
    let mut values: BTreeSet<String> = containers(spec)
        .filter_map(|c| bad_type(&c["securityContext"]))
        .collect();
    values.extend(bad_type(&spec["securityContext"]));
    let mut list: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    let annotations = tree::entries(&metadata["annotations"]).filter(|(key, value)| {
        let value = tree::text(value);
        key.starts_with("container.apparmor.security.beta.kubernetes.io/")
            && !(value.is_empty() || value == "runtime/default" || value.starts_with("localhost/"))
    });
    let annotations: Vec<String> = annotations
        .map(|(key, value)| format!("{key}={:?}", tree::text(value)))
        .collect();
    list.extend(annotations);
    let who = setters(bad_type(&spec["securityContext"]).is_some(), &bad);
    if list.is_empty() {
        return None;
    }
    let reason = plural(
        list.len(),
        "forbidden AppArmor profile",
        "forbidden AppArmor profiles",
    );
    let detail = match who {
        Some(who) => format!(
            "{who} must not set AppArmor profile type to {}",
            list.join(", ")
        ),
        None => list.join(", "),
    };
    violation(reason, detail)
}

fn se_linux(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let wrong = |context: &Value| -> Vec<String> {
        let options = &context["seLinuxOptions"];
        let mut wrong = Vec::new();
        let kind = tree::text(&options["type"]);
        if !subject.allows(SE_LINUX_TYPES, kind) {
            wrong.push(format!("type {kind:?}"));
        }
        for field in ["user", "role"] {
            if !tree::text(&options[field]).is_empty() {
                wrong.push(format!("{field} may not be set"));
            }
        }
        wrong
    };
    let pod = wrong(&spec["securityContext"]);
    let bad = containers_where(spec, |c| !wrong(&c["securityContext"]).is_empty());
    let who = setters(!pod.is_empty(), &bad)?;
    let of_containers = containers(spec).flat_map(|c| wrong(&c["securityContext"]));
    let all: BTreeSet<String> = pod.iter().cloned().chain(of_containers).collect();
    let all: Vec<String> = all.into_iter().collect();
    let detail = format!(
        "{who} set forbidden securityContext.seLinuxOptions: {}",
        all.join("; ")
    );
    violation("seLinuxOptions", detail)
}

fn seccomp_type(context: &Value) -> Option<&str> {
    context["seccompProfile"]["type"].as_str()
}

fn bad_seccomp(spec: &Value) -> Option<Violation> {
    let wrong = |context: &Value| {
        seccomp_type(context)
            .filter(|kind| !matches!(*kind, "RuntimeDefault" | "Localhost"))
            .map(str::to_owned)
    };
    let pod = wrong(&spec["securityContext"]);
    let bad = containers_where(spec, |c| wrong(&c["securityContext"]).is_some());
    let who = setters(pod.is_some(), &bad)?;
    let of_containers = containers(spec).filter_map(|c| wrong(&c["securityContext"]));
    let all: BTreeSet<String> = pod.into_iter().chain(of_containers).collect();
    let detail = format!(
        "{who} must not set securityContext.seccompProfile.type to {}",
        quoted(all)
    );
    violation("seccompProfile", detail)
}

/// The deprecated seccomp annotations.
fn seccomp_annotations(subject: &Subject) -> Option<Violation> {
    const POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
    const CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
    let annotations = &subject.metadata["annotations"];
    let names = containers(subject.spec).map(|c| format!("{CONTAINER}{}", tree::text(&c["name"])));
    let bad: BTreeSet<String> = names
        .chain([POD.to_owned()])
        .filter_map(|key| {
            let value = annotations[&key].as_str()?;
            let fine = matches!(value, "runtime/default" | "docker/default")
                || value.starts_with("localhost/");
            (!fine).then(|| format!("{key}={value:?}"))
        })
        .collect();
    if bad.is_empty() {
        return None;
    }
    let bad: Vec<String> = bad.into_iter().collect();
    let what = plural(bad.len(), "annotation", "annotations");
    violation(
        "seccompProfile",
        format!("forbidden {what} {}", bad.join(", ")),
    )
}

fn seccomp(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    bad_seccomp(spec)
}

fn seccomp_restricted(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    if subject.is_windows() {
        return None;
    }
    if let Some(explicit) = bad_seccomp(spec) {
        return Some(explicit);
    }
    if seccomp_type(&spec["securityContext"]).is_some() {
        return None;
    }
    let silent = containers_where(spec, |c| seccomp_type(&c["securityContext"]).is_none());
    if silent.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \
         \"Localhost\"",
        named(&silent)
    );
    violation("seccompProfile", detail)
}

fn sysctls(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let set = tree::list(&spec["securityContext"]["sysctls"]).iter();
    let bad = set
        .map(|s| tree::text(&s["name"]))
        .filter(|name| !subject.allows(SAFE_SYSCTLS, name));
    let bad: Vec<&str> = bad.collect();
    if bad.is_empty() {
        None
    } else {
        violation("forbidden sysctls", bad.join(", "))
    }
}

fn windows_host_process(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let wrong = |context: &Value| context["windowsOptions"]["hostProcess"] == true;
    let bad = containers_where(spec, |c| wrong(&c["securityContext"]));
    let who = setters(wrong(&spec["securityContext"]), &bad)?;
    let detail = format!("{who} must not set securityContext.windowsOptions.hostProcess=true");
    violation("hostProcess", detail)
}

fn allow_privilege_escalation(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    let bad = containers_where(spec, |c| {
        c["securityContext"]["allowPrivilegeEscalation"] != false
    });
    if bad.is_empty() || subject.is_windows() {
        return None;
    }
    let detail = format!(
        "{} must set securityContext.allowPrivilegeEscalation=false",
        named(&bad)
    );
    violation("allowPrivilegeEscalation != false", detail)
}

fn run_as_non_root(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    if subject.has_own_users() {
        return None;
    }
    let reason = "runAsNonRoot != true";
    let said = |context: &Value| context["runAsNonRoot"].as_bool();
    let pod = said(&spec["securityContext"]);
    let explicit = containers_where(spec, |c| said(&c["securityContext"]) == Some(false));
    if let Some(who) = setters(pod == Some(false), &explicit) {
        return violation(
            reason,
            format!("{who} must not set securityContext.runAsNonRoot=false"),
        );
    }
    let silent = containers_where(spec, |c| said(&c["securityContext"]).is_none());
    if pod == Some(true) || silent.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.runAsNonRoot=true",
        named(&silent)
    );
    violation(reason, detail)
}

fn run_as_user(subject: &Subject) -> Option<Violation> {
    let spec = subject.spec;
    if subject.has_own_users() {
        return None;
    }
    let wrong = |context: &Value| context["runAsUser"] == 0;
    let bad = containers_where(spec, |c| wrong(&c["securityContext"]));
    let who = setters(wrong(&spec["securityContext"]), &bad)?;
    violation("runAsUser=0", format!("{who} must not set runAsUser=0"))
}
