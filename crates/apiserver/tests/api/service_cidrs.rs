//! Service CIDRs: additional ones, full ones, two IP families, and changes by others.

use std::collections::BTreeSet;

use machinery::json::{Value, json};

use crate::support::{Server, admin, eventually};

const SERVICES: &str = "/api/v1/namespaces/default/services";
const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

async fn make(server: &Server, name: &str, spec: Value) -> (u16, Value) {
    let mut service = json!({"metadata": {"name": name}, "spec": {
        "selector": {"app": name}, "ports": [{"port": 80}]}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        service["spec"][key] = value.clone();
    }
    let made = admin(server, "POST", SERVICES, service).await;
    (made.code, made.json())
}

/// Sets the Ready condition, as the ServiceCIDR controller does.
async fn tell(server: &Server, range: &str, ready: bool) {
    let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" },
        "reason": "Told", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"conditions": [condition]}});
    let reported = admin(server, "PATCH", &format!("{RANGES}/{range}/status"), status).await;
    assert_eq!(reported.code, 200, "{}", reported.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_range_is_ready_and_further_ones_count_once_they_are() {
    let server = Server::start().await;
    let first = admin(&server, "GET", &format!("{RANGES}/kubernetes"), Value::Null)
        .await
        .json();
    assert_eq!(first["status"]["conditions"][0]["type"], "Ready");
    assert_eq!(first["status"]["conditions"][0]["status"], "True");
    let range = json!({"metadata": {"name": "more", "finalizers": ["networking.k8s.io/service-cidr-finalizer"]},
        "spec": {"cidrs": ["10.99.0.0/28"]}});
    assert_eq!(admin(&server, "POST", RANGES, range).await.code, 201);
    let ask = json!({"clusterIP": "10.99.0.5"});
    tell(&server, "more", false).await;
    let (code, refused) = make(&server, "early", ask.clone()).await;
    assert_eq!(code, 422);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("the provided network does not match the current range"),
        "{message}"
    );
    tell(&server, "more", true).await;
    let (code, made) = make(&server, "in-time", ask.clone()).await;
    assert_eq!(
        (code, made["spec"]["clusterIP"].as_str()),
        (201, Some("10.99.0.5"))
    );
    let held = admin(
        &server,
        "GET",
        &format!("{ADDRESSES}/10.99.0.5"),
        Value::Null,
    )
    .await
    .json();
    assert_eq!(held["spec"]["parentRef"]["name"], "in-time");
    let (code, refused) = make(&server, "again", ask).await;
    assert_eq!(code, 422);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("already allocated")
    );
    let (code, refused) = make(&server, "edge", json!({"clusterIP": "10.99.0.15"})).await;
    assert_eq!(code, 422);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("is not in the valid range")
    );
    admin(&server, "DELETE", &format!("{RANGES}/more"), Value::Null).await;
    let (code, _) = make(&server, "late", json!({"clusterIP": "10.99.0.6"})).await;
    assert_eq!(code, 422, "a range that is going gives nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_range_gives_its_last_address_and_then_the_next_range_is_used() {
    let server = Server::configured(|config, _| {
        config.service_cidrs = vec![("10.77.0.0".parse().unwrap(), 28)];
    })
    .await;
    // 14 usable addresses; the service `kubernetes` has the first.
    let all = (0..13).map(|n| {
        let server = &server;
        async move { make(server, &format!("s{n}"), Value::Null).await }
    });
    let made = futures::future::join_all(all).await;
    let addresses: BTreeSet<String> = made
        .iter()
        .map(|(code, service)| {
            assert_eq!(*code, 201, "{service}");
            service["spec"]["clusterIP"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(addresses.len(), 13, "{addresses:?}");
    let (code, full) = make(&server, "one-too-many", Value::Null).await;
    assert_eq!(code, 500);
    assert!(
        full["message"].as_str().unwrap().contains("range is full"),
        "{full}"
    );
    let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.78.0.0/24"]}});
    assert_eq!(admin(&server, "POST", RANGES, range).await.code, 201);
    tell(&server, "more", true).await;
    let (code, made) = make(&server, "next", Value::Null).await;
    assert_eq!(code, 201, "{made}");
    assert!(
        made["spec"]["clusterIP"]
            .as_str()
            .unwrap()
            .starts_with("10.78.0.")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn services_have_one_family_or_two_as_they_ask() {
    let server = Server::configured(|config, _| {
        config
            .service_cidrs
            .push(("fd00:43::".parse().unwrap(), 112));
    })
    .await;
    let (_, single) = make(&server, "single", Value::Null).await;
    assert_eq!(single["spec"]["ipFamilies"], json!(["IPv4"]));
    assert_eq!(single["spec"]["ipFamilyPolicy"], "SingleStack");
    let (code, both) = make(
        &server,
        "both",
        json!({"ipFamilyPolicy": "PreferDualStack"}),
    )
    .await;
    assert_eq!(code, 201, "{both}");
    assert_eq!(both["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    let second = both["spec"]["clusterIPs"][1].as_str().unwrap().to_owned();
    assert!(second.starts_with("fd00:43::"), "{second}");
    let six = json!({"ipFamilies": ["IPv6"]});
    let (_, six) = make(&server, "six", six).await;
    assert!(
        six["spec"]["clusterIP"]
            .as_str()
            .unwrap()
            .starts_with("fd00:43::")
    );
    let path = format!("{SERVICES}/both");
    let alone = json!({"spec": {"ipFamilyPolicy": "SingleStack"}});
    let changed = admin(&server, "PATCH", &path, alone).await.json();
    assert_eq!(
        changed["spec"]["clusterIPs"].as_array().unwrap().len(),
        1,
        "{changed}"
    );
    let freed = admin(
        &server,
        "GET",
        &format!("{ADDRESSES}/{second}"),
        Value::Null,
    )
    .await;
    assert_eq!(freed.code, 404, "the second address is free again");
    let again = json!({"spec": {"ipFamilyPolicy": "RequireDualStack"}});
    let changed = admin(&server, "PATCH", &path, again).await.json();
    assert_eq!(
        changed["spec"]["clusterIPs"].as_array().unwrap().len(),
        2,
        "{changed}"
    );

    let four = Server::start().await;
    let (code, refused) = make(&four, "x", json!({"ipFamilyPolicy": "RequireDualStack"})).await;
    assert_eq!(code, 422);
    assert_eq!(
        refused["details"]["causes"][0]["field"],
        "spec.ipFamilyPolicy"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_address_comes_back_to_its_service() {
    let server = Server::start().await;
    let (_, service) = make(&server, "web", Value::Null).await;
    let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let path = format!("{ADDRESSES}/{address}");
    let before = admin(&server, "GET", &path, Value::Null).await.json();
    assert_eq!(admin(&server, "DELETE", &path, Value::Null).await.code, 200);
    let back = eventually(|| async {
        let back = admin(&server, "GET", &path, Value::Null).await;
        (back.code == 200).then(|| back.json())
    })
    .await;
    assert_ne!(back["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(back["spec"], before["spec"]);
    assert_eq!(
        admin(&server, "DELETE", &format!("{SERVICES}/web"), Value::Null)
            .await
            .code,
        200
    );
    let gone = admin(&server, "GET", &path, Value::Null).await;
    assert_eq!(gone.code, 404, "it goes with its service");
}

#[tokio::test(flavor = "multi_thread")]
async fn leaked_addresses_are_released_with_an_event() {
    let clock = stdx::FakeClock::at(stdx::Clock::now(&stdx::SystemClock));
    let limits = apiserver::Limits::default();
    let server = Server::start_on(limits, std::sync::Arc::new(clock.clone())).await;
    let (_, service) = make(&server, "web", Value::Null).await;
    let held = service["spec"]["clusterIP"].as_str().unwrap();
    for (name, of) in [("10.43.0.61", "gone"), ("10.43.0.62", "web")] {
        let leak = json!({"metadata": {"name": name, "labels": {
                "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
            "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": of}}});
        let made = admin(&server, "POST", ADDRESSES, leak).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    let events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DIPAddress";
    let reported = eventually(|| async {
        clock.advance(std::time::Duration::from_secs(61));
        let events = admin(&server, "GET", events, Value::Null).await.json();
        let reported = events["items"].as_array().unwrap().clone();
        (reported.len() == 2).then_some(reported)
    })
    .await;
    let mut reported: Vec<&str> = reported
        .iter()
        .map(|event| event["message"].as_str().unwrap())
        .collect();
    reported.sort_unstable();
    assert_eq!(
        reported,
        [
            "IPAddress: 10.43.0.61 for Service default/gone appears to have leaked: cleaning up",
            "IPAddress: 10.43.0.62 for Service default/web has a wrong reference; cleaning up",
        ]
    );
    for (name, code) in [("10.43.0.61", 404), ("10.43.0.62", 404), (held, 200)] {
        let read = admin(&server, "GET", &format!("{ADDRESSES}/{name}"), Value::Null).await;
        assert_eq!(read.code, code, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_a_deleted_range_is_reported_once() {
    let clock = stdx::FakeClock::at(stdx::Clock::now(&stdx::SystemClock));
    let limits = apiserver::Limits::default();
    let server = Server::start_on(limits, std::sync::Arc::new(clock.clone())).await;
    let ranges = "/apis/networking.k8s.io/v1/servicecidrs";
    let range = json!({"metadata": {"name": "more"}, "spec": {"cidrs": ["10.99.0.0/24"]}});
    assert_eq!(admin(&server, "POST", ranges, range).await.code, 201);
    let (code, made) = make(&server, "web", json!({"clusterIP": "10.99.0.7"})).await;
    assert_eq!(code, 201, "{made}");
    let path = format!("{ranges}/more");
    let gone = admin(&server, "DELETE", &path, Value::Null).await;
    assert_eq!(gone.code, 200, "{}", gone.body);
    let events = "/api/v1/namespaces/default/events?fieldSelector=involvedObject.kind%3DService";
    let reported = || async {
        let events = admin(&server, "GET", events, Value::Null).await.json();
        events["items"].as_array().unwrap().clone()
    };
    eventually(|| async {
        clock.advance(std::time::Duration::from_secs(61));
        (!reported().await.is_empty()).then_some(())
    })
    .await;
    // A leaked address that is freed later shows that another repair pass has run.
    let lost = json!({"metadata": {"name": "10.43.0.61", "labels": {
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "gone"}}});
    assert_eq!(admin(&server, "POST", ADDRESSES, lost).await.code, 201);
    eventually(|| async {
        clock.advance(std::time::Duration::from_secs(61));
        let path = format!("{ADDRESSES}/10.43.0.61");
        let read = admin(&server, "GET", &path, Value::Null).await;
        (read.code == 404).then_some(())
    })
    .await;
    let reported = reported().await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert_eq!(reported[0]["reason"], "ClusterIPOutOfRange");
    assert_eq!(
        reported[0]["message"],
        "Cluster IP [IPv4]: 10.99.0.7 is not within any configured Service CIDR; please recreate service"
    );
    assert_eq!(
        reported[0]["reportingComponent"],
        "ipallocator-repair-controller"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_stays_held_over_a_restart_and_leaks_are_freed() {
    let server = Server::start().await;
    let mut wanted = json!({"type": "NodePort", "clusterIP": "10.43.0.50"});
    wanted["ports"] = json!([{"port": 80, "nodePort": 30050}]);
    assert_eq!(make(&server, "web", wanted.clone()).await.0, 201);
    let leak = json!({"metadata": {"name": "10.43.0.51", "labels": {
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            "ipaddress.kubernetes.io/ip-family": "IPv4"}},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "gone"}}});
    let made = admin(&server, "POST", ADDRESSES, leak).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let server = server.restart().await;
    let (code, refused) = make(&server, "other", wanted).await;
    assert_eq!(code, 422, "{refused}");
    eventually(|| async {
        let leaked = admin(
            &server,
            "GET",
            &format!("{ADDRESSES}/10.43.0.51"),
            Value::Null,
        )
        .await;
        (leaked.code == 404).then_some(())
    })
    .await;
    let kept = admin(
        &server,
        "GET",
        &format!("{ADDRESSES}/10.43.0.50"),
        Value::Null,
    )
    .await;
    assert_eq!(kept.code, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_load_balancer_holds_a_port_for_health_checks() {
    let server = Server::start().await;
    let local = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let (code, made) = make(&server, "lb", local.clone()).await;
    assert_eq!(code, 201, "{made}");
    let port = made["spec"]["healthCheckNodePort"].as_u64().unwrap();
    assert!((30000..=32767).contains(&port));
    let mut same = local;
    same["healthCheckNodePort"] = port.into();
    let (code, refused) = make(&server, "rival", same).await;
    assert_eq!(code, 500, "{refused}");
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .contains("provided port is already allocated")
    );
    let cluster = json!({"spec": {"externalTrafficPolicy": "Cluster"}});
    let path = format!("{SERVICES}/lb");
    let changed = admin(&server, "PATCH", &path, cluster).await.json();
    assert!(
        changed["spec"].get("healthCheckNodePort").is_none(),
        "{changed}"
    );
    let (code, made) = make(
        &server,
        "heir",
        json!({"type": "NodePort",
        "ports": [{"port": 80, "nodePort": port}]}),
    )
    .await;
    assert_eq!(code, 201, "the port is free again: {made}");
}
