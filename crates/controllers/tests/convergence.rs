//! Random changes with all controllers: workloads are created, scaled and deleted, nodes are added,
//! go silent and are removed, controllers are restarted, requests fail and watches expire. In the
//! end the cluster must match the remaining specs, without orphans, leftovers or stuck finalizers.
//!
//! Small and seeded in `make test`; `make soak` runs many seeds. A failure names its seed, and
//! `MAINSTAY_SEED=n` runs that one alone.

#![allow(clippy::unwrap_used)]

mod faults;
mod simulated;
mod world;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use faults::{Faults, Faulty};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PropagationPolicy},
    core::GroupVersionKind,
};
use lifecycle::Context;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use simulated::{FastClock, Nodes};
use tokio_util::sync::CancellationToken;
use world::Server;

/// How long the cluster may take to converge after the last change.
const SETTLE: Duration = Duration::from_secs(90);
const NAMESPACE: &str = "work";
/// How long a node is without heartbeat: longer than the grace period on the fast clock.
const SILENCE: Duration = Duration::from_secs(2);
/// How many of a thousand requests of controllers fail.
const FAULTS: u32 = 30;

struct Run {
    server: Server,
    random: StdRng,
    faults: Arc<Faults>,
    clock: Arc<FastClock>,
    controllers: CancellationToken,
    nodes: Nodes,
    /// Nodes that exist and do not send heartbeats.
    silent: BTreeSet<String>,
    made: u32,
}

fn resource(kind: &str) -> ApiResource {
    let group = match kind {
        "Job" => "batch",
        "Pod" | "Namespace" | "Node" => "",
        _ => "apps",
    };
    ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
}

impl Run {
    async fn start(seed: u64) -> Self {
        let server = Server::start().await;
        let clock = Arc::new(FastClock::new(30));
        let faults = Faults::new(server.connector(), seed);
        let nodes = Nodes::start(&server.context, &server.client, clock.clone());
        let mut run = Self {
            random: StdRng::seed_from_u64(seed),
            faults,
            clock,
            controllers: CancellationToken::new(),
            nodes,
            silent: BTreeSet::new(),
            made: 0,
            server,
        };
        run.create("Namespace", json!({"metadata": {"name": NAMESPACE}}))
            .await;
        for _ in 0..3 {
            run.add_node().await;
        }
        run.faults.set_rate(FAULTS);
        run.restart();
        run
    }

    /// Drops all controllers at any point and starts new ones.
    fn restart(&mut self) {
        self.controllers.cancel();
        self.controllers = self.server.stop.child_token();
        let context = Context::standalone("controllers", self.controllers.clone());
        let connector = Arc::new(Faulty(self.faults.clone()));
        self.server
            .run_controllers(&context, connector, self.clock.clone());
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let resource = resource(kind);
        match kind {
            "Node" | "Namespace" => Api::all_with(self.server.client.clone(), &resource),
            _ => Api::namespaced_with(self.server.client.clone(), NAMESPACE, &resource),
        }
    }

    async fn create(&self, kind: &str, object: Value) {
        let mut object: DynamicObject = serde_json::from_value(object).unwrap();
        let resource = resource(kind);
        object.types = Some(kube::api::TypeMeta {
            api_version: resource.api_version,
            kind: resource.kind,
        });
        let created = self.api(kind).create(&Default::default(), &object).await;
        created.unwrap();
    }

    fn next_name(&mut self, prefix: &str) -> String {
        self.made += 1;
        format!("{prefix}{}", self.made)
    }

    async fn add_node(&mut self) {
        let name = self.next_name("n");
        self.create("Node", json!({"metadata": {"name": name}}))
            .await;
        self.nodes.add(&name);
    }

    async fn create_workload(&mut self) {
        let kinds = [
            "Deployment",
            "ReplicaSet",
            "StatefulSet",
            "DaemonSet",
            "Job",
        ];
        let kind = kinds[self.random.random_range(0..kinds.len())];
        let name = self.next_name("w");
        let mut labels = json!({"app": name});
        let mut spec = json!({"selector": {"matchLabels": {"app": name}}});
        match kind {
            "Job" => {
                labels = json!({"finishes": "yes"});
                spec = json!({
                    "completions": self.random.random_range(1..4),
                    "parallelism": self.random.random_range(1..3),
                });
            }
            "DaemonSet" => {}
            _ => spec["replicas"] = json!(self.random.random_range(0..5)),
        }
        if kind == "StatefulSet" {
            spec["serviceName"] = json!(name);
            spec["podManagementPolicy"] = json!("Parallel");
        }
        let restart = if kind == "Job" { "Never" } else { "Always" };
        spec["template"] = json!({
            "metadata": {"labels": labels},
            "spec": {
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": "i"}],
            },
        });
        self.create(kind, json!({"metadata": {"name": name}, "spec": spec}))
            .await;
    }

    /// A random object of the kinds, if there is any.
    async fn pick(&mut self, kinds: &[&'static str]) -> Option<(&'static str, DynamicObject)> {
        let kind = kinds[self.random.random_range(0..kinds.len())];
        let all = self
            .api(kind)
            .list(&Default::default())
            .await
            .unwrap()
            .items;
        if all.is_empty() {
            return None;
        }
        let number = self.random.random_range(0..all.len());
        Some((kind, all[number].clone()))
    }

    async fn delete_workload(&mut self) {
        let kinds = [
            "Deployment",
            "ReplicaSet",
            "StatefulSet",
            "DaemonSet",
            "Job",
        ];
        let Some((kind, object)) = self.pick(&kinds).await else {
            return;
        };
        // Not Orphan: orphaned objects of a Deployment or Job would never be adopted.
        let policy = match self.random.random_range(0..2) {
            0 => PropagationPolicy::Foreground,
            _ => PropagationPolicy::Background,
        };
        self.delete(kind, &object, Some(policy)).await;
    }

    async fn delete(&self, kind: &str, object: &DynamicObject, policy: Option<PropagationPolicy>) {
        let params = DeleteParams {
            propagation_policy: policy,
            ..Default::default()
        };
        let name = object.metadata.name.as_deref().unwrap();
        match self.api(kind).delete(name, &params).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn scale(&mut self) {
        let kinds = ["Deployment", "ReplicaSet", "StatefulSet"];
        let Some((kind, object)) = self.pick(&kinds).await else {
            return;
        };
        let owned = object.metadata.owner_references.is_some();
        let patch = json!({"spec": {"replicas": self.random.random_range(0..6)}});
        self.patch(kind, &object, &patch).await;
        // The Deployment scales its ReplicaSet back.
        if owned {
            tracing::debug!("scaled what another controller owns");
        }
    }

    async fn patch(&self, kind: &str, object: &DynamicObject, patch: &Value) {
        let name = object.metadata.name.as_deref().unwrap();
        let params = PatchParams::default();
        let patched = self
            .api(kind)
            .patch(name, &params, &Patch::Merge(patch))
            .await;
        match patched {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => panic!("{error}"),
        }
    }

    async fn update_template(&mut self) {
        let Some((kind, object)) = self.pick(&["Deployment"]).await else {
            return;
        };
        let image = format!("i{}", self.random.random_range(0..5));
        let containers = json!([{"name": "c", "image": image}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        self.patch(kind, &object, &patch).await;
    }

    async fn delete_pod(&mut self) {
        if let Some((kind, pod)) = self.pick(&["Pod"]).await {
            self.delete(kind, &pod, None).await;
        }
    }

    async fn lose_node(&mut self) {
        let nodes: Api<Node> = Api::all(self.server.client.clone());
        let all = nodes.list(&Default::default()).await.unwrap().items;
        if all.len() < 2 {
            return;
        }
        let lost = &all[self.random.random_range(0..all.len())];
        let name = lost.metadata.name.as_deref().unwrap();
        self.nodes.remove(name);
        self.silent.remove(name);
        nodes.delete(name, &Default::default()).await.unwrap();
    }

    /// Stops a node's heartbeats, or resumes those of the silent one.
    async fn silence_node(&mut self) {
        if let Some(back) = self.silent.pop_first() {
            return self.nodes.add(&back);
        }
        let nodes: Api<Node> = Api::all(self.server.client.clone());
        let all = nodes.list(&Default::default()).await.unwrap().items;
        let quiet = &all[self.random.random_range(0..all.len())];
        let name = quiet.metadata.name.clone().unwrap();
        self.nodes.remove(&name);
        self.silent.insert(name);
        tokio::time::sleep(SILENCE).await;
    }

    async fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..25 => self.create_workload().await,
            25..40 => self.delete_workload().await,
            40..60 => self.scale().await,
            60..70 => self.update_template().await,
            70..82 => self.delete_pod().await,
            82..87 => self.lose_node().await,
            87..92 => self.add_node().await,
            92..95 => self.silence_node().await,
            95..97 => self.restart(),
            // New pods stay pending.
            _ => self.nodes.pause(Duration::from_millis(200)),
        }
        let moment = Duration::from_millis(self.random.random_range(0..40));
        tokio::time::sleep(moment).await;
    }

    /// Everything that does not match the specs.
    async fn problems(&self) -> Vec<String> {
        simulated::problems(&self.server.client, NAMESPACE).await
    }
}

async fn run(seed: u64, steps: u32) {
    let mut run = Run::start(seed).await;
    for _ in 0..steps {
        run.step().await;
    }
    run.faults.set_rate(0);
    for back in std::mem::take(&mut run.silent) {
        run.nodes.add(&back);
    }
    let deadline = tokio::time::Instant::now() + SETTLE;
    loop {
        let problems = run.problems().await;
        if problems.is_empty() {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "seed {seed} does not settle:\n{}",
            problems.join("\n")
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Deleting the namespace deletes everything.
    let namespaces = run.api("Namespace");
    namespaces
        .delete(NAMESPACE, &Default::default())
        .await
        .unwrap();
    let gone = async {
        while namespaces.get_opt(NAMESPACE).await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    if tokio::time::timeout(SETTLE, gone).await.is_err() {
        panic!(
            "seed {seed}: the namespace stays: {:?}",
            run.problems().await
        );
    }
    run.server.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_converge_to_the_specs_after_random_faults() {
    let seed = std::env::var("MAINSTAY_SEED").ok();
    if let Some(seed) = seed.and_then(|seed| seed.parse().ok()) {
        return run(seed, 120).await;
    }
    let (seeds, steps) = if std::env::var_os("MAINSTAY_SOAK").is_some() {
        (100, 300)
    } else {
        (2, 60)
    };
    for seed in 1..=seeds {
        run(seed, steps).await;
    }
}
