//! One object in several versions and groups.

use machinery::json::{Value, json};

use crate::support::{Server, admin};

#[tokio::test(flavor = "multi_thread")]
async fn an_event_is_the_same_in_both_groups() {
    let server = Server::start().await;
    let core = "/api/v1/namespaces/default/events";
    let new = "/apis/events.k8s.io/v1/namespaces/default/events";
    let event = json!({"metadata": {"name": "e"}, "reason": "Tested", "message": "all is well",
        "type": "Normal", "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "source": {"component": "test"}, "count": 2});
    let made = admin(&server, "POST", core, event).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let read = admin(&server, "GET", &format!("{new}/e"), Value::Null)
        .await
        .json();
    assert_eq!(read["apiVersion"], "events.k8s.io/v1");
    assert_eq!(
        (read["note"].as_str(), read["regarding"]["name"].as_str()),
        (Some("all is well"), Some("p"))
    );
    assert_eq!(
        (
            &read["deprecatedCount"],
            &read["deprecatedSource"]["component"]
        ),
        (&json!(2), &json!("test"))
    );
    assert_eq!(
        read["metadata"]["resourceVersion"],
        made.json()["metadata"]["resourceVersion"]
    );
    let list = admin(&server, "GET", new, Value::Null).await.json();
    assert_eq!(
        (list["kind"].as_str(), list["items"][0]["note"].as_str()),
        (Some("EventList"), Some("all is well"))
    );
    let selected = format!("{core}?fieldSelector=involvedObject.name%3Dp,reason%3DTested");
    assert_eq!(
        admin(&server, "GET", &selected, Value::Null).await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let event = json!({"metadata": {"name": "f"}, "eventTime": "2026-01-01T00:00:00.000000Z", "action": "Test",
        "reason": "Tested", "note": "fine", "type": "Normal", "reportingController": "example.com/test",
        "reportingInstance": "t-1", "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}});
    let made = admin(&server, "POST", new, event).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let read = admin(&server, "GET", &format!("{core}/f"), Value::Null)
        .await
        .json();
    assert_eq!(
        (
            read["message"].as_str(),
            read["involvedObject"]["name"].as_str()
        ),
        (Some("fine"), Some("p"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_autoscaler_speaks_both_versions() {
    let server = Server::start().await;
    let v1 = "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers";
    let v2 = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    let scaler = json!({"metadata": {"name": "h"}, "spec": {"maxReplicas": 5,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "targetCPUUtilizationPercentage": 70}});
    let made = admin(&server, "POST", v1, scaler).await;
    assert_eq!(made.code, 201, "{}", made.body);
    let read = admin(&server, "GET", &format!("{v2}/h"), Value::Null)
        .await
        .json();
    assert_eq!(
        read["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"],
        70
    );
    let changed = admin(
        &server,
        "PATCH",
        &format!("{v2}/h"),
        json!({"spec": {"maxReplicas": 9}}),
    )
    .await;
    assert_eq!(changed.code, 200, "{}", changed.body);
    let read = admin(&server, "GET", &format!("{v1}/h"), Value::Null)
        .await
        .json();
    assert_eq!(
        (
            &read["spec"]["maxReplicas"],
            &read["spec"]["targetCPUUtilizationPercentage"]
        ),
        (&json!(9), &json!(70))
    );
    assert_eq!(read["apiVersion"], "autoscaling/v1");
}
