//! `kubectl describe`: what an object is and what happened to it.

mod generic;
mod pod;
mod text;
mod workload;

use anyhow::Result;
use clap::Args;
use serde_json::Value;

use crate::{
    args::Selection,
    discovery::{Discovery, encode},
    output::table::Table,
    resources::{self, Target},
    session::Session,
};

use text::Text;

/// Flags of `describe`.
#[derive(Debug, Args)]
pub struct Describe {
    /// TYPE [NAME…] or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    /// Show events too
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    show_events: bool,
}

impl Describe {
    pub async fn run(self, session: &Session) -> Result<()> {
        let discovery = Discovery::load(&session.api).await?;
        let targets =
            resources::targets(session, &discovery, &self.selection, &self.resources, true).await?;
        for (at, target) in targets.iter().enumerate() {
            if at > 0 {
                println!("\n");
            }
            let object = session.api.get(&target.path()).await?;
            print!("{}", describe(&object));
            if self.show_events {
                print!("{}", events(session, target, &object).await?);
            }
        }
        Ok(())
    }
}

/// The text of one object.
fn describe(object: &Value) -> String {
    let mut text = Text::default();
    head(&mut text, object);
    match object["kind"].as_str().unwrap_or_default() {
        "Pod" => pod::body(&mut text, object),
        "Deployment" | "ReplicaSet" => workload::body(&mut text, object),
        _ => generic::body(&mut text, object),
    }
    text.finish()
}

fn head(text: &mut Text, object: &Value) {
    let metadata = &object["metadata"];
    text.field("Name", &metadata["name"]);
    if !metadata["namespace"].is_null() {
        text.field("Namespace", &metadata["namespace"]);
    }
    if object["kind"] != "Pod" {
        text.map("Labels", &metadata["labels"]);
        text.map("Annotations", &metadata["annotations"]);
    }
}

/// The events about an object, oldest first, as a table.
async fn events(session: &Session, target: &Target, object: &Value) -> Result<String> {
    let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
    let namespace = if target.resource.namespaced {
        target.namespace.as_str()
    } else {
        "default"
    };
    let selector = format!("involvedObject.uid={uid}");
    let path = format!(
        "/api/v1/namespaces/{namespace}/events?fieldSelector={}",
        encode(&selector)
    );
    let list = session.api.get(&path).await?;
    let mut events = list["items"].as_array().cloned().unwrap_or_default();
    if events.is_empty() {
        return Ok("Events:            <none>\n".into());
    }
    events.sort_by_key(|event| last_seen(event).to_owned());
    let row = |event: &Value| {
        let cell = |value: &Value| value.as_str().unwrap_or_default().trim().to_owned();
        let component = [&event["source"]["component"], &event["reportingComponent"]];
        let from = component
            .into_iter()
            .map(cell)
            .find(|name| !name.is_empty())
            .unwrap_or_default();
        vec![
            format!("  {}", cell(&event["type"])),
            cell(&event["reason"]),
            age(event),
            from,
            cell(&event["message"]),
        ]
    };
    let headings = ["  Type", "Reason", "Age", "From", "Message"]
        .map(str::to_owned)
        .to_vec();
    let mut rows = vec![
        ["  ----", "------", "----", "----", "-------"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(events.iter().map(row));
    Ok(format!(
        "Events:\n{}",
        Table { headings, rows }.render(false)
    ))
}

fn last_seen(event: &Value) -> &str {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
    ];
    times
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or_default()
}

fn age(event: &Value) -> String {
    let now = jiff::Timestamp::now();
    let since = |text: &str| {
        text.parse()
            .map_or_else(|_| "<unknown>".into(), |at| text::age(at, now))
    };
    let count = event["series"]["count"]
        .as_i64()
        .or(event["count"].as_i64())
        .unwrap_or(1);
    let last = since(last_seen(event));
    if count <= 1 {
        return last;
    }
    let first = event["firstTimestamp"]
        .as_str()
        .or(event["eventTime"].as_str())
        .unwrap_or_default();
    format!("{last} (x{count} over {})", since(first))
}
