//! The memory of a CustomResourceDefinition in the API server, counted in allocated bytes that were not freed.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "api/support.rs"]
#[allow(dead_code)]
mod support;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, Ordering},
};

use machinery::json::{Value, json};
use support::{Server, admin, eventually};

/// The maximum memory per definition, including its stored form and its discovery and OpenAPI documents.
const MOST: i64 = 50 * 1024;
/// Enough definitions that shared memory does not distort the average.
const COUNT: usize = 150;

struct Counting;

static ALLOCATED: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call is passed unchanged to the system allocator; this type only adds up sizes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A definition with a schema of thirty fields, two levels deep.
fn definition(i: usize) -> Value {
    let mut fields = json!({});
    for field in 0..10 {
        fields[format!("text{field}").as_str()] = json!({"type": "string", "maxLength": 63, "description": "What it is, in a sentence or so."});
        fields[format!("count{field}").as_str()] = json!({"type": "integer", "minimum": 0});
        fields[format!("more{field}").as_str()] =
            json!({"type": "object", "properties": {"enabled": {"type": "boolean"}}});
    }
    let (plural, kind) = (format!("things{i}"), format!("Thing{i}"));
    json!({
        "metadata": {"name": format!("{plural}.memory.example.com")},
        "spec": {
            "group": "memory.example.com",
            "scope": "Namespaced",
            "names": {"plural": plural.as_str(), "singular": kind.to_lowercase(), "kind": kind.as_str(), "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": fields},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
                }}},
                "subresources": {"status": {}}
            }]
        }
    })
}

async fn make(server: &Server, range: std::ops::Range<usize>) {
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for i in range.clone() {
        let made = admin(server, "POST", path, definition(i)).await;
        assert_eq!(made.code, 201, "{}", made.body);
    }
    for i in range {
        let path = format!("/apis/memory.example.com/v1/namespaces/default/things{i}");
        let served = || async { admin(server, "GET", &path, Value::Null).await.code == 200 };
        eventually(|| async { served().await.then_some(()) }).await;
    }
    // The documents that describe all definitions count, too.
    for path in [
        "/openapi/v2",
        "/openapi/v3/apis/memory.example.com/v1",
        "/apis",
    ] {
        assert_eq!(admin(server, "GET", path, Value::Null).await.code, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_costs_at_most_fifty_kibibytes() {
    let server = Server::start().await;
    make(&server, 0..10).await;
    let before = ALLOCATED.load(Ordering::Relaxed);
    make(&server, 10..10 + COUNT).await;
    let each = (ALLOCATED.load(Ordering::Relaxed) - before) / COUNT as i64;
    assert!(each <= MOST, "{each} bytes for each definition");
}
