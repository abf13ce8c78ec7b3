//! Tables of accepted values, and of rejected ones with their errors.

use super::*;
use crate::json;

fn normalised(schema: &str, value: Value) -> (String, Vec<String>) {
    let mut findings = Findings::default();
    let schema = schema::lookup(schema).unwrap();
    match object(schema, value, &mut findings) {
        Ok(object) => (
            Value::Object(object).to_string(),
            findings.sentences().to_vec(),
        ),
        Err(error) => (error, findings.sentences().to_vec()),
    }
}

#[test]
fn a_value_that_is_neither_a_schema_nor_its_alternative_is_dropped_or_refused() {
    let definition = |keyword: &str, value: Value| {
        let schema = json!({"type": "object", keyword: value});
        let definition = json!({"spec": {"versions": [{"name": "v1", "served": true,
            "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
        normalised("apiextensions/v1.CustomResourceDefinition", definition).0
    };
    for value in [json!("x"), json!(5), json!([])] {
        let read = definition("items", value);
        assert!(
            read.contains(r#""openAPIV3Schema":{"type":"object"}"#),
            "{read}"
        );
    }
    for value in [json!("x"), json!(5), json!([])] {
        let read = definition("additionalProperties", value);
        assert_eq!(read, "boolean or JSON schema expected");
    }
}

#[test]
fn fields_are_ordered_and_zero_values_kept_as_by_go() {
    let pod = json!({
        "spec": {"containers": [{"image": "i", "name": "c", "command": [], "stdin": false,
            "resources": {"limits": {"memory": "1024Mi", "cpu": 1}}}],
            "terminationGracePeriodSeconds": 0, "hostNetwork": false, "nodeSelector": {}},
        "metadata": {"name": "p", "labels": {"b": "1", "a": "2"}, "creationTimestamp": null},
        "kind": "Pod", "apiVersion": "v1", "status": null,
    });
    let expected = concat!(
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"2","b":"1"}},"#,
        r#""spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1","memory":"1Gi"}}}],"#,
        r#""terminationGracePeriodSeconds":0},"status":{}}"#
    );
    assert_eq!(
        normalised("core/v1.Pod", pod),
        (expected.to_owned(), vec![])
    );
}

#[test]
fn unknown_fields_are_found_and_dropped() {
    let pod = json!({"spec": {"containers": [{"name": "c", "foo": 1}], "bar": {}}});
    let (_, findings) = normalised("core/v1.Pod", pod);
    let expected = [
        r#"unknown field "spec.containers[0].foo""#,
        r#"unknown field "spec.bar""#,
    ];
    assert_eq!(findings, expected);
}

#[test]
fn wrong_types_are_refused_with_gos_message() {
    let cases = [
        (
            json!({"spec": {"replicas": "x"}}),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            json!({"spec": {"replicas": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": [{"image": 1}]}}}}),
            "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.image of type string",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": {}}}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.template.spec.containers of type []v1.Container",
        ),
        (
            json!({"spec": {"template": {"spec": {"volumes": [{"hostPath": {"path": 1}}]}}}}),
            "json: cannot unmarshal number into Go struct field HostPathVolumeSource.spec.template.spec.volumes.VolumeSource.hostPath.path of type string",
        ),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            json!([]),
            "json: cannot unmarshal array into Go value of type v1.Deployment",
        ),
    ];
    for (value, message) in cases {
        assert_eq!(normalised("apps/v1.Deployment", value).0, message);
    }
}

#[test]
fn fields_of_closed_gates_are_kept_and_not_stored() {
    let lease = json!({"spec": {"holderIdentity": "x", "strategy": "OldestEmulationVersion"}});
    let mut findings = Findings::default();
    let schema = schema::lookup("coordination/v1.Lease").unwrap();
    let lease = object(schema, lease, &mut findings).unwrap();
    assert_eq!(lease["spec"]["strategy"], "OldestEmulationVersion");
    let stored = crate::encode::object(Some(schema), &lease).bytes;
    assert_eq!(stored, br#"{"metadata":{},"spec":{"holderIdentity":"x"}}"#);
    assert_eq!(findings, Findings::default());
}

#[test]
fn secrets_keep_their_bytes_and_events_their_null_times() {
    let secret = json!({"data": {"b": "AB==", "a": "AA\n=="}});
    let (text, _) = normalised("core/v1.Secret", secret);
    assert_eq!(text, r#"{"metadata":{},"data":{"a":"AA==","b":"AA=="}}"#);
    let (text, _) = normalised("core/v1.Secret", json!({"data": {"a": "A!=="}}));
    assert_eq!(text, "illegal base64 data at input byte 1");
    let (text, _) = normalised("core/v1.Event", json!({"eventTime": null}));
    assert!(text.contains(r#""firstTimestamp":null"#), "{text}");
}

#[test]
fn resources_are_no_finer_than_thousandths() {
    let pod = json!({"spec": {"overhead": {"cpu": "100u"}, "containers": []}});
    let (text, _) = normalised("core/v1.Pod", pod);
    assert!(text.contains(r#""overhead":{"cpu":"1m"}"#), "{text}");
}

#[test]
fn normalising_twice_changes_nothing() {
    let once = normalised("apps/v1.Deployment", json!({"spec": {"paused": false}})).0;
    let twice = normalised("apps/v1.Deployment", crate::json::from_str(&once).unwrap()).0;
    assert_eq!(once, twice);
}

#[test]
fn validated_empty_lists_are_kept_until_the_object_is_encoded() {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"overhead": {}, "tolerations": [],
        "containers": [{"name": "c", "ports": [], "resources": {"limits": {}, "claims": []}}],
        "ephemeralContainers": [{"name": "e", "ports": [], "resources": {}}]}});
    let schema = schema::lookup("core/v1.Pod").unwrap();
    let read = object(schema, pod.clone(), &mut Findings::default()).unwrap();
    let spec = &read["spec"];
    assert_eq!(spec["overhead"], json!({}));
    assert_eq!(spec["tolerations"], Value::Null);
    assert_eq!(spec["containers"][0]["ports"], Value::Null);
    assert_eq!(
        spec["containers"][0]["resources"],
        json!({"limits": {}, "claims": []})
    );
    assert_eq!(spec["ephemeralContainers"][0]["ports"], json!([]));
    let bytes = crate::encode::object(Some(schema), &read).bytes;
    let written = String::from_utf8(bytes).unwrap();
    assert!(
        written.contains(r#"{"name":"c","resources":{}}"#) && !written.contains("overhead"),
        "{written}"
    );
    // The fast path gives the same.
    let text = pod.to_string();
    let decoded = crate::decode::object(crate::decode::Format::Json, text.as_bytes(), Some(schema));
    assert_eq!(decoded.unwrap().object, read);
}

#[test]
fn of_several_errors_the_most_severe_is_returned() {
    let reported = |value: Value| normalised("core/v1.Event", value).0;
    let count =
        "json: cannot unmarshal string into Go struct field EventSeries.series.count of type int32";
    let series = json!({"count": "1"});
    assert_eq!(
        reported(json!({"series": series, "type": 1, "metadata": {"labels": {"a": 1}}})),
        count
    );
    // An error of a type that parses itself ends decoding.
    let time = reported(json!({"series": series, "eventTime": "yesterday", "type": 1}));
    assert!(time.starts_with("parsing time \"yesterday\""), "{time}");
    let surge = json!({"spec": {"replicas": "1", "strategy": {"rollingUpdate": {"maxSurge": []}}, "paused": 1}});
    assert_eq!(
        normalised("apps/v1.Deployment", surge).0,
        "json: cannot unmarshal array into Go struct field RollingUpdateDeployment.spec.strategy.rollingUpdate.maxSurge of type int32"
    );
}
