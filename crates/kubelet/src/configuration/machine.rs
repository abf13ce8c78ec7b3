//! Checks that the machine fulfils what the KubeletConfiguration requires; otherwise the kubelet
//! does not start.

use std::path::Path;

use super::KubeletConfiguration;
use crate::{cgroups, make::cgroups::Driver, server};

/// The sysctls that `protectKernelDefaults` requires.
const KERNEL: &[(&str, &str)] = &[
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
];

/// Fails with the requirement that the machine does not fulfil.
pub fn check(configuration: &KubeletConfiguration) -> Result<(), String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if configuration.fail_swap_on && read("/proc/swaps").lines().count() > 1 {
        return Err(
            "running with swap on is not supported, please disable swap or set failSwapOn to false"
                .into(),
        );
    }
    if configuration.fail_cgroup_v1 && !cgroups::is_v2() {
        return Err("cgroups of version 1 are not supported with failCgroupV1".into());
    }
    if configuration.single_process_oom_kill == Some(false) && !cgroups::is_v2() {
        return Err("singleProcessOOMKill: false requires cgroup v2".into());
    }
    let driver = Driver::named(&configuration.cgroup_driver).unwrap_or(Driver::Cgroupfs);
    let file = &configuration.authentication.x509.client_ca_file;
    if !file.is_empty() {
        server::read_client_authorities(file.as_ref())?;
    }
    if configuration.protect_kernel_defaults {
        for (name, expected) in KERNEL {
            let path = format!("/proc/sys/{}", name.replace('.', "/"));
            let found = read(&path);
            if found.trim() != *expected {
                return Err(format!(
                    "protectKernelDefaults: {name} is {:?}, expected {expected:?}",
                    found.trim()
                ));
            }
        }
    }
    let needed = [
        ("cgroupRoot", &driver.path(&configuration.cgroup_root), true),
        (
            "systemReservedCgroup",
            &configuration.system_reserved_cgroup,
            configuration.enforces("system-reserved")
                || configuration.enforces("system-reserved-compressible"),
        ),
        (
            "kubeReservedCgroup",
            &configuration.kube_reserved_cgroup,
            configuration.enforces("kube-reserved")
                || configuration.enforces("kube-reserved-compressible"),
        ),
    ];
    for (field, path, is_needed) in needed {
        let controller = if cgroups::is_v2() { "" } else { "cpu" };
        if is_needed && !path.is_empty() && !Path::new(&cgroups::below(controller, path)).exists() {
            return Err(format!("{field}: the cgroup {path:?} does not exist"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_features_missing_on_the_machine_are_reported() {
        assert_eq!(check(&KubeletConfiguration::default()), Ok(()));
        let config = KubeletConfiguration {
            cgroup_root: "/there/is/no/such".into(),
            ..KubeletConfiguration::default()
        };
        assert!(check(&config).unwrap_err().contains("cgroupRoot"));
        let mut config = KubeletConfiguration::default();
        config.authentication.x509.client_ca_file = "/there/is/no/such".into();
        let reported = check(&config).unwrap_err();
        assert!(
            reported.starts_with("authentication.x509.clientCAFile: /there"),
            "{reported}"
        );
        let config = KubeletConfiguration {
            fail_cgroup_v1: true,
            ..KubeletConfiguration::default()
        };
        assert_eq!(check(&config).is_err(), !cgroups::is_v2());
        let config = |single| KubeletConfiguration {
            single_process_oom_kill: Some(single),
            ..KubeletConfiguration::default()
        };
        assert_eq!(check(&config(false)).is_err(), !cgroups::is_v2());
        assert_eq!(check(&config(true)), Ok(()));
    }
}
