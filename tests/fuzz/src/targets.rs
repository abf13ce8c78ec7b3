//! The fuzz targets. A target accepts any input without a panic, and can parse its own output
//! again.

use crate::dns;
use kinds::Context;
use machinery::apply::{self, Writer};
use machinery::decode::{self, Findings, Format};
use machinery::quantity::Quantity;
use machinery::schema::{self, Type};
use machinery::{Object, Value, encode, fields, labels, normalise, patch, protobuf, quantity};

/// A fuzz target.
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Valid inputs.
    pub seeds: &'static [&'static str],
}

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","labels":{"a":"b"},"finalizers":["x/y"],"managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}}}}}}]},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"b"}],"resources":{"limits":{"cpu":"100m","memory":"1Gi"}},"ports":[{"containerPort":80,"protocol":"TCP"}]}],"tolerations":[{"key":"k","operator":"Exists"}],"nodeSelector":{"a":"b"}}}"#;
const YAML: &str = "apiVersion: v1\nkind: Pod\nmetadata: &m\n  name: p\n  labels: {a: b}\nspec:\n  containers:\n  - name: c\n    image: \"i\"\n    args: [\"-x\", 'y']\n  nodeSelector:\n    <<: {a: b}\n    c: |\n      text\n";

/// Every target.
pub const ALL: &[Target] = &[
    Target {
        name: "selectors",
        run: selectors,
        seeds: &[
            "a=b,c!=d,e in (f,g),!h,i",
            "x.io/a notin (b, c),d==e",
            "metadata.name=a\\,b,spec.nodeName!=n",
        ],
    },
    Target {
        name: "quantities",
        run: quantities,
        seeds: &[
            "100m",
            "1.5Gi",
            "-12e3",
            "9223372036854775807",
            "0.000000001",
            "1E",
        ],
    },
    Target {
        name: "json",
        run: |input| objects(Format::Json, input),
        seeds: &[
            POD,
            r#"{"metadata":{"name":"a","name":"b"},"data":{"a":null}}"#,
        ],
    },
    Target {
        name: "yaml",
        run: |input| objects(Format::Yaml, input),
        seeds: &[YAML, POD, "a: &a [1]\nb: [*a, *a]\n"],
    },
    Target {
        name: "protobuf",
        run: protobufs,
        seeds: &[
            POD,
            r#"{"apiVersion":"v1","kind":"Pod","status":{"podIP":"10.0.0.1"}}"#,
        ],
    },
    Target {
        name: "patches",
        run: patches,
        seeds: &[
            r#"{"spec":{"containers":[{"name":"c","image":"j"},{"$patch":"delete","name":"d"}],"$setElementOrder/containers":[{"name":"c"}]},"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"],"labels":{"$patch":"replace","z":"1"}}}"#,
            r#"[{"op":"add","path":"/metadata/labels/x~1y","value":"1"},{"op":"test","path":"/spec/containers/0/name","value":"c"},{"op":"remove","path":"/spec/containers/-"},{"op":"move","from":"/a","path":"/b"}]"#,
            r#"{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}"#,
        ],
    },
    Target {
        name: "apply",
        run: applies,
        seeds: &[
            r#"{"spec":{"containers":[{"name":"c","image":"j"},{"name":"d"}]},"metadata":{"labels":{"x":"y"}}}"#,
            r#"{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}},"v:1":{},"i:0":{}}}}"#,
        ],
    },
    Target {
        name: "field_paths",
        run: field_paths,
        seeds: &[
            r#"{"f:metadata":{"f:labels":{".":{},"f:a":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}}}}}"#,
            r#"{"f:spec":{"f:ports":{"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{}},"f:list":{"v:\"a\"":{},"v:1":{},"i:0":{}}}}"#,
        ],
    },
    Target {
        name: "kinds",
        run: every_kind,
        seeds: &[
            POD,
            r#"{"spec":{"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}},"schedule":"*/5 * * * *","ports":[{"port":80,"targetPort":"http"}],"type":"NodePort","rules":[{"host":"a.b"}],"hard":{"pods":"1"},"limits":[{"type":"Container","max":{"cpu":"1"}}],"metrics":[{"type":"Resource"}],"versions":[{"name":"v1","schema":{"openAPIV3Schema":{"type":"object"}}}]},"rules":[{"verbs":["get"]}],"webhooks":[{"name":"a.b.c"}],"data":{"a":"Yg=="},"endpoints":[{"addresses":["10.0.0.1"]}]}"#,
        ],
    },
    Target {
        name: "dns_packets",
        run: dns::packet,
        seeds: dns::PACKETS,
    },
    Target {
        name: "corefiles",
        run: dns::corefile,
        seeds: dns::COREFILES,
    },
];

fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

fn pod() -> &'static Type {
    // The schema table always has it.
    schema::lookup("core/v1.Pod").expect("pods have a type")
}

fn live() -> Object {
    match decode::object(Format::Json, POD.as_bytes(), Some(pod())) {
        Ok(decoded) => decoded.object,
        Err(error) => panic!("the seed is no pod: {error}"),
    }
}

fn selectors(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(selector) = labels::Selector::parse(text) {
        let again = labels::Selector::parse(&selector.to_string());
        assert_eq!(again.as_ref(), Ok(&selector), "{text:?}");
        selector.matches(|key| (key.len() < 3).then_some("b"));
    }
    if let Ok(selector) = fields::Selector::parse(text) {
        selector.matches(|_| Some("b"));
    }
    if let Ok(value) = machinery::json::from_str::<Value>(text) {
        let _ = labels::Selector::from_label_selector(Some(&value));
    }
}

fn quantities(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(quantity) = text.parse::<Quantity>() {
        let shown = quantity.to_string();
        let again: Quantity = match shown.parse() {
            Ok(again) => again,
            Err(error) => panic!("{text:?} became {shown:?}: {error}"),
        };
        assert_eq!(again, quantity, "{text:?} became {shown:?}");
        assert_eq!(again.to_string(), shown, "{text:?}");
        let sum = quantity.plus(quantity).minus(quantity);
        let _ = (sum.value(), sum.millis());
    }
    for finest in [quantity::FINEST, quantity::MILLI] {
        let form = quantity::canonical(text, finest);
        assert_eq!(form.is_ok(), text.parse::<Quantity>().is_ok(), "{text:?}");
        if let Ok(form) = form {
            assert!(quantity::canonical(&form, finest).is_ok(), "{text:?}");
        }
    }
}

fn objects(format: Format, input: &[u8]) {
    let _ = decode::tree(format, input);
    let _ = decode::object(format, input, None);
    let Ok(decoded) = decode::object(format, input, Some(pod())) else {
        return;
    };
    // Normalization is idempotent.
    let bytes = encode::object(Some(pod()), &decoded.object).bytes;
    let again = match decode::object(Format::Json, &bytes, Some(pod())) {
        Ok(again) => again,
        Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&bytes)),
    };
    assert!(again.findings.is_empty(), "{:?}", again.findings);
    assert_eq!(again.object, decoded.object);
}

fn protobufs(input: &[u8]) {
    let read = |bytes: &[u8]| {
        let decoded = protobuf::decode(bytes).ok()?;
        protobuf::decode_message(pod(), &decoded).ok()
    };
    // The input itself, the input in an envelope, and the bytes of a pod with its changes.
    read(input);
    read(&protobuf::envelope("v1", "Pod", input));
    let Ok(decoded) = decode::object(Format::Json, input, Some(pod())) else {
        return;
    };
    let bytes = protobuf::encode(pod(), &decoded.object);
    assert!(read(&bytes).is_some(), "what was written can be read");
    for cut in [bytes.len() / 2, bytes.len().saturating_sub(1)] {
        read(&bytes[..cut]);
    }
}

fn patches(input: &[u8]) {
    let Ok(value) = machinery::json::from_slice::<Value>(input) else {
        return;
    };
    let live = live();
    let _ = patch::json::apply(&live, &value);
    if let Value::Object(object) = value {
        let mut merged = live.clone();
        patch::merge::apply(&mut merged, object.clone());
        for name in ["core/v1.Pod", "apps/v1.Deployment"] {
            if let Some(schema) = schema::lookup(name)
                && let Ok(patched) = patch::strategic::apply(schema, &live, &mut object.clone())
            {
                let patched = Value::Object(patched);
                let _ = normalise::object(schema, patched, &mut Findings::default());
            }
        }
    }
}

fn field_paths(input: &[u8]) {
    let Ok(value) = machinery::json::from_slice::<Value>(input) else {
        return;
    };
    let set = apply::FieldSet::from_json(&value);
    let written = set.to_json();
    assert_eq!(apply::FieldSet::from_json(&written).to_json(), written);
    // Properties of any two sets, here of this one and a pod's.
    let pod = live();
    let owned = &pod["metadata"]["managedFields"][0]["fieldsV1"];
    let other = apply::FieldSet::from_json(owned);
    let mut both = set.clone();
    both.union(&other);
    let mut parts = both.difference(&other);
    parts.union(&both.intersection(&other));
    assert_eq!(parts.paths(), both.paths());
    assert!(set.difference(&set).is_empty());
    assert_eq!(set.intersection(&set).paths(), set.paths());
    let _ = set.without_subtrees(&other);
    // An arbitrary managedFields entry is still compared with the object.
    let mut object = live();
    object["metadata"]["managedFields"][0]["fieldsV1"] = value;
    if let Ok(mut new) = normalise::object(
        self::pod(),
        Value::Object(object.clone()),
        &mut Findings::default(),
    ) {
        apply::keep_times(&mut new, &object);
    }
}

fn applies(input: &[u8]) {
    let Ok(value) = machinery::json::from_slice::<Value>(input) else {
        return;
    };
    let set = apply::FieldSet::from_json(&value);
    let again = apply::FieldSet::from_json(&set.to_json());
    assert_eq!(again.to_json(), set.to_json());
    let Ok(config) = normalise::object(pod(), value, &mut Findings::default()) else {
        return;
    };
    let Some(root) = apply::typed("core/v1.Pod") else {
        return;
    };
    let writer = Writer {
        manager: "fuzz",
        api_version: "v1",
        subresource: "",
        now: "2024-01-01T00:00:00Z",
        reset: &[],
        versions: &apply::OneVersion {
            api_version: "v1",
            root,
        },
    };
    let live = live();
    if let Ok(applied) = apply::apply(Some(&live), &config, &writer, true) {
        // Applying the same again changes nothing.
        let again = apply::apply(Some(&applied), &config, &writer, false);
        assert_eq!(again.as_ref().ok(), Some(&applied));
    }
    let _ = apply::apply(None, &config, &writer, false);
    let mut new = config;
    apply::track(Some(&live), &mut new, &writer);
}

fn every_kind(input: &[u8]) {
    let context = Context {
        now: "2024-01-01T00:00:00Z",
        user: "u",
    };
    let Ok(value) = machinery::json::from_slice::<Value>(input) else {
        return;
    };
    for kind in kinds::all() {
        let Some(schema) = kind.schema().and_then(schema::lookup) else {
            continue;
        };
        let Ok(mut object) = normalise::object(schema, value.clone(), &mut Findings::default())
        else {
            continue;
        };
        kind.default(&mut object);
        kind.prepare_create(&mut object, &context);
        kind.validate_create(&object);
        kind.warnings(&object, None);
        kind.row(&object, 1_700_000_000);
        kind.selectable_fields(&object);
        let mut new = object.clone();
        for subresource in [None, Some("status")] {
            kind.prepare_update(&mut new, &object, subresource, &context);
            kind.validate_update(&new, &object, subresource);
        }
    }
}
