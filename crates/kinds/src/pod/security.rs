//! Security contexts of pods and containers, and restrictions by operating system.

use super::volume::no_backsteps;
use crate::check;
use crate::internal::internal;
use crate::tree::{int, is_set, list, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::json::json;
use machinery::{Value, format};
use std::collections::BTreeSet;

/// Validates a user or group id.
fn check_id(value: &Value, path: &Path, errors: &mut Errors) {
    if is_set(value) {
        for complaint in format::in_range(int(value), 0, i64::from(i32::MAX)) {
            errors.push(Error::invalid(path, int(value), complaint));
        }
    }
}

const PROFILES: &[&str] = &["Localhost", "RuntimeDefault", "Unconfined"];

fn check_seccomp(profile: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(profile) {
        return;
    }
    let (kind, local) = (text(&profile["type"]), &profile["localhostProfile"]);
    if kind.is_empty() {
        let detail = "type is required when seccompProfile is set";
        errors.push(Error::required(&path.child("type"), detail));
    } else {
        check::one_of(&profile["type"], PROFILES, &path.child("type"), errors);
    }
    let at = path.child("localhostProfile");
    match (kind, local.as_str()) {
        ("Localhost", None) => {
            let detail = "must be set when seccomp type is Localhost";
            errors.push(Error::required(&at, detail));
        }
        ("Localhost", Some(file)) => crate::volume_source::descending(file, &at, errors),
        (_, Some(_)) => {
            let detail = "can only be set when seccomp type is Localhost";
            let printed = json!({"Type": kind, "LocalhostProfile": local});
            errors.push(Error::invalid(&at, printed, detail));
        }
        (_, None) => {}
    }
}

pub(super) fn check_app_armor(profile: &Value, path: &Path, errors: &mut Errors) {
    if !is_set(profile) {
        return;
    }
    let at = path.child("localhostProfile");
    let local = profile["localhostProfile"].as_str();
    let missing = "must be set when AppArmor type is Localhost";
    match (text(&profile["type"]), local) {
        ("Localhost", None) => errors.push(Error::required(&at, missing)),
        ("Localhost", Some(name)) => {
            if name.trim() != name {
                let detail = "must not be padded with whitespace";
                errors.push(Error::invalid(&at, name, detail));
            } else if name.is_empty() {
                errors.push(Error::required(&at, missing));
            }
            if name.len() > 4095 {
                errors.push(Error::too_long(&at, 4095));
            }
        }
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            let detail = "can only be set when AppArmor type is Localhost";
            errors.push(Error::invalid(&at, name, detail));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            let detail = "type is required when appArmorProfile is set";
            errors.push(Error::required(&path.child("type"), detail));
        }
        (other, _) => errors.push(Error::not_supported(&path.child("type"), other, PROFILES)),
    }
}

pub(super) fn check_container_security(
    context: &Value,
    spec: &Value,
    path: &Path,
    errors: &mut Errors,
) {
    if !is_set(context) {
        return;
    }
    check_id(&context["runAsUser"], &path.child("runAsUser"), errors);
    check_id(&context["runAsGroup"], &path.child("runAsGroup"), errors);
    let mount = &context["procMount"];
    if is_set(mount) {
        let at = path.child("procMount");
        check::one_of(mount, &["Default", "Unmasked"], &at, errors);
        if mount == "Unmasked" && spec["hostUsers"] != false {
            let detail = "`hostUsers` must be false to use `Unmasked`";
            errors.push(Error::invalid(&at, "Unmasked", detail));
        }
    }
    check_seccomp(
        &context["seccompProfile"],
        &path.child("seccompProfile"),
        errors,
    );
    if context["allowPrivilegeEscalation"] == false {
        let clash = |what: &str| {
            let detail = format!("cannot set `allowPrivilegeEscalation` to false and {what}");
            Error::invalid(path, internal("core/v1.SecurityContext", context), detail)
        };
        if truth(&context["privileged"]) {
            errors.push(clash("`privileged` to true"));
        }
        for _ in list(&context["capabilities"]["add"])
            .iter()
            .filter(|c| *c == "CAP_SYS_ADMIN")
        {
            errors.push(clash("`capabilities.Add` CAP_SYS_ADMIN"));
        }
    }
    check_windows_options(
        &context["windowsOptions"],
        &path.child("windowsOptions"),
        errors,
    );
    check_app_armor(
        &context["appArmorProfile"],
        &path.child("appArmorProfile"),
        errors,
    );
}

pub(super) fn check_pod_security(spec: &Value, path: &Path, errors: &mut Errors) {
    let context = &spec["securityContext"];
    if !is_set(context) {
        return;
    }
    let at = path.child("securityContext");
    for name in ["fsGroup", "runAsUser", "runAsGroup"] {
        check_id(&context[name], &at.child(name), errors);
    }
    for (i, group) in list(&context["supplementalGroups"]).iter().enumerate() {
        check_id(group, &at.child("supplementalGroups").index(i), errors);
    }
    if truth(&spec["shareProcessNamespace"]) && truth(&spec["hostPID"]) {
        let at = at.child("shareProcessNamespace");
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Error::invalid(&at, true, detail));
    }
    check_sysctls(spec, &at.child("sysctls"), errors);
    let one_of = |name: &str, supported: &[&str], errors: &mut Errors| {
        if is_set(&context[name]) {
            check::one_of(&context[name], supported, &at.child(name), errors);
        }
    };
    one_of("fsGroupChangePolicy", &["Always", "OnRootMismatch"], errors);
    check_seccomp(
        &context["seccompProfile"],
        &at.child("seccompProfile"),
        errors,
    );
    check_windows_options(
        &context["windowsOptions"],
        &at.child("windowsOptions"),
        errors,
    );
    check_app_armor(
        &context["appArmorProfile"],
        &at.child("appArmorProfile"),
        errors,
    );
    one_of("supplementalGroupsPolicy", &["Merge", "Strict"], errors);
    one_of("seLinuxChangePolicy", &["Recursive"], errors);
}

fn is_sysctl(name: &str) -> bool {
    let edge = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(edge)
                && bytes.last().is_some_and(edge)
                && bytes.iter().all(|b| edge(b) || matches!(b, b'-' | b'_'))
        })
}

/// The kernel namespace of a sysctl, by its prefix.
fn namespace_of(sysctl: &str) -> &'static str {
    let name = sysctl.replace('/', ".");
    if name.starts_with("net.") {
        "net"
    } else if name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue."]
            .iter()
            .any(|p| name.starts_with(p))
    {
        "ipc"
    } else {
        ""
    }
}

fn check_sysctls(spec: &Value, path: &Path, errors: &mut Errors) {
    let mut names = BTreeSet::new();
    for (i, sysctl) in list(&spec["securityContext"]["sysctls"]).iter().enumerate() {
        let at = path.index(i);
        let at = at.child("name");
        let name = text(&sysctl["name"]);
        if name.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if !is_sysctl(name) {
            let detail = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(Error::invalid(&at, name, detail));
        } else if names.contains(name) {
            errors.push(Error::duplicate(&at, name));
        }
        match namespace_of(name) {
            "net" if truth(&spec["hostNetwork"]) => {
                let detail = "may not be specified when 'hostNetwork' is true";
                errors.push(Error::invalid(&at, name, detail));
            }
            "ipc" if truth(&spec["hostIPC"]) => {
                let detail = "may not be specified when 'hostIPC' is true";
                errors.push(Error::invalid(&at, name, detail));
            }
            _ => {}
        }
        names.insert(name);
    }
}

fn check_windows_options(options: &Value, path: &Path, errors: &mut Errors) {
    if let Some(name) = options["gmsaCredentialSpecName"].as_str() {
        let at = path.child("gmsaCredentialSpecName");
        check::form(format::dns1123_subdomain(name), name, &at, errors);
    }
    if let Some(spec) = options["gmsaCredentialSpec"].as_str() {
        let detail = match spec.len() {
            0 => "gmsaCredentialSpec cannot be an empty string",
            n if n > 64 * 1024 => "gmsaCredentialSpec size must be under 64 KiB",
            _ => "",
        };
        if !detail.is_empty() {
            let at = path.child("gmsaCredentialSpec");
            errors.push(Error::invalid(&at, spec, detail));
        }
    }
    if let Some(name) = options["runAsUserName"].as_str() {
        let at = path.child("runAsUserName");
        for complaint in windows_user(name) {
            errors.push(Error::invalid(&at, name, complaint));
        }
    }
}

fn windows_user(name: &str) -> Vec<&'static str> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if name.bytes().any(|b| b.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let (domain, user) = match name.split('\\').collect::<Vec<_>>()[..] {
        [user] => (None, user),
        [domain, user] => (Some(domain), user),
        _ => return vec!["runAsUserName cannot contain more than one backslash"],
    };
    let mut out = Vec::new();
    if let Some(domain) = domain {
        if domain.len() >= 256 {
            out.push("runAsUserName's Domain length must be under 256 characters");
        }
        if !is_net_bios(domain) && !is_windows_domain(domain) {
            out.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
        }
    }
    if user.is_empty() {
        out.push("runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        out.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        out.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(|c: char| "\"/\\:;|=,+*?<>@[]".contains(c)) {
        out.push(
            "runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]",
        );
    }
    out
}

fn is_net_bios(domain: &str) -> bool {
    let count = domain.chars().count();
    (1..=15).contains(&count)
        && !domain.starts_with('.')
        && !domain.contains(|c: char| "\\/:*?\"<>|".contains(c))
}

fn is_windows_domain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let bytes = label.as_bytes();
        bytes.len() <= 63
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
            && bytes
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || *b == b'-')
    })
}

/// Either all containers are Windows HostProcess containers, or none.
pub(super) fn check_host_process(
    spec: &Value,
    containers: &[(Path, &Value)],
    path: &Path,
    errors: &mut Errors,
) {
    let of = |holder: &Value| holder["securityContext"]["windowsOptions"]["hostProcess"].as_bool();
    let pod = of(spec);
    let mut count = 0;
    for (at, container) in containers {
        let own = of(container);
        if let (Some(pod), Some(own)) = (pod, own)
            && pod != own
        {
            let at = at.child("securityContext.windowsOptions");
            let detail =
                format!("pod hostProcess value must be identical if both are specified, was {pod}");
            errors.push(Error::invalid(&at.child("hostProcess"), own, detail));
        }
        count += usize::from(own.or(pod) == Some(true));
    }
    if count == 0 {
        return;
    }
    if count != containers.len() {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(Error::invalid(path, "", detail));
    }
    if !truth(&spec["hostNetwork"]) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(Error::invalid(&path.child("hostNetwork"), false, detail));
    }
}

/// Fields that a Windows pod may not have, in its spec and in its security context (`true`).
const NOT_WINDOWS: &[(bool, &str)] = &[
    (true, "appArmorProfile"),
    (true, "seLinuxOptions"),
    (false, "hostUsers"),
    (false, "hostPID"),
    (false, "hostIPC"),
    (true, "seccompProfile"),
    (true, "fsGroup"),
    (true, "fsGroupChangePolicy"),
    (true, "sysctls"),
    (false, "shareProcessNamespace"),
    (true, "runAsUser"),
    (true, "runAsGroup"),
    (true, "supplementalGroups"),
    (true, "supplementalGroupsPolicy"),
    (true, "seLinuxChangePolicy"),
];

/// Fields that a Windows container may not have in its security context.
const NOT_WINDOWS_CONTAINER: &[&str] = &[
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Validates the operating system of a pod, and fields that do not apply to it.
pub(super) fn check_os(
    spec: &Value,
    containers: &[(Path, &Value)],
    path: &Path,
    errors: &mut Errors,
) {
    match spec["os"]["name"].as_str() {
        _ if !is_set(&spec["os"]) => {}
        None | Some("") => errors.push(Error::required(&path.child("os").child("name"), "")),
        Some("linux") => {
            let detail = "windows options cannot be set for a linux pod";
            let holders = std::iter::once((*path, spec)).chain(containers.iter().cloned());
            for (at, holder) in holders {
                if is_set(&holder["securityContext"]["windowsOptions"]) {
                    let at = at.child("securityContext.windowsOptions");
                    errors.push(Error::forbidden(&at, detail));
                }
            }
        }
        Some("windows") => check_windows(spec, containers, path, errors),
        Some(other) => {
            let at = path.child("os");
            errors.push(Error::not_supported(&at, other, &["linux", "windows"]));
        }
    }
}

fn check_windows(spec: &Value, containers: &[(Path, &Value)], path: &Path, errors: &mut Errors) {
    let detail = "cannot be set for a windows pod";
    let context = &spec["securityContext"];
    for (in_context, name) in NOT_WINDOWS {
        let (value, at) = if *in_context {
            (&context[*name], path.child("securityContext"))
        } else {
            (&spec[*name], *path)
        };
        // Two of them are booleans that may be false, and the list may be empty.
        let there = match *name {
            "hostPID" | "hostIPC" => truth(value),
            "sysctls" => !list(value).is_empty(),
            _ => is_set(value),
        };
        if there {
            errors.push(Error::forbidden(&at.child(name), detail));
        }
    }
    for (at, container) in containers {
        for name in NOT_WINDOWS_CONTAINER {
            if is_set(&container["securityContext"][*name]) {
                let at = at.child("securityContext");
                let at = at.child(name);
                errors.push(Error::forbidden(&at, detail));
            }
        }
    }
}

/// What a user namespace excludes.
pub(super) fn check_host_users(
    spec: &Value,
    containers: &[(Path, &Value)],
    path: &Path,
    errors: &mut Errors,
) {
    if spec["hostUsers"] != false {
        return;
    }
    let detail = "when `hostUsers` is false";
    for (field, name) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if truth(&spec[field]) {
            errors.push(Error::forbidden(&path.child(name), detail));
        }
    }
    for (at, container) in containers {
        if !list(&container["volumeDevices"]).is_empty() {
            errors.push(Error::forbidden(&at.child("volumeDevices"), detail));
        }
    }
}

const SECCOMP_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP_CONTAINER: &str = "container.seccomp.security.alpha.kubernetes.io/";
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const MIRROR: &str = "kubernetes.io/config.mirror";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";

/// Validates annotations with a meaning for pods.
pub(super) fn check_annotations(
    annotations: &Value,
    spec: &Value,
    containers: &[(Path, &Value)],
    path: &Path,
    errors: &mut Errors,
) {
    if let Some(value) = annotations[MIRROR].as_str()
        && text(&spec["nodeName"]).is_empty()
    {
        let detail = "must set spec.nodeName if mirror pod annotation is set";
        errors.push(Error::invalid(&path.key(MIRROR), value, detail));
    }
    if let Some(cost) = annotations[DELETION_COST].as_str()
        && !is_cost(cost)
    {
        let at = path.key(DELETION_COST);
        errors.push(Error::invalid(&at, cost, "must be a 32bit integer"));
    }
    for (key, value) in crate::tree::entries(annotations) {
        let value = text(value);
        if key == SECCOMP_POD || key.starts_with(SECCOMP_CONTAINER) {
            match value.strip_prefix("localhost/") {
                Some(file) => no_backsteps(file, &path.child(key), errors),
                None if ["runtime/default", "docker/default", "unconfined"].contains(&value) => {}
                None => {
                    let detail = "must be a valid seccomp profile";
                    errors.push(Error::invalid(&path.child(key), value, detail));
                }
            }
        }
        if let Some(name) = key.strip_prefix(APP_ARMOR) {
            if !containers.iter().any(|(_, c)| text(&c["name"]) == name) {
                errors.push(Error::invalid(&path.key(key), name, "container not found"));
            }
            let fits = matches!(value, "" | "runtime/default" | "unconfined")
                || value.starts_with("localhost/");
            if !fits {
                let quoted = machinery::text::quote(value);
                let detail = format!("invalid AppArmor profile name: {quoted}");
                errors.push(Error::invalid(&path.key(key), value, detail));
            }
        }
    }
}

/// Profiles in a field and in the older annotation must agree.
pub(crate) fn check_profiles_agree(
    metadata: &Value,
    spec: &Value,
    path: &Path,
    errors: &mut Errors,
) {
    let annotations = &metadata["annotations"];
    if !is_set(annotations) {
        return;
    }
    let own = |holder: &Value, field: &str| holder["securityContext"][field].clone();
    let whole = own(spec, "seccompProfile");
    let at = path.child("securityContext.seccompProfile");
    agree("seccomp", &annotations[SECCOMP_POD], &whole, &at, errors);
    let lists = super::spec::container_lists(path);
    let containers = super::spec::every_container(spec, &lists);
    for (at, container) in &containers {
        let key = format!("{SECCOMP_CONTAINER}{}", text(&container["name"]));
        let profile = own(container, "seccompProfile");
        let at = at.child("securityContext.seccompProfile");
        agree("seccomp", &annotations[key.as_str()], &profile, &at, errors);
    }
    if spec["os"]["name"] == "windows" {
        return;
    }
    for (at, container) in &containers {
        let key = format!("{APP_ARMOR}{}", text(&container["name"]));
        let mut profile = own(container, "appArmorProfile");
        if !is_set(&profile) {
            profile = own(spec, "appArmorProfile");
        }
        let at = at.child("securityContext.appArmorProfile");
        agree(
            "apparmor",
            &annotations[key.as_str()],
            &profile,
            &at,
            errors,
        );
    }
}

fn agree(what: &str, annotation: &Value, profile: &Value, path: &Path, errors: &mut Errors) {
    let Some(annotation) = annotation.as_str() else {
        return;
    };
    let local = text(&profile["localhostProfile"]);
    let fits = match text(&profile["type"]) {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (what == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => match annotation.strip_prefix("localhost/") {
            Some(file) if file == local => true,
            Some(_) => {
                let detail = format!("{what} profile in annotation and field must match");
                errors.push(Error::forbidden(&path.child("localhostProfile"), detail));
                return;
            }
            None => false,
        },
        _ => true,
    };
    if !fits {
        let detail = format!("{what} type in annotation and field must match");
        errors.push(Error::forbidden(&path.child("type"), detail));
    }
}

/// A 32-bit number without a plus sign or leading zeros.
fn is_cost(value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    let plain = digits == "0" && !value.starts_with('-') || !digits.starts_with(['0', '+']);
    plain && value.parse::<i32>().is_ok()
}

/// Annotations that are immutable.
pub(crate) fn check_annotations_update(new: &Value, old: &Value, path: &Path, errors: &mut Errors) {
    for (key, was) in crate::tree::entries(old) {
        if new[key.as_str()] == *was {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            let detail = "may not remove or update AppArmor annotations";
            errors.push(Error::forbidden(&path.key(key), detail));
        }
        if key == MIRROR {
            let detail = "may not remove or update mirror pod annotation";
            errors.push(Error::forbidden(&path.key(key), detail));
        }
    }
    for (key, _) in crate::tree::entries(new) {
        if is_set(&old[key.as_str()]) {
            continue;
        }
        if key.starts_with(APP_ARMOR) {
            let detail = "may not add AppArmor annotations";
            errors.push(Error::forbidden(&path.key(key), detail));
        }
        if key == MIRROR {
            errors.push(Error::forbidden(
                &path.key(key),
                "may not add mirror pod annotation",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_windows_have_a_domain_or_none() {
        assert!(windows_user("ContainerUser").is_empty());
        assert!(windows_user("NT AUTHORITY\\SYSTEM").is_empty());
        assert!(windows_user("example.com\\bob").is_empty());
        assert_eq!(
            windows_user("a\\b\\c"),
            ["runAsUserName cannot contain more than one backslash"]
        );
        assert_eq!(
            windows_user("..\\x")[0],
            "runAsUserName's Domain doesn't match the NetBios nor the DNS format"
        );
        assert_eq!(
            windows_user("a\\"),
            ["runAsUserName's User cannot be empty"]
        );
        assert_eq!(windows_user("a@b").len(), 1);
    }

    #[test]
    fn costs_of_deletion_are_plain_numbers() {
        for good in ["0", "1", "-5", "2147483647"] {
            assert!(is_cost(good), "{good}");
        }
        for bad in ["", "+1", "01", "-0", "2147483648", "x"] {
            assert!(!is_cost(bad), "{bad}");
        }
    }

    #[test]
    fn names_of_kernel_settings_have_parts() {
        assert!(is_sysctl("net/ipv4.ip_forward"));
        for bad in ["", "a..b", "-a", "A"] {
            assert!(!is_sysctl(bad), "{bad}");
        }
    }
}
