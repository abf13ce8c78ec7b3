//! The paths of pods' cgroups: each is below its QoS class, so that classes can be weighted against
//! each other. With the driver systemd they are slices.

use k8s_openapi::api::core::v1::Pod;
use libcgroups::systemd;

use crate::pod::spec::{self, QosClass};

/// Who makes cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The kubelet, as directories.
    Cgroupfs,
    /// systemd, as units.
    Systemd,
}

impl Driver {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }

    /// The driver of this name.
    pub fn named(name: &str) -> Option<Self> {
        let mut all = [Self::Cgroupfs, Self::Systemd].into_iter();
        all.find(|driver| driver.name() == name)
    }

    /// The path of a cgroup that is named as for cgroupfs.
    pub fn path(self, cgroupfs: &str) -> String {
        match self {
            Self::Cgroupfs => cgroupfs.to_owned(),
            Self::Systemd => {
                let names = cgroupfs.split('/').filter(|name| !name.is_empty());
                systemd::slice_path(&names.collect::<Vec<_>>())
            }
        }
    }
}

/// The cgroup above all pods, as it is configured, and the driver that makes those below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupRoot {
    pub path: String,
    pub driver: Driver,
}

impl CgroupRoot {
    /// Whether the kubelet makes no cgroups.
    pub fn is_empty(&self) -> bool {
        self.path.is_empty()
    }

    /// The parent of all pods' cgroups.
    pub fn kubepods(&self) -> String {
        self.below(&[])
    }

    /// The cgroup of a QoS class.
    pub fn class(&self, class: QosClass) -> String {
        self.below(class_names(class))
    }

    /// A pod's cgroup; empty without a cgroup root.
    pub fn pod(&self, pod: &Pod) -> String {
        if self.is_empty() {
            return String::new();
        }
        self.pod_of_class(spec::qos_class(pod), spec::uid(pod))
    }

    /// The cgroup of a pod of this QoS class.
    pub fn pod_of_class(&self, class: QosClass, uid: &str) -> String {
        let pod = format!("pod{uid}");
        let names: Vec<&str> = class_names(class).iter().copied().chain([&*pod]).collect();
        self.below(&names)
    }

    /// The uid of the pod whose cgroup has this name in the cgroup of its QoS class.
    pub fn uid(&self, class: QosClass, name: &str) -> Option<String> {
        match self.driver {
            Driver::Cgroupfs => name.strip_prefix("pod").map(str::to_owned),
            Driver::Systemd => {
                let class = self.class(class);
                let class = class.rsplit('/').next()?.strip_suffix(".slice")?;
                let rest = name.strip_prefix(class)?.strip_prefix("-pod")?;
                Some(rest.strip_suffix(".slice")?.replace('_', "-"))
            }
        }
    }

    fn below(&self, names: &[&str]) -> String {
        let root = self.path.trim_end_matches('/');
        let names: String = names.iter().map(|name| format!("/{name}")).collect();
        self.driver.path(&format!("{root}/kubepods{names}"))
    }
}

const fn class_names(class: QosClass) -> &'static [&'static str] {
    match class {
        QosClass::Guaranteed => &[],
        QosClass::Burstable => &["burstable"],
        QosClass::BestEffort => &["besteffort"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_lives_below_its_class() {
        let made: Pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": "u-1"},
            "spec": {"containers": [{"name": "a"}]}}))
        .unwrap();
        for (path, driver, expected) in [
            (
                "/mainstay-1",
                Driver::Cgroupfs,
                "/mainstay-1/kubepods/besteffort/podu-1",
            ),
            (
                "/",
                Driver::Systemd,
                "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice",
            ),
            (
                "/m-1",
                Driver::Systemd,
                "/m_1.slice/m_1-kubepods.slice/m_1-kubepods-besteffort.slice/m_1-kubepods-besteffort-podu_1.slice",
            ),
        ] {
            let path = path.to_owned();
            let root = CgroupRoot { path, driver };
            let found = root.pod(&made);
            assert_eq!(found, expected);
            let name = found.rsplit('/').next().unwrap();
            let uid = |class| root.uid(class, name);
            assert_eq!(uid(QosClass::BestEffort).as_deref(), Some("u-1"));
            if driver == Driver::Systemd {
                assert_eq!(uid(QosClass::Guaranteed), None);
                assert_eq!(root.uid(QosClass::Guaranteed, "kubepods.slice"), None);
            }
        }
    }
}
