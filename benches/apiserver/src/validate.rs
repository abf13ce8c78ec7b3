//! The cost of validating a custom object whose definition has many rules: CPU time of one thread,
//! so that the figures do not depend on other load.

use std::{hint::black_box, sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use apiextensions::{CustomKind, Schemas};
use kinds::Kind;
use serde_json::json;

use crate::policies;

const ROUNDS: u32 = 20_000;

/// Prints microseconds per object.
pub(crate) fn run() -> anyhow::Result<()> {
    let each = measure()?;
    println!(
        "an object with {} rules: {each:.1} \u{b5}s",
        policies::RULES
    );
    Ok(())
}

/// Microseconds per object.
pub(crate) fn measure() -> anyhow::Result<f64> {
    let definition = policies::definition("example.com").to_string();
    let read: machinery::Value = machinery::json::from_slice(definition.as_bytes())?;
    let version = &read["spec"]["versions"][0];
    let schemas = Arc::new(Schemas::new(definition.clone().into()));
    let kind = CustomKind::read(&read, version, schemas, "v1", 1);
    let fields = (0..policies::RULES).map(|number| (format!("field{number}"), json!("x")));
    let object = json!({"apiVersion": "example.com/v1", "kind": "Rule", "metadata": {"name": "one"},
        "spec": fields.collect::<serde_json::Map<_, _>>()});
    let object: machinery::Value = machinery::json::from_slice(object.to_string().as_bytes())?;
    let object = object.as_object().context("no object")?;
    let errors = kind.validate_create(object);
    ensure!(errors.is_empty(), "{errors:?}");
    let begun = cpu()?;
    for _ in 0..ROUNDS {
        black_box(kind.validate_create(black_box(object)));
    }
    Ok((cpu()? - begun).as_secs_f64() * 1e6 / f64::from(ROUNDS))
}

fn cpu() -> anyhow::Result<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Ok(Duration::new(
        time.tv_sec.try_into()?,
        time.tv_nsec.try_into()?,
    ))
}
