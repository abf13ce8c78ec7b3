//! Builds the CRI configuration of a container.

use std::collections::BTreeMap;

use cri::v1;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::{
    env::Problem,
    expand::{LIMIT, expand},
    labels,
};

/// Everything prepared for a container.
pub struct Inputs {
    pub restart_count: u32,
    pub image: v1::ImageSpec,
    pub environment: Vec<(String, String)>,
    pub mounts: Vec<v1::Mount>,
    pub devices: Vec<v1::Device>,
    pub security: v1::LinuxContainerSecurityContext,
    pub resources: v1::LinuxContainerResources,
}

/// The container's configuration.
pub fn config(
    pod: &Pod,
    container: &Container,
    inputs: Inputs,
) -> Result<v1::ContainerConfig, Problem> {
    let known: BTreeMap<String, String> = inputs.environment.iter().cloned().collect();
    let mut room = LIMIT;
    let mut expanded = |words: &Option<Vec<String>>| -> Result<Vec<String>, Problem> {
        let words = words.iter().flatten().map(|word| {
            let too_long = |_| Problem(format!("the command is larger than {LIMIT} bytes"));
            let word = expand(word, &known, room).map_err(too_long)?;
            room -= word.len();
            Ok(word)
        });
        words.collect()
    };
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let stop_signal = container
        .lifecycle
        .as_ref()
        .and_then(|l| l.stop_signal.as_deref());
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata {
            name: container.name.clone(),
            attempt: inputs.restart_count,
        }),
        image: Some(inputs.image),
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: inputs
            .environment
            .into_iter()
            .map(|(key, value)| v1::KeyValue {
                key,
                value: value.into_bytes(),
            })
            .collect(),
        mounts: inputs.mounts,
        devices: inputs.devices,
        labels: labels::of_container(pod, container),
        annotations: labels::annotations(pod, container, inputs.restart_count),
        log_path: format!("{}/{}.log", container.name, inputs.restart_count),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(inputs.resources),
            security_context: Some(inputs.security),
        }),
        stop_signal: signal(stop_signal) as i32,
        ..Default::default()
    })
}

fn signal(name: Option<&str>) -> v1::Signal {
    name.and_then(|name| v1::Signal::from_str_name(&format!("SIGNAL_{name}")))
        .unwrap_or(v1::Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_see_the_environment() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": "u"},
            "spec": {"containers": [{"name": "a", "command": ["sh", "-c"], "args": ["echo $(X) $$(X)"],
            "lifecycle": {"stopSignal": "SIGUSR1"}}]}}))
        .unwrap();
        let inputs = |value: &str| Inputs {
            restart_count: 3,
            image: Default::default(),
            environment: vec![("X".into(), value.into())],
            mounts: vec![],
            devices: vec![],
            security: Default::default(),
            resources: Default::default(),
        };
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let made = config(&pod, container, inputs("1")).unwrap();
        assert_eq!(made.args, ["echo 1 $(X)"]);
        assert_eq!(made.log_path, "a/3.log");
        assert_eq!(made.annotations[labels::RESTART_COUNT], "3");
        assert_eq!(made.stop_signal(), v1::Signal::Sigusr1);
        let huge = config(&pod, container, inputs(&"x".repeat(LIMIT)));
        let problem = "the command is larger than 8388608 bytes";
        assert_eq!(huge.unwrap_err(), Problem(problem.to_owned()));
    }
}
