//! `kubectl describe`: an object and its Events. Kinds with a special layout have a file; every
//! other kind is shown field by field.

mod addresses;
mod autoscaling;
mod certificate;
mod config;
mod container;
mod generic;
mod network;
mod network_policy;
mod node;
mod pod;
mod policy;
mod rbac;
mod storage;
mod text;
mod volume;
mod workload;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::Value;

use crate::{
    api::with_query,
    args::{FilesOrSelector, Selection},
    discovery::encode,
    error,
    json::str_of,
    resources::{self, Named, Target},
    session::Session,
};

use super::events;
use text::Text;

/// Flags of `describe`.
#[derive(Debug, Args)]
pub(crate) struct Describe {
    /// TYPE [NAME-PREFIX…] or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    given: FilesOrSelector,
    /// List the objects across all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Fetch large lists in chunks of this many objects; 0 fetches all at once
    #[arg(long, default_value_t = 500, value_name = "COUNT")]
    chunk_size: i64,
    /// Display events related to the described object; by default for a single object only
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    show_events: Option<bool>,
}

impl Describe {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        if self.resources.is_empty() && self.given.files.is_empty() {
            bail!(
                "You must specify the type of resource to describe. Use \"kubectl api-resources\" for a complete list of supported resources."
            );
        }
        let selection = self.selection();
        let targets = resources::targets(session, &selection, &self.resources, true).await?;
        let mut errors = Vec::new();
        let mut printed = 0;
        for target in &targets {
            match self.describe(session, target, targets.len() == 1).await {
                Ok(text) => {
                    if printed > 0 {
                        print!("\n\n");
                    }
                    printed += 1;
                    print!("{text}");
                }
                Err(error) if error::is_not_found(&error) && target.manifest.is_none() => {
                    match self.with_prefix(session, target).await? {
                        found if found.is_empty() => errors.push(error),
                        found => {
                            for target in found {
                                printed += 1;
                                println!("{}", self.describe(session, &target, false).await?);
                            }
                        }
                    }
                }
                Err(error) => errors.push(error),
            }
        }
        if targets.is_empty() {
            match self.all_namespaces {
                true => eprintln!("No resources found"),
                false => eprintln!("No resources found in {} namespace.", session.namespace),
            }
        }
        error::aggregate(errors)
    }

    fn selection(&self) -> Selection {
        Selection {
            all_namespaces: self.all_namespaces,
            chunk_size: Some(self.chunk_size),
            ..Selection::from(&self.given)
        }
    }

    async fn describe(
        &self,
        session: &Session,
        target: &Target,
        is_single: bool,
    ) -> Result<String> {
        let object = target.get(session).await?;
        let mut text = Text::default();
        body(session, &mut text, &object).await?;
        if self.show_events.unwrap_or(is_single)
            && object["kind"] != "Secret"
            && !has_no_events(&object)
        {
            put_events(session, &mut text, target, &object).await?;
        }
        Ok(text.finish())
    }

    /// The objects whose names have the given prefix.
    async fn with_prefix(&self, session: &Session, target: &Target) -> Result<Vec<Target>> {
        let words = [target.resource.qualified_plural()];
        let Named::Types(_) = resources::named(session, &words).await? else {
            return Ok(Vec::new());
        };
        let all = resources::targets(session, &self.selection(), &words, true).await?;
        Ok(all
            .into_iter()
            .filter(|one| one.name.starts_with(&target.name))
            .collect())
    }
}

/// Kinds whose descriptions show no events.
fn has_no_events(object: &Value) -> bool {
    const KINDS: &[&str] = &[
        "Namespace",
        "LimitRange",
        "ResourceQuota",
        "Role",
        "ClusterRole",
        "RoleBinding",
        "ClusterRoleBinding",
        "NetworkPolicy",
    ];
    KINDS.contains(&str_of(&object["kind"]))
}

/// Everything except the Events.
async fn body(session: &Session, text: &mut Text, object: &Value) -> Result<()> {
    let version = str_of(&object["apiVersion"]);
    let group = version.split_once('/').map_or("", |(group, _)| group);
    match (group, str_of(&object["kind"])) {
        ("", "Pod") => pod::describe(text, object),
        ("apps", "Deployment") => workload::deployment(session, text, object).await?,
        ("apps", "ReplicaSet") => workload::replica_set(session, text, object).await?,
        ("", "ReplicationController") => {
            workload::replication_controller(session, text, object).await?
        }
        ("apps", "DaemonSet") => workload::daemon_set(session, text, object).await?,
        ("apps", "StatefulSet") => workload::stateful_set(session, text, object).await?,
        ("batch", "Job") => workload::job(text, object),
        ("batch", "CronJob") => workload::cron_job(text, object),
        ("", "Service") => network::service(session, text, object).await?,
        ("discovery.k8s.io", "EndpointSlice") => network::endpoint_slice(text, object),
        ("networking.k8s.io", "Ingress") => network::ingress(session, text, object).await?,
        ("networking.k8s.io", "IngressClass") => addresses::ingress_class(text, object),
        ("networking.k8s.io", "ServiceCIDR") => addresses::service_cidr(text, object),
        ("networking.k8s.io", "IPAddress") => addresses::ip_address(text, object),
        ("networking.k8s.io", "NetworkPolicy") => network_policy::describe(text, object),
        ("", "Endpoints") => addresses::endpoints(text, object),
        ("certificates.k8s.io", "CertificateSigningRequest") => certificate::describe(text, object),
        ("", "Secret") => config::secret(text, object),
        ("", "ConfigMap") => config::config_map(text, object),
        ("", "ServiceAccount") => config::service_account(text, object),
        ("", "Node") => node::describe(session, text, object).await?,
        ("", "Namespace") => policy::namespace(session, text, object).await?,
        ("", "ResourceQuota") => policy::quota(text, object),
        ("", "LimitRange") => policy::limit_range(text, object),
        ("policy", "PodDisruptionBudget") => policy::disruption_budget(text, object),
        ("scheduling.k8s.io", "PriorityClass") => policy::priority_class(text, object),
        ("", "PersistentVolumeClaim") => storage::claim(session, text, object).await?,
        ("", "PersistentVolume") => storage::volume(text, object),
        ("storage.k8s.io", "StorageClass") => storage::class(text, object),
        ("storage.k8s.io", "VolumeAttributesClass") => storage::attributes_class(text, object),
        ("storage.k8s.io", "CSINode") => storage::csi_node(text, object),
        ("autoscaling", "HorizontalPodAutoscaler") => {
            // Version 1 has only one metric.
            let path = format!(
                "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers/{}",
                encode(str_of(&object["metadata"]["namespace"])),
                encode(str_of(&object["metadata"]["name"]))
            );
            let current = match object["apiVersion"] == "autoscaling/v1" {
                true => session.api.find(&path).await.ok().flatten(),
                false => None,
            };
            autoscaling::describe(text, current.as_ref().unwrap_or(object));
        }
        ("rbac.authorization.k8s.io", "Role" | "ClusterRole") => rbac::role(text, object),
        ("rbac.authorization.k8s.io", "RoleBinding" | "ClusterRoleBinding") => {
            rbac::binding(text, object)
        }
        _ => generic::describe(text, object),
    }
    Ok(())
}

/// The pod template of a revision, as `rollout history --revision` shows it.
pub(super) fn pod_template(template: &Value) -> String {
    let mut text = Text::default();
    pod::template(&mut text, template);
    text.with_tabs()
}

/// The UID in an object's events: those of a static pod are about the pod on its node.
fn event_uid(object: &Value) -> &str {
    let metadata = &object["metadata"];
    match str_of(&metadata["annotations"]["kubernetes.io/config.mirror"]) {
        uid if object["kind"] == "Pod" && !uid.is_empty() => uid,
        _ => str_of(&metadata["uid"]),
    }
}

/// The Events of an object, as a table.
async fn put_events(
    session: &Session,
    text: &mut Text,
    target: &Target,
    object: &Value,
) -> Result<()> {
    let metadata = &object["metadata"];
    let path = match target.resource.namespaced {
        true => format!(
            "/api/v1/namespaces/{}/events",
            str_of(&metadata["namespace"])
        ),
        false => "/api/v1/events".to_owned(),
    };
    let list = async |uid: &str| {
        let selector = format!(
            "involvedObject.name={},involvedObject.namespace={},involvedObject.uid={uid}",
            str_of(&metadata["name"]),
            str_of(&metadata["namespace"])
        );
        let found = session
            .api
            .items(&with_query(&path, &[("fieldSelector", selector)]))
            .await;
        match found {
            // Without permission to list them there are none, as upstream.
            Err(_) if object["kind"] != "ConfigMap" => Ok(Vec::new()),
            found => found,
        }
    };
    let mut found = list(event_uid(object)).await?;
    if object["kind"] == "Node" {
        // Its kubelet refers to it by name.
        found.extend(list(str_of(&metadata["name"])).await?);
    }
    if found.is_empty() {
        text.field(0, "Events", "<none>");
        return Ok(());
    }
    // As upstream: events without this time, such as those of a series, are the first.
    found.sort_by_key(|event| str_of(&event["lastTimestamp"]).to_owned());
    text.flush();
    text.line(0, "Events:\n  Type\tReason\tAge\tFrom\tMessage");
    text.line(1, "----\t------\t----\t----\t-------");
    for event in &found {
        let from = match str_of(&event["source"]["component"]) {
            "" => str_of(&event["reportingComponent"]),
            component => component,
        };
        let message = match str_of(&event["involvedObject"]["fieldPath"]) {
            "" => str_of(&event["message"]).trim().to_owned(),
            path => format!("{path}: {}", str_of(&event["message"]).trim()),
        };
        let (kind, reason) = (str_of(&event["type"]), str_of(&event["reason"]));
        text.line(
            1,
            &format!(
                "{kind}\t{reason}\t{}\t{from}\t{message}",
                events::interval(event)
            ),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_of_a_static_pod_are_found_by_the_uid_on_its_node() {
        let annotations = json!({"kubernetes.io/config.mirror": "hash"});
        let pod = json!({"kind": "Pod", "metadata": {"uid": "u", "annotations": annotations}});
        assert_eq!(event_uid(&pod), "hash");
        assert_eq!(
            event_uid(&json!({"kind": "Pod", "metadata": {"uid": "u"}})),
            "u"
        );
    }
}
