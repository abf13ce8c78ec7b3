//! The credentials that admission webhooks get from the admission configuration file, and what they
//! add to the audit log.

use std::path::Path;

use apiserver::{Registry, audit};
use base64::{Engine, engine::general_purpose::STANDARD};
use machinery::json::{Value, json};

use crate::{
    hook_server::{Hook, Reply, allowed, install, webhook},
    support::{Server, admin, eventually},
};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn create(server: &Server, name: &str) -> crate::support::Raw {
    admin(server, "POST", MAPS, json!({"metadata": {"name": name}})).await
}

/// Writes an admission configuration whose webhook plugins use a kubeconfig with these users.
fn configure(directory: &Path, users: &str) -> std::path::PathBuf {
    let kubeconfig = directory.join("webhooks.kubeconfig");
    std::fs::write(
        &kubeconfig,
        format!("apiVersion: v1\nkind: Config\nusers:\n{users}"),
    )
    .unwrap();
    let plugin = |name: &str| {
        format!(
            "- name: {name}\n  configuration: {{apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: '{}'}}\n",
            kubeconfig.display()
        )
    };
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n{}{}",
        plugin("ValidatingAdmissionWebhook"),
        plugin("MutatingAdmissionWebhook")
    );
    let path = directory.join("admission.yaml");
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn webhooks_get_the_credentials_of_the_admission_configuration() {
    let (ca, key) = {
        let made = rcgen::generate_simple_self_signed(vec!["apiserver".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    };
    let allow = |review: &Value| Reply::Json(allowed(review, json!({})));
    let strict = Hook::with_client_ca(Some(&ca), allow).await;
    let (known, other) = (Hook::start(allow).await, Hook::start(allow).await);
    let users = format!(
        "- {{name: '{}', user: {{token: for-known}}}}\n- {{name: '{}', user: {{client-certificate-data: {}, client-key-data: {}}}}}\n",
        known.address,
        strict.address,
        STANDARD.encode(&ca),
        STANDARD.encode(&key),
    );
    let server = Server::with_kinds(Registry::builtin(), |config, directory| {
        config.admission.config_file = Some(configure(directory, &users));
    })
    .await;
    for (hook, mutating, name) in [
        (&known, true, "known"),
        (&other, false, "other"),
        (&strict, false, "strict"),
    ] {
        let hooks = vec![webhook(
            &format!("{name}.example.com"),
            hook.by_url(),
            Value::Null,
        )];
        install(&server, mutating, name, hooks).await;
    }
    let made = create(&server, "one").await;
    assert_eq!(made.code, 201, "{}", made.body);
    assert_eq!(*known.authorizations.lock(), ["Bearer for-known"]);
    // Credentials are for the named host alone.
    assert_eq!(other.requests().len(), 1);
    assert!(other.authorizations.lock().is_empty());
    assert_eq!(strict.requests().len(), 1, "it accepted the certificate");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_demands_a_certificate_rejects_a_server_without_one() {
    let made = rcgen::generate_simple_self_signed(vec!["apiserver".to_owned()]).unwrap();
    let allow = |review: &Value| Reply::Json(allowed(review, json!({})));
    let strict = Hook::with_client_ca(Some(&made.cert.pem()), allow).await;
    let server = Server::start().await;
    let hooks = vec![webhook("strict.example.com", strict.by_url(), Value::Null)];
    install(&server, false, "strict", hooks).await;
    let refused = create(&server, "one").await;
    assert_eq!(refused.code, 500, "{}", refused.body);
    let start = "Internal error occurred: failed calling webhook \"strict.example.com\": failed to call webhook: Post ";
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with(start), "{message}");
    assert!(strict.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_annotations_of_webhooks_have_the_name_of_the_webhook() {
    let server = Server::with_kinds(Registry::builtin(), |config, directory| {
        let policy = directory.join("policy.yaml");
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  resources: [{group: '', resources: [configmaps]}]\n  omitStages: [RequestReceived]\n";
        std::fs::write(&policy, text).unwrap();
        config.audit = Some(audit::Config {
            policy,
            log: directory.join("audit.log"),
            max_size: 1,
            max_backups: 0,
            max_age: 0,
        });
    })
    .await;
    let hook = Hook::allowing(json!({"auditAnnotations": {"seen": "yes"}})).await;
    for (mutating, name) in [(true, "m.example.com"), (false, "v.example.com")] {
        let hooks = vec![webhook(name, hook.by_url(), Value::Null)];
        install(&server, mutating, &name[..1], hooks).await;
    }
    assert_eq!(create(&server, "one").await.code, 201);
    let event = eventually(|| async {
        let log = std::fs::read_to_string(server.directory().join("audit.log")).unwrap();
        let mut events = log
            .lines()
            .filter_map(|line| machinery::json::from_str(line).ok());
        events.find(|event: &Value| event["objectRef"]["name"] == "one")
    })
    .await;
    for name in ["m.example.com/seen", "v.example.com/seen"] {
        assert_eq!(event["annotations"][name], "yes", "{event}");
    }
}
