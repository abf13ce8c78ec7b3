//! Many custom resource definitions: their memory, and how long discovery and OpenAPI documents
//! take.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    load,
    peer::Peer,
    policies::{DEFINITIONS, until},
    process,
    report::Figures,
    scenario::{self, NUMBER},
};

const CONNECTIONS: usize = 4;
const GROUP_PART: &str = "definitions.example.com";
/// How long a server may take to process a change.
const SETTLES: Duration = Duration::from_secs(3);
/// How often a document is requested again.
const AGAIN: usize = 20;
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// Documents about all kinds: a name, the path, and the accepted media type.
const DOCUMENTS: [(&str, &str, &str); 4] = [
    ("discovery", "/apis", AGGREGATED),
    ("OpenAPI v3 index", "/openapi/v3", "application/json"),
    ("OpenAPI v2", "/openapi/v2", "application/json"),
    ("OpenAPI v2 protobuf", "/openapi/v2", PROTOBUF),
];

/// A field as generators write it: with a description, some with limits.
fn field(number: usize) -> Value {
    let about = format!(
        "Field {number} says how the controller treats this part of the object. It defaults to what the \
         controller was configured with and may be changed at any time."
    );
    match number % 4 {
        0 => {
            json!({"type": "string", "description": about, "maxLength": 253, "pattern": "^[a-z0-9.-]*$"})
        }
        1 => {
            json!({"type": "integer", "format": "int32", "description": about, "minimum": 0, "maximum": 1000})
        }
        2 => json!({"type": "array", "maxItems": 64, "description": about,
            "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string", "maxLength": 63, "description": "The name."},
                "value": {"type": "string", "maxLength": 1024, "description": "The value."}}}}),
        _ => json!({"type": "boolean", "default": false, "description": about}),
    }
}

/// Conditions as every controller has them.
fn status() -> Value {
    let text = |about: &str| json!({"type": "string", "maxLength": 1024, "description": about});
    json!({"type": "object", "properties": {"observedGeneration": {"type": "integer", "format": "int64"},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            "items": {"type": "object", "required": ["type", "status", "lastTransitionTime", "reason", "message"],
                "properties": {
                    "type": text("The type of the condition, in CamelCase."),
                    "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                    "lastTransitionTime": {"type": "string", "format": "date-time"},
                    "reason": text("Why the condition last changed, in CamelCase."),
                    "message": text("What a person should know about the last change."),
                    "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0}}}}}})
}

/// A definition of about eight kilobytes, with a number in its group and names.
fn definition() -> String {
    let fields: serde_json::Map<String, Value> = (0..24)
        .map(|number| (format!("field{number}"), field(number)))
        .collect();
    let spec = json!({"type": "object", "properties": fields, "x-kubernetes-validations": [
        {"rule": "!has(self.field1) || self.field1 < 1000", "message": "field1 must be less than 1000"},
        {"rule": "!has(self.field2) || self.field2.all(one, one.name != '')", "message": "names must not be empty"}]});
    let group = format!("g{NUMBER}.{GROUP_PART}");
    json!({
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList",
                "shortNames": ["wd"], "categories": ["all"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    {"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type=='Ready')].status"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
                    "spec": spec, "status": status()}}}}],
        },
    })
    .to_string()
}

/// The figures of many definitions.
pub(crate) struct Served {
    /// The memory of one definition at some points.
    pub kilobytes: Vec<(&'static str, f64)>,
    pub documents: Vec<Figures>,
}

/// Creates definitions, measures their memory and the documents, and deletes them.
pub(crate) fn run(peer: &Peer, count: usize) -> anyhow::Result<Served> {
    let settled = || {
        std::thread::sleep(SETTLES);
        process::kilobytes(&peer.processes)
    };
    let before = settled();
    let mut kilobytes = Vec::new();
    let mut note = |when: &'static str| {
        if let (Some(before), Some(now)) = (before, settled()) {
            let each = now.saturating_sub(before) as f64 / count.max(1) as f64;
            println!("{}: a definition costs {each:.1} KB {when}", peer.name);
            kilobytes.push((when, each));
        }
    };
    fill(peer, count)?;
    note("when they are served");
    let documents = documents(peer)?;
    note("after the documents");
    clean(peer, count)?;
    Ok(Served {
        kilobytes,
        documents,
    })
}

/// Creates definitions and waits until the last is served.
fn fill(peer: &Peer, count: usize) -> anyhow::Result<()> {
    let body = definition();
    println!("{}: {count} definitions of {} bytes", peer.name, body.len());
    let request = peer.request("POST", DEFINITIONS, "", &body);
    let request = String::from_utf8(request)?;
    let requests = move |number: u64, out: &mut Vec<u8>| {
        let number = format!("{number:016x}");
        out.extend_from_slice(request.replace(NUMBER, &number).as_bytes());
    };
    load::each(peer, CONNECTIONS, count, &requests)?;
    for number in 0..count {
        let path = format!("/apis/g{number:016x}.{GROUP_PART}/v1/widgets");
        until(|| peer.ask("GET", &path, "").is_ok())?;
    }
    Ok(())
}

/// How long each document takes: the first time, again, and after a change of one definition.
fn documents(peer: &Peer) -> anyhow::Result<Vec<Figures>> {
    let mut all = Vec::new();
    for (what, path, accept) in DOCUMENTS {
        let accept = format!("accept-encoding: gzip\r\naccept: {accept}\r\n");
        let request = String::from_utf8(peer.request("GET", path, &accept, ""))?;
        let request = request.replacen("accept: application/json\r\n", "", 1);
        let ask = |when: &str, times: usize| {
            let mut connection = peer.connect()?;
            let (begun, mut durations, mut bytes) = (Instant::now(), Vec::new(), 0);
            for _ in 0..times {
                let start = Instant::now();
                bytes += connection.exchange(request.as_bytes())?;
                durations.push(start.elapsed());
            }
            let (what, took) = (format!("{what}, {when}"), begun.elapsed());
            anyhow::Ok(Figures::of(
                &what,
                1,
                durations,
                bytes,
                took,
                Duration::ZERO,
            ))
        };
        all.push(ask("first", 1)?);
        all.push(ask("again", AGAIN)?);
        change(peer)?;
        all.push(ask("after a change", 1)?);
    }
    Ok(all)
}

/// Changes a definition's short name, and waits until it is served: upstream's documents follow
/// with a delay.
fn change(peer: &Peer) -> anyhow::Result<()> {
    let name = format!("widgets.g{:016x}.{GROUP_PART}", 0);
    let short = format!("w{:x}", scenario::nanoseconds());
    let patch = json!({"spec": {"names": {"shortNames": [short]}}});
    peer.ask(
        "PATCH",
        &format!("{DEFINITIONS}/{name}"),
        &patch.to_string(),
    )?;
    std::thread::sleep(SETTLES);
    Ok(())
}

fn clean(peer: &Peer, count: usize) -> anyhow::Result<()> {
    let request = peer.request(
        "DELETE",
        &format!("{DEFINITIONS}/widgets.g{NUMBER}.{GROUP_PART}"),
        "",
        "",
    );
    let request = String::from_utf8(request)?;
    let requests = move |number: u64, out: &mut Vec<u8>| {
        out.extend_from_slice(
            request
                .replace(NUMBER, &format!("{number:016x}"))
                .as_bytes(),
        );
    };
    load::each(peer, CONNECTIONS, count, &requests)
}
