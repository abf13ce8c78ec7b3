//! What the steps of one write cost, from bytes to bytes: CPU time of one thread, so that a busy
//! machine gives the same figures as an idle one.
//!
//! `cargo run --release -p bench-machinery`
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "it prints its results")]

use kinds::{Context, Kind};
use machinery::decode::{self, Format};
use machinery::schema::{self, Type};
use machinery::{Object, apply, encode, protobuf};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

const ROUNDS: u32 = 5_000;
const POD: &str = include_str!("pod.json");
const CONFIG_MAP: &str = include_str!("config_map.json");

fn main() {
    let start = cpu();
    schema::all();
    println!("schema table read in {:.1} ms\n", (cpu() - start) * 1e3);
    println!("{:<12}{:>24}{:>12}", "object", "step", "µs");
    for (name, plural, text) in [
        ("ConfigMap", "configmaps", CONFIG_MAP),
        ("Pod", "pods", POD),
    ] {
        let Some(kind) = kinds::find("", "v1", plural) else {
            continue;
        };
        if let Some(schema) = kind.schema().and_then(schema::lookup) {
            measure(name, kind, schema, text.as_bytes());
        }
    }
}

/// Seconds of CPU time that this thread has used.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn step(object: &str, name: &str, mut run: impl FnMut()) {
    run();
    let start = cpu();
    for _ in 0..ROUNDS {
        run();
    }
    let micros = (cpu() - start) * 1e6 / f64::from(ROUNDS);
    println!("{object:<12}{name:>24}{micros:>12.1}");
}

fn measure(name: &str, kind: &'static dyn Kind, schema: &'static Type, text: &[u8]) {
    let read = || {
        decode::object(Format::Json, text, Some(schema))
            .map(|d| d.object)
            .unwrap_or_default()
    };
    let mut object = read();
    let context = Context {
        now: "2024-01-01T00:00:00Z",
        user: "bench",
    };
    let writer = apply::Writer {
        manager: "bench",
        api_version: "v1",
        subresource: "",
        now: context.now,
        reset: &[&["status"]],
        versions: &apply::OneVersion {
            api_version: "v1",
            root: apply::Root::Typed(schema),
        },
    };
    kind.default(&mut object);
    kind.prepare_create(&mut object, &context);
    let copy = |change: &dyn Fn(&mut Object)| {
        let mut copy = object.clone();
        change(&mut copy);
        black_box(copy);
    };
    step(name, "parse", || {
        drop(black_box(decode::tree(Format::Json, text)))
    });
    step(name, "parse + normalise", || drop(black_box(read())));
    step(name, "copy", || copy(&|_| {}));
    step(name, "copy + default", || copy(&|o| kind.default(o)));
    step(name, "validate", || {
        drop(black_box(kind.validate_create(&object)))
    });
    step(name, "copy + managedFields", || {
        copy(&|o| apply::track(None, o, &writer));
    });
    step(name, "encode", || {
        drop(black_box(encode::object(Some(schema), &object)))
    });
    step(name, "protobuf", || {
        drop(black_box(protobuf::encode(schema, &object)))
    });
}
