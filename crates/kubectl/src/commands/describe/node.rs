//! Nodes: capacity, pods, and allocated resources.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use machinery::{
    Value as Object,
    pod_resources::{Field, PodResources, ResourceList},
    quantity::Quantity,
};
use serde_json::Value;

use crate::{
    api::with_query,
    json::{entries, list, str_of},
    session::Session,
};

use super::text::{Text, plain, since, time};

pub(super) async fn describe(session: &Session, text: &mut Text, node: &Value) -> Result<()> {
    let (metadata, spec, status) = (&node["metadata"], &node["spec"], &node["status"]);
    text.field(0, "Name", str_of(&metadata["name"]));
    roles(text, &metadata["labels"]);
    text.maps(node);
    text.field(
        0,
        "CreationTimestamp",
        &time(&metadata["creationTimestamp"]),
    );
    taints(text, &spec["taints"]);
    text.field(
        0,
        "Unschedulable",
        if spec["unschedulable"] == true {
            "true"
        } else {
            "false"
        },
    );
    lease(session, text, str_of(&metadata["name"])).await?;
    conditions(text, &status["conditions"]);
    text.line(0, "Addresses:");
    for address in list(&status["addresses"]) {
        text.field(1, str_of(&address["type"]), str_of(&address["address"]));
    }
    for (title, field) in [("Capacity", "capacity"), ("Allocatable", "allocatable")] {
        let amounts = entries(&status[field]);
        if !amounts.is_empty() {
            text.line(0, &format!("{title}:"));
        }
        for (name, amount) in amounts {
            text.field(1, name, &plain(amount));
        }
    }
    let selector = format!("spec.nodeName={}", str_of(&metadata["name"]));
    let slices = with_query(SLICES, &[("fieldSelector", selector)]);
    if let Ok(slices) = session.api.items(&slices).await {
        local_devices(text, &slices);
    }
    system_info(text, &status["nodeInfo"]);
    text.optional(0, "PodCIDR", &spec["podCIDR"]);
    if list(&spec["podCIDRs"]).len() > 0 {
        text.field(
            0,
            "PodCIDRs",
            &list(&spec["podCIDRs"])
                .map(str_of)
                .collect::<Vec<_>>()
                .join(","),
        );
    }
    text.optional(0, "ProviderID", &spec["providerID"]);
    let selector = format!(
        "spec.nodeName={},status.phase!=Succeeded,status.phase!=Failed",
        str_of(&metadata["name"])
    );
    match session
        .api
        .items(&with_query("/api/v1/pods", &[("fieldSelector", selector)]))
        .await
    {
        Ok(pods) => usage(text, node, &pods),
        Err(error) if crate::error::code_is(&error, 403) => text.field(0, "Pods", "not authorized"),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn roles(text: &mut Text, labels: &Value) {
    let roles: BTreeSet<String> = entries(labels)
        .into_iter()
        .filter_map(
            |(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
                Some(role) => Some(role.to_owned()),
                None => (key == "kubernetes.io/role").then(|| str_of(value).to_owned()),
            },
        )
        .filter(|role| !role.is_empty())
        .collect();
    text.field(
        0,
        "Roles",
        &if roles.is_empty() {
            "<none>".to_owned()
        } else {
            roles.into_iter().collect::<Vec<_>>().join(",")
        },
    );
}

fn conditions(text: &mut Text, conditions: &Value) {
    let columns = [
        ("Type", "type"),
        ("Status", "status"),
        ("LastHeartbeatTime", "lastHeartbeatTime"),
        ("LastTransitionTime", "lastTransitionTime"),
        ("Reason", "reason"),
        ("Message", "message"),
    ];
    text.conditions(conditions, &columns, " ");
}

fn system_info(text: &mut Text, info: &Value) {
    text.line(0, "System Info:");
    for (title, field) in [
        ("Machine ID", "machineID"),
        ("System UUID", "systemUUID"),
        ("Boot ID", "bootID"),
        ("Kernel Version", "kernelVersion"),
        ("OS Image", "osImage"),
        ("Operating System", "operatingSystem"),
        ("Architecture", "architecture"),
        ("Container Runtime Version", "containerRuntimeVersion"),
        ("Kubelet Version", "kubeletVersion"),
    ] {
        text.field(1, title, str_of(&info[field]));
    }
}

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// How many pools of devices are shown.
const MAX_POOLS: usize = 10;

/// The devices of the node, counted by driver and pool.
fn local_devices(text: &mut Text, slices: &[Value]) {
    let mut pools: BTreeMap<String, (String, usize, usize)> = BTreeMap::new();
    for slice in slices {
        let spec = &slice["spec"];
        let (driver, pool) = (str_of(&spec["driver"]), str_of(&spec["pool"]["name"]));
        let counts = pools.entry(format!("{driver}/{pool}"));
        let counts = counts.or_insert_with(|| (format!("{driver}\t{pool}"), 0, 0));
        counts.1 += 1;
        counts.2 += list(&spec["devices"]).len();
    }
    if pools.is_empty() {
        return;
    }
    text.line(
        0,
        "Node-Local ResourceSlices:\n  Driver\tPool\tSlices\tDevices",
    );
    text.line(1, "------\t----\t------\t-------");
    for (named, slices, devices) in pools.values().take(MAX_POOLS) {
        text.line(1, &format!("{named}\t{slices}\t{devices}"));
    }
    if pools.len() > MAX_POOLS {
        text.line(1, &format!("...and {} more pools", pools.len() - MAX_POOLS));
    }
}

fn taints(text: &mut Text, taints: &Value) {
    let mut sorted: Vec<&Value> = list(taints).collect();
    let key = |taint: &&Value| format!("{},{}", str_of(&taint["effect"]), str_of(&taint["key"]));
    sorted.sort_by_key(key);
    let lines: Vec<String> = sorted
        .into_iter()
        .map(|taint| match str_of(&taint["value"]) {
            "" => format!("{}:{}", str_of(&taint["key"]), str_of(&taint["effect"])),
            value => format!(
                "{}={value}:{}",
                str_of(&taint["key"]),
                str_of(&taint["effect"])
            ),
        })
        .collect();
    text.lines("Taints", lines);
}

async fn lease(session: &Session, text: &mut Text, node: &str) -> Result<()> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}");
    let lease = match session.api.get(&path).await {
        Ok(lease) => lease,
        Err(error) => {
            let message = crate::error::message(&error);
            text.field(0, "Lease", &format!("Failed to get lease: {message}"));
            return Ok(());
        }
    };
    let spec = &lease["spec"];
    let at = |value: &Value| {
        if value.is_null() {
            "<unset>".to_owned()
        } else {
            time(value)
        }
    };
    text.line(0, "Lease:");
    text.field(
        1,
        "HolderIdentity",
        if spec["holderIdentity"].is_null() {
            "<unset>"
        } else {
            str_of(&spec["holderIdentity"])
        },
    );
    text.field(1, "AcquireTime", &at(&spec["acquireTime"]));
    text.field(1, "RenewTime", &at(&spec["renewTime"]));
    Ok(())
}

fn quantity(value: &Value) -> Quantity {
    plain(value).parse().unwrap_or(Quantity::ZERO)
}

/// A pod's requests or limits in its spec; with those in its status, as they count during a resize.
fn total(pod: &Object, field: Field, with_status: bool) -> ResourceList<'_> {
    let status = with_status.then(|| &pod["status"]);
    PodResources::from_json(field, &pod["spec"], status).total()
}

/// The requests or limits of all pods in their specs.
fn node_total(pods: &[Object], field: Field, resource: &str) -> Quantity {
    let of_pods = pods
        .iter()
        .filter_map(|pod| total(pod, field, false).get(resource).copied());
    of_pods.fold(Quantity::ZERO, Quantity::plus)
}

fn usage(text: &mut Text, node: &Value, pods: &[Value]) {
    let allocatable = match node["status"]["allocatable"].is_object() {
        true => &node["status"]["allocatable"],
        false => &node["status"]["capacity"],
    };
    let objects: Vec<Object> = pods.iter().map(machinery::json::to_value_or_null).collect();
    pod_table(text, allocatable, pods, &objects);
    total_table(text, allocatable, &objects);
}

/// An amount and its share of the node's.
fn cell(allocatable: &Value, amount: Quantity, resource: &str) -> String {
    let available = quantity(&allocatable[resource]).to_f64();
    let percent = if available == 0.0 {
        0.0
    } else {
        amount.to_f64() / available * 100.0
    };
    format!("{amount} ({}%)", percent as i64)
}

fn pod_table(text: &mut Text, allocatable: &Value, pods: &[Value], objects: &[Object]) {
    text.line(
        0,
        &format!("Non-terminated Pods:\t({} in total)", pods.len()),
    );
    text.line(
        1,
        "Namespace\tName\t\tCPU Requests\tCPU Limits\tMemory Requests\tMemory Limits\tAge",
    );
    text.line(
        1,
        "---------\t----\t\t------------\t----------\t---------------\t-------------\t---",
    );
    for (pod, object) in pods.iter().zip(objects) {
        let [requests, limits] =
            [Field::Requests, Field::Limits].map(|field| total(object, field, true));
        let amount = |list: &ResourceList<'_>, resource: &str| {
            let amount = list.get(resource).copied().unwrap_or(Quantity::ZERO);
            cell(allocatable, amount, resource)
        };
        text.line(
            1,
            &format!(
                "{}\t{}\t\t{}\t{}\t{}\t{}\t{}",
                str_of(&pod["metadata"]["namespace"]),
                str_of(&pod["metadata"]["name"]),
                amount(&requests, "cpu"),
                amount(&limits, "cpu"),
                amount(&requests, "memory"),
                amount(&limits, "memory"),
                since(&pod["metadata"]["creationTimestamp"])
            ),
        );
    }
}

fn total_table(text: &mut Text, allocatable: &Value, pods: &[Object]) {
    text.line(
        0,
        "Allocated resources:\n  (Total limits may be over 100 percent, i.e., overcommitted.)",
    );
    text.line(1, "Resource\tRequests\tLimits");
    text.line(1, "--------\t--------\t------");
    let totals = |resource: &str| {
        [Field::Requests, Field::Limits].map(|field| node_total(pods, field, resource))
    };
    let standard = ["cpu", "memory", "ephemeral-storage"];
    let huge: Vec<&str> = entries(allocatable)
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("hugepages-"))
        .collect();
    for resource in standard.iter().copied().chain(huge.iter().copied()) {
        let [requests, limits] = totals(resource).map(|amount| cell(allocatable, amount, resource));
        text.line(1, &format!("{resource}\t{requests}\t{limits}"));
    }
    let is_extended =
        |name: &&str| !standard.contains(name) && !huge.contains(name) && *name != "pods";
    for (resource, _) in entries(allocatable)
        .into_iter()
        .filter(|(name, _)| is_extended(name))
    {
        let [requests, limits] = totals(resource);
        text.line(1, &format!("{resource}\t{requests}\t{limits}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_resize_counts_for_the_pod_and_not_in_the_sum() {
        let resources = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = json!({
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {"containers": [{"name": "a", "resources": resources("500m")}]},
            "status": {"containerStatuses": [{"name": "a", "resources": resources("1")}]},
        });
        let node = json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
        let mut text = Text::default();
        usage(&mut text, &node, &[pod]);
        let shown = text.with_tabs();
        assert!(shown.contains("web\t\t1 (50%)\t0 (0%)"), "{shown}");
        assert!(shown.contains("cpu\t500m (25%)\t0 (0%)"), "{shown}");
    }

    #[test]
    fn taints_are_sorted_by_effect() {
        let mut text = Text::default();
        let taint = |key: &str, effect: &str| json!({"key": key, "effect": effect});
        let all = json!([taint("a", "NoSchedule"), taint("b", "NoExecute")]);
        taints(&mut text, &all);
        assert_eq!(text.with_tabs(), "Taints:\tb:NoExecute\n\ta:NoSchedule\n");
    }

    #[test]
    fn local_devices_are_counted_by_driver_and_pool() {
        let slice = |driver: &str, pool: &str, devices: usize| {
            let devices = vec![serde_json::json!({"name": "d"}); devices];
            serde_json::json!({"spec": {"driver": driver, "pool": {"name": pool}, "devices": devices}})
        };
        let mut text = Text::default();
        let slices = [
            slice("gpu", "b", 1),
            slice("gpu", "a", 2),
            slice("gpu", "b", 3),
        ];
        local_devices(&mut text, &slices);
        assert_eq!(
            text.with_tabs(),
            "Node-Local ResourceSlices:\n  Driver\tPool\tSlices\tDevices\n  ------\t----\t------\t-------\n  \
             gpu\ta\t1\t2\n  gpu\tb\t2\t4\n"
        );
        let many: Vec<Value> = (0..12)
            .map(|at| slice("d", &format!("{at:02}"), 0))
            .collect();
        let mut text = Text::default();
        local_devices(&mut text, &many);
        assert!(text.with_tabs().ends_with("...and 2 more pools\n"));
        let mut none = Text::default();
        local_devices(&mut none, &[]);
        assert_eq!(none.with_tabs(), "");
    }
}
