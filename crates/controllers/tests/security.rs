//! Certificates and quotas, with a real API server.

#![allow(clippy::unwrap_used)]

mod world;

use apiserver::User;
use futures::StreamExt;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::{ConfigMap, Node, Pod, ResourceQuota, Secret, ServiceAccount},
    },
};
use kube::{
    Api,
    api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use rcgen::{CertificateParams, DnType, KeyPair};
use serde_json::{Value, json};
use world::World;

const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";

fn request(name: &str, group: &str, names: &[&str]) -> Vec<u8> {
    let names = names.iter().map(|&name| name.to_owned());
    let mut params = CertificateParams::new(names.collect::<Vec<_>>()).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, group);
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let request = params.serialize_request(&key).unwrap();
    request.pem().unwrap().into_bytes()
}

async fn ask(
    client: kube::Client,
    name: &str,
    signer: &str,
    usages: &[&str],
    request: Vec<u8>,
) -> Result<CertificateSigningRequest, kube::Error> {
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request),
            signer_name: signer.to_owned(),
            usages: Some(usages.iter().map(|&usage| usage.to_owned()).collect()),
            expiration_seconds: Some(3600),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    Api::all(client).create(&PostParams::default(), &csr).await
}

fn conditions(csr: &CertificateSigningRequest) -> Vec<String> {
    let status = csr.status.clone().unwrap_or_default();
    let all = status.conditions.unwrap_or_default();
    all.into_iter().map(|condition| condition.type_).collect()
}

fn is_issued(csr: &CertificateSigningRequest) -> bool {
    let status = csr.status.clone().unwrap_or_default();
    status
        .certificate
        .is_some_and(|certificate| !certificate.0.is_empty())
}

/// Waits until `look` finds something.
async fn soon<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let reached = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(world::DEADLINE, reached).await;
    found.unwrap_or_else(|_| panic!("never happened: {what}"))
}

async fn until(
    world: &World,
    name: &str,
    what: fn(&CertificateSigningRequest) -> bool,
) -> CertificateSigningRequest {
    let all: Api<CertificateSigningRequest> = Api::all(world.client.clone());
    let found = soon(name, || async {
        let csr = all.get_opt(name).await.unwrap()?;
        what(&csr).then_some(csr)
    });
    found.await
}

async fn with_node() -> World {
    let world = World::new().await;
    let addresses = json!([{"type": "Hostname", "address": "n1"},
                           {"type": "InternalIP", "address": "192.0.2.1"}]);
    let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": addresses}});
    let nodes: Api<Node> = Api::all(world.client.clone());
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    world
}

fn kubelet(world: &World) -> kube::Client {
    world.as_node("n1", "192.0.2.1")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_gets_only_its_own_certificates() {
    let world = with_node().await;
    let client = ["digital signature", "client auth"];
    let server = ["digital signature", "server auth"];
    let own = request("system:node:n1", "system:nodes", &[]);
    ask(kubelet(&world), "own", KUBELET_CLIENT, &client, own)
        .await
        .unwrap();
    let csr = until(&world, "own", is_issued).await;
    let approval = csr.status.clone().unwrap().conditions.unwrap().remove(0);
    assert_eq!(approval.reason.as_deref(), Some("AutoApproved"));
    let groups = csr.spec.groups.clone().unwrap();
    assert_eq!(groups, ["system:nodes", "system:authenticated"]);
    let serving = request("system:node:n1", "system:nodes", &["n1", "192.0.2.1"]);
    ask(
        kubelet(&world),
        "serving",
        KUBELET_SERVING,
        &server,
        serving,
    )
    .await
    .unwrap();
    until(&world, "serving", is_issued).await;
    // Requests for another's name, address or certificate need manual approval.
    let greedy = request("system:node:n1", "system:nodes", &["n1", "192.0.2.2"]);
    ask(kubelet(&world), "greedy", KUBELET_SERVING, &server, greedy)
        .await
        .unwrap();
    let other = request("system:node:n2", "system:nodes", &[]);
    let refused = ask(kubelet(&world), "other", KUBELET_CLIENT, &client, other).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("can only create a node CSR with CN=system:node:n1"),
        "{refused}"
    );
    let legacy = request("system:node:n1", "system:nodes", &[]);
    let unknown = "kubernetes.io/legacy-unknown";
    let refused = ask(world.client.clone(), "legacy", unknown, &client, legacy)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("legacy signerName"),
        "{refused}"
    );
    // A later request was handled, and so the earlier ones were, too.
    let last = request("system:node:n1", "system:nodes", &[]);
    ask(kubelet(&world), "last", KUBELET_CLIENT, &client, last)
        .await
        .unwrap();
    until(&world, "last", is_issued).await;
    let csr = until(&world, "greedy", |_| true).await;
    assert!(conditions(&csr).is_empty(), "{:?}", csr.status);
}

/// A compromised node: its status has the addresses of the API server and of others.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_gets_no_certificate_for_addresses_that_it_only_claims() {
    let world = with_node().await;
    let server = ["digital signature", "server auth"];
    let hostile = world.as_user(User::new("system:node:n1", ["system:nodes"]));
    let addresses = json!([{"type": "InternalIP", "address": "10.43.0.1"},
                           {"type": "InternalIP", "address": "192.0.2.2"},
                           {"type": "InternalDNS", "address": "kubernetes.default.svc"}]);
    let patch = json!({"status": {"addresses": addresses}});
    let nodes: Api<Node> = Api::all(hostile.clone());
    let params = PatchParams::default();
    nodes
        .patch_status("n1", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    let beside = kubelet(&world);
    for (name, client, wanted) in [
        (
            "server",
            &hostile,
            &["kubernetes.default.svc", "10.43.0.1"][..],
        ),
        ("unseen", &hostile, &["n1"]),
        ("service", &beside, &["10.43.0.1"]),
        ("neighbour", &beside, &["192.0.2.2"]),
        ("name", &beside, &["kubernetes.default.svc"]),
    ] {
        let request = request("system:node:n1", "system:nodes", wanted);
        ask(client.clone(), name, KUBELET_SERVING, &server, request)
            .await
            .unwrap();
    }
    let own = request("system:node:n1", "system:nodes", &["n1", "192.0.2.1"]);
    ask(beside, "own", KUBELET_SERVING, &server, own)
        .await
        .unwrap();
    until(&world, "own", is_issued).await;
    for name in ["server", "unseen", "service", "neighbour", "name"] {
        let csr = until(&world, name, |_| true).await;
        assert!(conditions(&csr).is_empty(), "{name}: {:?}", csr.status);
    }
}

async fn decide(client: kube::Client, name: &str, kind: &str) -> Result<(), kube::Error> {
    let all: Api<CertificateSigningRequest> = Api::all(client);
    let condition = json!({"type": kind, "status": "True", "reason": "Test", "message": "m"});
    let patch = json!({"status": {"conditions": [condition]}});
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    all.patch_subresource("approval", name, &params, &patch)
        .await
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn manually_approved_requests_are_signed_or_fail_by_signer_rules() {
    let world = World::new().await;
    let signer = "kubernetes.io/kube-apiserver-client";
    let client = ["client auth"];
    let (good, bad) = (request("eve", "dev", &[]), request("eve", "dev", &[]));
    ask(world.client.clone(), "good", signer, &client, good)
        .await
        .unwrap();
    ask(world.client.clone(), "bad", signer, &["server auth"], bad)
        .await
        .unwrap();
    // A user who may update approvals but has no permission for the signer cannot approve.
    let role = json!({"metadata": {"name": "approver"}, "rules": [{
        "apiGroups": ["certificates.k8s.io"], "verbs": ["update", "patch", "get"],
        "resources": ["certificatesigningrequests", "certificatesigningrequests/approval",
                      "certificatesigningrequests/status"]}]});
    let binding = json!({"metadata": {"name": "approver"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "approver"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}]});
    let roles = Api::all(world.client.clone());
    let role: k8s_openapi::api::rbac::v1::ClusterRole = serde_json::from_value(role).unwrap();
    roles.create(&PostParams::default(), &role).await.unwrap();
    let bindings = Api::all(world.client.clone());
    let binding: k8s_openapi::api::rbac::v1::ClusterRoleBinding =
        serde_json::from_value(binding).unwrap();
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();
    let mallory = || world.as_user(User::new("mallory", [""; 0]));
    soon("the refusal for the signer", || async {
        let refused = decide(mallory(), "good", "Approved")
            .await
            .unwrap_err()
            .to_string();
        refused
            .contains("not permitted to approve requests")
            .then_some(())
    })
    .await;
    let key = KeyPair::generate().unwrap();
    let forged = CertificateParams::default().self_signed(&key).unwrap();
    let forged = ByteString(forged.pem().into_bytes());
    let forged = json!({"status": {"certificate": forged}});
    let all: Api<CertificateSigningRequest> = Api::all(mallory());
    let params = PatchParams::default();
    let refused = all
        .patch_status("good", &params, &Patch::Merge(&forged))
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("not permitted to sign"),
        "{refused}"
    );
    for name in ["good", "bad"] {
        decide(world.client.clone(), name, "Approved")
            .await
            .unwrap();
    }
    let csr = until(&world, "good", is_issued).await;
    assert_eq!(conditions(&csr), ["Approved"]);
    let failed = until(&world, "bad", |csr| conditions(csr).len() == 2).await;
    let failure = failed.status.unwrap().conditions.unwrap().remove(1);
    assert_eq!(failure.reason.as_deref(), Some("SignerValidationFailure"));
    assert_eq!(
        failure.message.as_deref(),
        Some("invalid usage for client certificate: server auth")
    );
    let masters = request("eve", "system:masters", &[]);
    let refused = ask(world.client.clone(), "root", signer, &client, masters).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("system:masters group is not allowed"),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_for_an_account_gets_its_token_and_goes_with_the_account() {
    let world = World::new().await;
    let account = json!({"metadata": {"name": "bot"}});
    world.create::<ServiceAccount>("default", account).await;
    let secret = |name: &str, account: &str| {
        json!({"metadata": {"name": name, "annotations": {"kubernetes.io/service-account.name": account}},
               "type": "kubernetes.io/service-account-token"})
    };
    world
        .create::<Secret>("default", secret("own", "bot"))
        .await;
    world
        .create::<Secret>("default", secret("stray", "nobody"))
        .await;
    let secrets = world.api::<Secret>("default");
    let data = soon("the token", || async {
        let secret = secrets.get("own").await.unwrap();
        secret.data.filter(|data| data.contains_key("token"))
    })
    .await;
    let text = |key: &str| String::from_utf8_lossy(&data[key].0).into_owned();
    assert_eq!(
        (text("namespace"), text("ca.crt")),
        ("default".into(), "CA".into())
    );
    assert_eq!(text("token").split('.').count(), 3);
    let gone = async |name: &str| {
        soon("the secret goes", || async {
            secrets.get_opt(name).await.unwrap().is_none().then_some(())
        })
        .await;
    };
    gone("stray").await;
    let accounts = world.api::<ServiceAccount>("default");
    let params = DeleteParams::default();
    accounts.delete("bot", &params).await.unwrap();
    gone("own").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_objects_and_ended_pods_are_subtracted_from_the_quota() {
    let world = World::new().await;
    let hard = json!({"pods": "2", "count/configmaps": "3", "count/jobs.batch": "1"});
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": hard}});
    world.create::<ResourceQuota>("default", quota).await;
    let quotas = world.api::<ResourceQuota>("default");
    let used = async |what: &str, expected: Value| {
        soon(what, || async {
            let quota = quotas.get("q").await.unwrap();
            let used = quota.status.and_then(|status| status.used);
            let used = serde_json::to_value(used).unwrap();
            let all = expected.as_object().unwrap().iter();
            all.clone()
                .all(|(name, amount)| used[name] == *amount)
                .then_some(())
        })
        .await;
    };
    // The namespace has the root CA's ConfigMap from the start.
    used(
        "the first count",
        json!({"pods": "0", "count/configmaps": "1", "count/jobs.batch": "0"}),
    )
    .await;
    let pod = |name: &str| json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    soon("the default service account", || async {
        let pods = world.api::<Pod>("default");
        let pod = serde_json::from_value(pod("a")).unwrap();
        pods.create(&PostParams::default(), &pod)
            .await
            .ok()
            .map(drop)
    })
    .await;
    world.create::<Pod>("default", pod("b")).await;
    world
        .create::<ConfigMap>("default", json!({"metadata": {"name": "m"}}))
        .await;
    used("the charges", json!({"pods": "2", "count/configmaps": "2"})).await;
    let pods = world.api::<Pod>("default");
    let third: Pod = serde_json::from_value(pod("c")).unwrap();
    let refused = pods
        .create(&PostParams::default(), &third)
        .await
        .unwrap_err();
    assert!(
        refused.to_string().contains("exceeded quota: q"),
        "{refused}"
    );
    pods.delete("a", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    used("the deletion", json!({"pods": "1"})).await;
    let ended = json!({"status": {"phase": "Succeeded"}});
    let params = PatchParams::default();
    pods.patch_status("b", &params, &Patch::Merge(&ended))
        .await
        .unwrap();
    used("the end", json!({"pods": "0"})).await;
    let maps = world.api::<ConfigMap>("default");
    maps.delete("m", &DeleteParams::default()).await.unwrap();
    used("the map's deletion", json!({"count/configmaps": "1"})).await;
    // A new limit is visible at once.
    let patch = json!({"spec": {"hard": {"pods": "7"}}});
    quotas
        .patch("q", &params, &Patch::Merge(&patch))
        .await
        .unwrap();
    soon("the new bound", || async {
        let quota = quotas.get("q").await.unwrap();
        let hard = quota.status.and_then(|status| status.hard)?;
        (hard["pods"].0 == "7").then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_info_is_signed_by_the_tokens_that_may() {
    let world = World::new().await;
    for namespace in ["kube-public", "kube-system"] {
        world.namespace(namespace).await;
    }
    let token = |id: &str, signs: &str| {
        json!({"metadata": {"name": format!("bootstrap-token-{id}")},
            "type": "bootstrap.kubernetes.io/token", "stringData": {
                "token-id": id, "token-secret": "0123456789abcdef",
                "usage-bootstrap-signing": signs}})
    };
    world
        .create::<Secret>("kube-system", token("abcdef", "true"))
        .await;
    world
        .create::<Secret>("kube-system", token("fedcba", "false"))
        .await;
    let info = json!({"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": "where"}});
    world.create::<ConfigMap>("kube-public", info).await;
    let maps: Api<ConfigMap> = world.api("kube-public");
    let signed = |text: &'static str| {
        let maps = maps.clone();
        move || {
            let maps = maps.clone();
            async move {
                let data = maps.get("cluster-info").await?.data.unwrap_or_default();
                let expected = pki::detached_signature(text, "abcdef", "0123456789abcdef");
                let only = !data.contains_key("jws-kubeconfig-fedcba");
                let found = data.get("jws-kubeconfig-abcdef") == Some(&expected);
                Ok::<_, kube::Error>(only && found)
            }
        }
    };
    world.until("it is signed", signed("where")).await;
    let patch = Patch::Merge(json!({"data": {"kubeconfig": "elsewhere"}}));
    let params = PatchParams::default();
    maps.patch("cluster-info", &params, &patch).await.unwrap();
    world.until("it is signed anew", signed("elsewhere")).await;
    let secrets: Api<Secret> = world.api("kube-system");
    secrets
        .delete("bootstrap-token-abcdef", &DeleteParams::default())
        .await
        .unwrap();
    world
        .until("the signature goes with the token", || async {
            let data = maps.get("cluster-info").await?.data.unwrap_or_default();
            Ok::<_, kube::Error>(data.len() == 1)
        })
        .await;
    world.stop.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_counts_more_objects_than_one_page_has() {
    let world = World::new().await;
    let maps = world.api::<ConfigMap>("default");
    let create = async |number: usize| {
        let map = json!({"metadata": {"name": format!("m{number}")}});
        let map = serde_json::from_value(map).unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
    };
    futures::stream::iter(0..510)
        .for_each_concurrent(32, create)
        .await;
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"count/configmaps": "600"}}});
    world.create::<ResourceQuota>("default", quota).await;
    let quotas = world.api::<ResourceQuota>("default");
    soon("the count", || async {
        let used = quotas.get("q").await.unwrap().status?.used?;
        // And the ConfigMap of the root CA.
        (used["count/configmaps"].0 == "511").then_some(())
    })
    .await;
}
