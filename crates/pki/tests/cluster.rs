//! A cluster's PKI from its directory to a TLS handshake.

#![allow(clippy::unwrap_used)]

use std::{os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use pki::{Kubeconfig, Leaf, Names, Peer, Pki, Rotation, Signer};
use rustls::{
    ClientConfig, ServerConfig,
    pki_types::{CertificateDer, ServerName},
};
use stdx::clock::{Clock, FakeClock};
use tokio_rustls::{TlsAcceptor, TlsConnector};

fn names() -> Names {
    Names {
        node_name: Some("Alpha".to_owned()),
        node_ips: vec!["192.0.2.7".parse().unwrap()],
        host_names: vec!["alpha.example".to_owned()],
        ..Names::default()
    }
}

type Chain = Vec<CertificateDer<'static>>;

/// Performs a handshake over a pipe; returns what each side sees of the other.
async fn shake(
    server: Arc<ServerConfig>,
    mut client: ClientConfig,
    name: &str,
) -> std::io::Result<(Option<Chain>, Chain)> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    client.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let connector = TlsConnector::from(Arc::new(client));
    let (server, client) = tokio::join!(
        TlsAcceptor::from(server).accept(far),
        connector.connect(name, near)
    );
    let server = server?;
    let client = client?;
    assert_eq!(server.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let seen = server.get_ref().1.peer_certificates();
    let certificates = |chain: &[CertificateDer<'_>]| {
        chain
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect()
    };
    Ok((
        seen.map(certificates),
        certificates(client.get_ref().1.peer_certificates().unwrap_or_default()),
    ))
}

fn identify(pki: &Pki, chain: &Chain) -> Peer {
    pki.identify(chain, Timestamp::now()).unwrap()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn every_identity_is_what_its_certificate_says() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::ensure(dir.path(), &names()).unwrap();
    let expected: &[(Leaf, &str, &[&str])] = &[
        (Leaf::Admin, "kubernetes-admin", &["system:masters"]),
        (Leaf::Scheduler, "system:kube-scheduler", &[]),
        (
            Leaf::ControllerManager,
            "system:kube-controller-manager",
            &[],
        ),
        (Leaf::KubeProxy, "system:kube-proxy", &[]),
        (Leaf::Dns, "system:mainstay:dns", &[]),
        (Leaf::Kubelet, "system:node:Alpha", &["system:nodes"]),
        (
            Leaf::ApiserverKubeletClient,
            "kube-apiserver-kubelet-client",
            &[],
        ),
    ];
    for (leaf, user, groups) in expected {
        let server = pki.apiserver_config().unwrap();
        let client = pki.client_config(*leaf).unwrap();
        let (seen, _) = shake(server, client, "kubernetes.default.svc")
            .await
            .unwrap();
        let peer = identify(&pki, &seen.unwrap());
        assert_eq!((peer.user.as_str(), peer.signer), (*user, Signer::Cluster));
        assert_eq!(peer.groups, *groups);
    }
    let front_proxy = pki.client_config(Leaf::FrontProxyClient).unwrap();
    let (seen, _) = shake(pki.apiserver_config().unwrap(), front_proxy, "localhost")
        .await
        .unwrap();
    assert_eq!(identify(&pki, &seen.unwrap()).signer, Signer::FrontProxy);
}

#[tokio::test]
async fn the_api_server_answers_to_all_its_names_and_to_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::ensure(dir.path(), &names()).unwrap();
    let authority = pki.ca().pem().as_bytes();
    let connect = async |name: &str| {
        let client = pki::bearer_client_config(authority).unwrap();
        shake(pki.apiserver_config().unwrap(), client, name).await
    };
    for name in [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
        "alpha",
        "alpha.example",
        "10.43.0.1",
        "192.0.2.7",
        "127.0.0.1",
        "::1",
    ] {
        let (client, server) = connect(name).await.unwrap();
        assert!(
            client.is_none(),
            "a client without a certificate is anonymous, and served"
        );
        assert_eq!(
            server.len(),
            2,
            "the chain ends with the authority, for joining nodes to pin"
        );
    }
    connect("example.org").await.unwrap_err();
    connect("192.0.2.8").await.unwrap_err();
}

#[tokio::test]
async fn certificates_of_another_authority_or_another_time_are_refused() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let ours = Pki::ensure(here.path(), &names()).unwrap();
    let theirs = Pki::ensure(there.path(), &names()).unwrap();
    let admin = theirs.issued(Leaf::Admin).unwrap();
    let identity = (admin.certificate_pem(), admin.key_pem());
    let client = pki::client_config_from_pem(
        ours.ca().pem().as_bytes(),
        Some((identity.0.as_bytes(), identity.1.as_bytes())),
    )
    .unwrap();
    // TLS 1.3 clients finish first: the rejection shows on the server's side.
    shake(ours.apiserver_config().unwrap(), client, "localhost")
        .await
        .unwrap_err();

    let server = ours.apiserver_config().unwrap();
    let client = ours.client_config(Leaf::Admin).unwrap();
    let (seen, _) = shake(server, client, "localhost").await.unwrap();
    let seen = seen.unwrap();
    let now = Timestamp::now();
    ours.identify(&seen, now).unwrap();
    ours.identify(&seen, now + SignedDuration::from_hours(24 * 366))
        .unwrap_err();
    ours.identify(&seen, now - SignedDuration::from_hours(1))
        .unwrap_err();
    theirs.identify(&seen, now).unwrap_err();
    ours.identify(&[], now).unwrap_err();
}

#[test]
fn a_second_start_changes_nothing_and_files_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    Pki::ensure(&pki, &names()).unwrap();
    let content = || {
        let mut all: Vec<_> = std::fs::read_dir(&pki)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (path.clone(), read(&path)))
            .collect();
        all.sort();
        all
    };
    let first = content();
    Pki::ensure(&pki, &names()).unwrap();
    assert_eq!(first, content());
    assert_eq!(first.len(), 2 * (2 + 1 + Leaf::ALL.len()));
    for (path, _) in &first {
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[test]
fn a_changed_address_reissues_only_the_serving_certificates() {
    let dir = tempfile::tempdir().unwrap();
    Pki::ensure(dir.path(), &names()).unwrap();
    let read_all = || {
        Leaf::ALL
            .iter()
            .map(|l| read(&dir.path().join(format!("{}.crt", l.file()))))
    };
    let before: Vec<_> = read_all().collect();
    let moved = Names {
        node_ips: vec!["192.0.2.8".parse().unwrap()],
        ..names()
    };
    let pki = Pki::ensure(dir.path(), &moved).unwrap();
    let changed = Leaf::ALL.iter().zip(before.iter().zip(read_all()));
    let changed: Vec<_> = changed
        .filter(|(_, (before, after))| *before != after)
        .map(|(leaf, _)| *leaf)
        .collect();
    assert_eq!(changed, [Leaf::Apiserver, Leaf::KubeletServing]);
    let renewed = pki.rename(&names(), Timestamp::now()).unwrap();
    assert_eq!(renewed, [Leaf::Apiserver, Leaf::KubeletServing]);
}

#[test]
fn damaged_or_mixed_up_files_are_replaced_but_an_authority_never_is() {
    let dir = tempfile::tempdir().unwrap();
    Pki::ensure(dir.path(), &names()).unwrap();
    let ca = read(&dir.path().join("ca.crt"));
    std::fs::write(dir.path().join("admin.crt"), "nonsense").unwrap();
    std::fs::copy(dir.path().join("dns.key"), dir.path().join("scheduler.key")).unwrap();
    let pki = Pki::ensure(dir.path(), &names()).unwrap();
    assert!(
        pki.issued(Leaf::Admin)
            .unwrap()
            .certificate_pem()
            .contains("BEGIN CERTIFICATE")
    );
    assert_ne!(
        read(&dir.path().join("dns.key")),
        read(&dir.path().join("scheduler.key"))
    );
    assert_eq!(ca, read(&dir.path().join("ca.crt")));

    std::fs::copy(dir.path().join("admin.key"), dir.path().join("ca.key")).unwrap();
    let error = Pki::ensure(dir.path(), &names()).err().unwrap().to_string();
    assert!(
        error.contains("ca.crt: certificate: no certificate matches the key"),
        "{error}"
    );
    std::fs::remove_file(dir.path().join("ca.key")).unwrap();
    Pki::ensure(dir.path(), &names()).err().unwrap();
    assert_eq!(ca, read(&dir.path().join("ca.crt")));
}

/// openssl writes the common formats; without it the test is skipped.
fn openssl(dir: &Path, arguments: &str) -> bool {
    let command = std::process::Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(dir)
        .output();
    command.is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn authorities_that_a_user_brings_are_used_in_every_form_of_key() {
    let forms = [
        "genrsa -traditional -out ca.key 2048",
        "genrsa -out ca.key 2048",
        "ecparam -name prime256v1 -genkey -noout -out ca.key",
        "ecparam -name secp384r1 -genkey -noout -out ca.key",
    ];
    for form in forms {
        let dir = tempfile::tempdir().unwrap();
        if !openssl(dir.path(), form) {
            return;
        }
        let request = "req -x509 -new -key ca.key -subj /CN=mine -days 30 -out ca.crt";
        assert!(openssl(dir.path(), request));
        let before = read(&dir.path().join("ca.crt"));
        let pki = Pki::ensure(dir.path(), &names()).unwrap();
        assert_eq!(before, read(&dir.path().join("ca.crt")), "{form}");
        let client = pki.client_config(Leaf::Admin).unwrap();
        let server = pki.apiserver_config().unwrap();
        let (seen, _) = shake(server, client, "localhost").await.unwrap();
        assert_eq!(
            identify(&pki, &seen.unwrap()).user,
            "kubernetes-admin",
            "{form}"
        );
    }
}

#[tokio::test]
async fn certificates_are_renewed_under_a_running_server_after_two_thirds_of_their_life() {
    let dir = tempfile::tempdir().unwrap();
    // Handshakes use the real time: the old and the new certificate must both be valid now.
    let clock = FakeClock::at(Timestamp::now() - SignedDuration::from_hours(24 * 250));
    let pki = Arc::new(Pki::ensure_at(dir.path(), &names(), clock.now()).unwrap());
    let path = dir.path().join("admin.kubeconfig");
    let server = "https://127.0.0.1:6443".to_owned();
    pki.write_kubeconfig(Kubeconfig {
        leaf: Leaf::Admin,
        path: path.clone(),
        server,
        servers: Vec::new(),
    })
    .unwrap();
    let first = read(&path);
    let running = pki.apiserver_config().unwrap();
    let client = || pki.client_config(Leaf::Admin).unwrap();
    let (_, before) = shake(running.clone(), client(), "localhost").await.unwrap();

    let rotation = Arc::new(Rotation::new(pki.clone(), Arc::new(clock.clone())));
    let stop = tokio_util::sync::CancellationToken::new();
    let context = lifecycle::Context::standalone("certificates", stop.clone());
    let run = tokio::spawn(lifecycle::Service::run(rotation, context));
    let due = pki.next_renewal();
    let life = pki
        .issued(Leaf::Admin)
        .unwrap()
        .not_after()
        .duration_since(clock.now());
    assert!(due.duration_since(clock.now()) < life * 2 / 3 && life > SignedDuration::from_hours(1));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while pki.next_renewal() == due {
        clock.advance(Duration::from_secs(24 * 3600));
        tokio::task::yield_now().await;
        assert!(tokio::time::Instant::now() < deadline, "never renewed");
    }
    assert!(clock.now().duration_since(due) < SignedDuration::from_hours(72));
    let (_, after) = shake(running, client(), "localhost").await.unwrap();
    assert_ne!(before, after);
    assert_ne!(first, read(&path));
    stop.cancel();
    run.await.unwrap().unwrap();
}

#[test]
fn debug_output_shows_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::ensure(dir.path(), &names()).unwrap();
    let issued = pki.issued(Leaf::Admin).unwrap();
    assert!(!format!("{issued:?}").contains("PRIVATE"));
}

#[test]
fn a_shorter_life_takes_effect_at_the_next_start_and_leaves_time_to_renew() {
    let dir = tempfile::tempdir().unwrap();
    let long = Pki::ensure(dir.path(), &names()).unwrap();
    let minute = Duration::from_secs(60);
    let short = Pki::ensure_for(dir.path(), &names(), minute).unwrap();
    let now = Timestamp::now();
    for leaf in Leaf::ALL {
        let (before, after) = (long.issued(*leaf).unwrap(), short.issued(*leaf).unwrap());
        assert_ne!(
            before.certificate_pem(),
            after.certificate_pem(),
            "{leaf:?}"
        );
        assert!(after.not_after() <= now + SignedDuration::from_secs(61));
        assert!(after.renew_at() > now, "{leaf:?} is due at once");
    }
    assert_eq!(short.ca().life(), minute);
    assert_eq!(long.ca().pem(), short.ca().pem());
    // The same lifetime again changes nothing.
    let again = Pki::ensure_for(dir.path(), &names(), minute).unwrap();
    let pem = |pki: &Pki| pki.issued(Leaf::Apiserver).unwrap().certificate_pem();
    assert_eq!(pem(&short), pem(&again));
    // Kubeconfigs follow the server's address.
    let path = dir.path().join("admin.kubeconfig");
    let config = Kubeconfig {
        leaf: Leaf::Admin,
        path: path.clone(),
        server: "https://192.0.2.7:6443".to_owned(),
        servers: Vec::new(),
    };
    again.write_kubeconfig(config).unwrap();
    again.set_server("https://192.0.2.8:6443").unwrap();
    assert!(read(&path).contains("https://192.0.2.8:6443"));
    assert!(!read(&path).contains("192.0.2.7:"));
}

#[test]
fn no_session_is_resumed_with_the_certificate_of_an_earlier_handshake() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::ensure(dir.path(), &names()).unwrap();
    for config in [pki.apiserver_config(), pki.kubelet_config()] {
        let config = config.unwrap();
        assert_eq!(config.send_tls13_tickets, 0);
        assert!(!config.session_storage.can_cache());
        assert!(!config.ticketer.enabled());
    }
}
