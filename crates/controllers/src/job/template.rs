//! The pods of a Job. Pure.

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod},
};

use super::pod::{FAILURES, FINALIZER, IGNORED_FAILURES, INDEX};
use crate::podcontrol;

/// Leaves room for the five generated characters within the 63 of a host name.
const PREFIX_LENGTH: usize = 58;

/// A pod to create.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct NewPod {
    /// The completion index, for an Indexed Job.
    pub(super) index: Option<i32>,
    /// Failures of its index so far, counted and ignored, with backoffLimitPerIndex.
    pub(super) failures: Option<(i32, i32)>,
}

/// The pod from the Job's template, with the tracking finalizer.
pub(super) fn pod(job: &Job, new: &NewPod) -> Pod {
    let template = job.spec.as_ref().map(|spec| &spec.template);
    let mut pod = podcontrol::from_template(job, template);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|known| known == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let Some(index) = new.index else { return pod };
    let name = job.metadata.name.as_deref().unwrap_or_default();
    pod.metadata.generate_name = Some(name_prefix(name, index));
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(INDEX.to_owned(), index.to_string());
    if let Some((counted, ignored)) = new.failures {
        annotations.insert(FAILURES.to_owned(), counted.to_string());
        if ignored > 0 {
            annotations.insert(IGNORED_FAILURES.to_owned(), ignored.to_string());
        }
    }
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(INDEX.to_owned(), index.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(format!("{name}-{index}"));
    let inits = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(inits) {
        tell_index(container);
    }
    pod
}

/// Truncates the Job's name, never the index.
fn name_prefix(job: &str, index: i32) -> String {
    let end = format!("-{index}-");
    let cut = job.len().min(PREFIX_LENGTH - end.len());
    // Object names are ASCII.
    format!("{}{end}", &job[..cut])
}

/// Adds the environment variable of the index, unless the template has one of that name.
fn tell_index(container: &mut Container) {
    const NAME: &str = "JOB_COMPLETION_INDEX";
    let env = container.env.get_or_insert_default();
    if env.iter().any(|known| known.name == NAME) {
        return;
    }
    let field = ObjectFieldSelector {
        field_path: format!("metadata.labels['{INDEX}']"),
        ..Default::default()
    };
    let source = EnvVarSource {
        field_ref: Some(field),
        ..Default::default()
    };
    env.push(EnvVar {
        name: NAME.into(),
        value_from: Some(source),
        ..Default::default()
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(name: &str) -> Job {
        let container = |name: &str| json!({"name": name, "image": "i"});
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": "u"},
            "spec": {"template": {
                "metadata": {"labels": {"a": "b"}, "finalizers": ["other/one"]},
                "spec": {"containers": [container("c")], "initContainers": [container("i")]},
            }},
        }))
        .unwrap()
    }

    #[test]
    fn a_pod_of_an_index_has_it_in_its_name_host_name_labels_and_environment() {
        let new = NewPod {
            index: Some(3),
            failures: Some((2, 1)),
        };
        let pod = pod(&job("work"), &new);
        assert_eq!(pod.metadata.generate_name.as_deref(), Some("work-3-"));
        assert_eq!(pod.metadata.finalizers.unwrap(), ["other/one", FINALIZER]);
        let labels = pod.metadata.labels.unwrap();
        assert_eq!((labels["a"].as_str(), labels[INDEX].as_str()), ("b", "3"));
        let annotations = pod.metadata.annotations.unwrap();
        let seen = [INDEX, FAILURES, IGNORED_FAILURES].map(|name| annotations[name].as_str());
        assert_eq!(seen, ["3", "2", "1"]);
        let spec = pod.spec.unwrap();
        assert_eq!(spec.hostname.as_deref(), Some("work-3"));
        for container in spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten())
        {
            let variable = &container.env.as_ref().unwrap()[0];
            assert_eq!(variable.name, "JOB_COMPLETION_INDEX");
        }
    }

    #[test]
    fn a_long_name_is_cut_before_the_index() {
        let long = "j".repeat(63);
        let new = NewPod {
            index: Some(12),
            failures: None,
        };
        let pod = pod(&job(&long), &new);
        let prefix = pod.metadata.generate_name.unwrap();
        assert_eq!(prefix.len(), PREFIX_LENGTH);
        assert!(prefix.ends_with("j-12-"));
        assert!(!pod.metadata.annotations.unwrap().contains_key(FAILURES));
    }
}
