//! People approve and deny requests for certificates, with our kubectl and with the ordinary one.

use std::fs;

use testkit::{Cluster, Ran, eventually};

/// A request for a client certificate, as a manifest.
fn request(cluster: &Cluster, name: &str) -> String {
    let dir = cluster.machine().dir();
    let (key, csr) = (
        dir.join(format!("{name}.key")),
        dir.join(format!("{name}.csr")),
    );
    let (key, csr) = (key.display().to_string(), csr.display().to_string());
    let subject = format!("/O=dev/CN={name}");
    let new = ["req", "-new", "-nodes", "-newkey", "rsa:2048", "-keyout"];
    let mut arguments = new.to_vec();
    arguments.extend([key.as_str(), "-out", &csr, "-subj", &subject]);
    cluster.machine().run("openssl", &arguments).success();
    let encoded = cluster.machine().run("base64", &["-w0", &csr]).success();
    format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
         spec: {{signerName: kubernetes.io/kube-apiserver-client, expirationSeconds: 3600, usages: [client auth], request: {encoded}}}\n"
    )
}

/// The certificate that was issued, as openssl reads it.
fn issued(cluster: &Cluster, name: &str) -> String {
    let certificate = eventually("the certificate", || {
        let csr = cluster.get(&["csr", name]);
        let certificate = csr["status"]["certificate"].as_str().map(str::to_owned);
        certificate.ok_or(csr["status"].to_string())
    });
    let file = cluster.machine().dir().join(format!("{name}.b64"));
    fs::write(&file, certificate).expect("a file");
    let read = "base64 -d \"$0\" | openssl x509 -noout -subject -issuer -ext extendedKeyUsage";
    let file = file.display().to_string();
    cluster.machine().run("sh", &["-c", read, &file]).success()
}

fn decide(cluster: &Cluster, kubectl: &dyn Fn(&[&str]) -> Ran, who: &str) {
    let (yes, no) = (format!("{who}-alice"), format!("{who}-bob"));
    for name in [&yes, &no] {
        let manifest = request(cluster, name);
        cluster
            .kubectl_stdin(&["create", "-f", "-"], &manifest)
            .success();
    }
    let listed = kubectl(&["get", "csr", &yes]).success();
    assert!(listed.contains("Pending"), "{listed}");
    let said = kubectl(&["certificate", "approve", &yes]).success();
    let expected = format!("certificatesigningrequest.certificates.k8s.io/{yes} approved");
    assert!(said.contains(&expected), "{said}");
    let said = kubectl(&["certificate", "deny", &no]).success();
    let expected = format!("certificatesigningrequest.certificates.k8s.io/{no} denied");
    assert!(said.contains(&expected), "{said}");
    let certificate = issued(cluster, &yes);
    assert!(
        certificate.contains(&yes) && certificate.contains("dev"),
        "{certificate}"
    );
    assert!(
        certificate.contains("TLS Web Client Authentication"),
        "{certificate}"
    );
    let listed = kubectl(&["get", "csr", &yes, &no]).success();
    assert!(
        listed.contains("Approved,Issued") && listed.contains("Denied"),
        "{listed}"
    );
    let denied = cluster.get(&["csr", &no]);
    assert!(denied["status"].get("certificate").is_none(), "{denied}");
}

#[test]
fn requests_for_certificates_are_approved_and_denied() {
    let mut cluster = Cluster::up();
    cluster.set_upstream_kubectl(e2e::kubectl(env!("CARGO_TARGET_TMPDIR").as_ref()));
    decide(&cluster, &|args| cluster.kubectl(args), "own");
    if cluster.upstream_kubectl(&["version", "--client"]).is_some() {
        let kubectl = |args: &[&str]| cluster.upstream_kubectl(args).expect("it is there");
        decide(&cluster, &kubectl, "ordinary");
    }
}
