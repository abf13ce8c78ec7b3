//! Determines the runtime's cgroup driver: its own answer, or `cgroupDriver` if it gives none, as
//! upstream.

use cri::v1;
use libcgroups::systemd;
use tracing::info;

use crate::{core::Core, make::cgroups::Driver};

/// Why pods cannot run with the runtime's driver.
pub(crate) async fn problem(core: &Core) -> Option<String> {
    if core.config.cgroup_root.is_empty() {
        return None;
    }
    // A runtime that does not answer is reported by its status.
    let driver = determine(core).await.ok()?;
    let why = systemd::unavailable().filter(|_| driver == Driver::Systemd)?;
    Some(format!(
        "container runtime uses the cgroup driver systemd, but {why}: configure it for cgroupfs \
         (containerd: SystemdCgroup = false)"
    ))
}

/// The driver. The runtime is asked once.
pub(crate) async fn determine(core: &Core) -> Result<Driver, tonic::Status> {
    let driver = core.runtime.driver.get_or_try_init(|| ask(core)).await;
    driver.copied()
}

async fn ask(core: &Core) -> Result<Driver, tonic::Status> {
    let configured = core.settings().cgroup_driver.clone();
    let mut runtime = core.runtime.client.clone().runtime;
    let answer = runtime.runtime_config(v1::RuntimeConfigRequest {}).await;
    let answer = answer.map(|answer| answer.into_inner().linux);
    let driver = decide(&configured, answer)?;
    if driver.name() != configured {
        let driver = driver.name();
        info!(driver, configured, "using the cgroup driver of the runtime");
    }
    Ok(driver)
}

fn decide(
    configured: &str,
    answer: Result<Option<v1::LinuxRuntimeConfiguration>, tonic::Status>,
) -> Result<Driver, tonic::Status> {
    match answer {
        Ok(Some(linux)) => Ok(match linux.cgroup_driver() {
            v1::CgroupDriver::Cgroupfs => Driver::Cgroupfs,
            v1::CgroupDriver::Systemd => Driver::Systemd,
        }),
        Err(status) if status.code() != tonic::Code::Unimplemented => Err(status),
        // The name was validated when the configuration was read.
        _ => Ok(Driver::named(configured).unwrap_or(Driver::Cgroupfs)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_driver_comes_from_the_runtime_or_else_the_configuration() {
        let says = |driver: v1::CgroupDriver| {
            let cgroup_driver = driver.into();
            Ok(Some(v1::LinuxRuntimeConfiguration { cgroup_driver }))
        };
        let old = || Err(tonic::Status::unimplemented("unknown method RuntimeConfig"));
        for (configured, answer, expected) in [
            (
                "systemd",
                says(v1::CgroupDriver::Cgroupfs),
                Driver::Cgroupfs,
            ),
            ("cgroupfs", says(v1::CgroupDriver::Systemd), Driver::Systemd),
            ("systemd", old(), Driver::Systemd),
            ("cgroupfs", old(), Driver::Cgroupfs),
            ("cgroupfs", Ok(None), Driver::Cgroupfs),
        ] {
            assert_eq!(
                decide(configured, answer).unwrap(),
                expected,
                "{configured}"
            );
        }
        assert!(decide("cgroupfs", Err(tonic::Status::unavailable("away"))).is_err());
    }
}
