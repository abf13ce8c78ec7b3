//! `kubectl events`

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    api::{Query, with_query},
    error,
    json::str_of,
    merge,
    output::{PrintFlags, Printer, escape_terminal, table::Table, tabwriter::Tabwriter},
    session::Session,
};

/// Flags of `events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Filter events to only those pertaining to the specified resource, as TYPE/NAME
    #[arg(long = "for", value_name = "TYPE/NAME")]
    about: Option<String>,
    /// Output only events of given types
    #[arg(long, value_delimiter = ',', value_name = "TYPE")]
    types: Vec<String>,
    /// List the requested object(s) across all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// After listing the requested events, watch for more events
    #[arg(short, long)]
    watch: bool,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// Return large lists in chunks
    #[arg(long, default_value_t = 500)]
    chunk_size: i64,
    #[command(flatten)]
    print: PrintFlags,
}

impl Events {
    pub(crate) async fn run(mut self, session: &Session) -> Result<()> {
        let path = self.path(session).await?;
        let printer = self.print.printer()?;
        let is_known = |kind: &String| {
            let mut known = ["Normal", "Warning"].into_iter();
            known.any(|known| known.eq_ignore_ascii_case(kind))
        };
        self.types.retain(|kind| !kind.is_empty());
        if !self.types.iter().all(is_known) {
            bail!("valid --types are Normal or Warning");
        }
        if self.watch {
            return self.follow(session, &path, printer.as_ref()).await;
        }
        let answer = session
            .api
            .list(&path, "application/json", self.chunk_size)
            .await?;
        let mut events: Vec<Value> = crate::json::list(&answer["items"])
            .filter(|event| self.wants(event))
            .map(typed)
            .collect();
        events.sort_by_key(last_seen_at);
        match &printer {
            _ if events.is_empty() && self.all_namespaces => eprintln!("No events found."),
            _ if events.is_empty() => {
                eprintln!("No events found in {} namespace.", session.namespace)
            }
            Some(printer) => printer.print_typed(
                &json!({"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": events}),
            )?,
            None => {
                let mut writer = Tabwriter::for_tables();
                let table = self.table(&events);
                print!("{}", table.render_with(&mut writer, self.no_headers));
            }
        }
        Ok(())
    }

    /// Prints the events that there are and those that come.
    async fn follow(&self, session: &Session, path: &str, printer: Option<&Printer>) -> Result<()> {
        let mut writer = Tabwriter::for_tables();
        let mut hides_headings = self.no_headers;
        let path = with_query(path, &[("watch", "true".into())]);
        let mut stream = Box::pin(session.api.watch(&path, "application/json").await?);
        let end = session.api.timeout();
        let end = end.map(|timeout| tokio::time::Instant::now() + timeout);
        loop {
            // A timeout is not a failure of a watch.
            let event = match end {
                Some(end) => tokio::time::timeout_at(end, stream.next())
                    .await
                    .unwrap_or(None),
                None => stream.next().await,
            };
            let Some(event) = event else { break };
            let event = event?;
            if matches!(str_of(&event["type"]), "DELETED" | "BOOKMARK" | "ERROR")
                || !self.wants(&event["object"])
            {
                continue;
            }
            let event = typed(&event["object"]);
            match printer {
                Some(printer) => printer.print_typed(&event)?,
                None => {
                    let table = self.table(std::slice::from_ref(&event));
                    print!("{}", table.render_with(&mut writer, hides_headings));
                    hides_headings = true;
                }
            }
        }
        Ok(())
    }

    async fn path(&self, session: &Session) -> Result<String> {
        let path = match self.all_namespaces {
            true => "/api/v1/events".to_owned(),
            false => format!("/api/v1/namespaces/{}/events", session.namespace),
        };
        let mut query: Query = Vec::new();
        if let Some(about) = self.about.as_ref().filter(|about| !about.is_empty()) {
            let Some((kind, name)) = about.split_once('/') else {
                bail!("--for must be in resource/name form");
            };
            if name.contains('/') {
                bail!("arguments in resource/name form may not have more than one slash");
            }
            let found = session.discovery.resolve(kind).await;
            let resource = found.map_err(|error| error::Plain(error.to_string()))?;
            let selector = format!(
                "involvedObject.kind={},involvedObject.apiVersion={},involvedObject.name={name}",
                resource.kind,
                resource.api_version()
            );
            if !name.is_empty() {
                query.push(("fieldSelector", selector));
            }
        }
        Ok(with_query(&path, &query))
    }

    fn wants(&self, event: &Value) -> bool {
        let kind = str_of(&event["type"]);
        self.types.is_empty()
            || self
                .types
                .iter()
                .any(|wanted| wanted.eq_ignore_ascii_case(kind))
    }

    fn table(&self, events: &[Value]) -> Table {
        let mut table = Table::with_headings(&["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]);
        if self.all_namespaces {
            table.headings.insert(0, "NAMESPACE".into());
        }
        for event in events {
            let about = &event["involvedObject"];
            let mut row = vec![
                interval(event),
                escape_terminal(str_of(&event["type"])),
                escape_terminal(str_of(&event["reason"])),
                escape_terminal(&format!(
                    "{}/{}",
                    str_of(&about["kind"]),
                    str_of(&about["name"])
                )),
                escape_terminal(str_of(&event["message"]).trim()),
            ];
            if self.all_namespaces {
                row.insert(0, str_of(&event["metadata"]["namespace"]).to_owned());
            }
            table.rows.push(row);
        }
        table
    }
}

/// An event as Go's types serialize it; lists leave out the kind.
fn typed(event: &Value) -> Value {
    let mut event = event.clone();
    event["apiVersion"] = json!("v1");
    event["kind"] = json!("Event");
    merge::typed(&event)
}

/// The same as a time: some have fractions of seconds.
fn last_seen_at(event: &Value) -> Option<jiff::Timestamp> {
    last_seen(event).parse().ok()
}

/// When an event was last seen.
pub(super) fn last_seen(event: &Value) -> &str {
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

/// `5s`, or `5s (x3 over 2m)`.
pub(super) fn interval(event: &Value) -> String {
    let now = jiff::Timestamp::now().as_second();
    let since = |text: &str| machinery::time::age(Some(text), now);
    let first = event["eventTime"]
        .as_str()
        .unwrap_or(str_of(&event["firstTimestamp"]));
    let count = event["count"].as_i64().unwrap_or(0);
    let (count, last) = match event["series"].as_object() {
        Some(series) => (
            series.get("count").and_then(Value::as_i64).unwrap_or(0),
            series.get("lastObservedTime"),
        ),
        None if count > 1 => (count, event.get("lastTimestamp")),
        None => return since(first),
    };
    let last = last.and_then(Value::as_str).unwrap_or_default();
    format!("{} (x{count} over {})", since(last), since(first))
}
