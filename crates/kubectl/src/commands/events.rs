//! `kubectl events`

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    api::{Query, with_query},
    error,
    json::str_of,
    output::{
        PrintFlags,
        table::{Table, escape},
        tabwriter::Tabwriter,
    },
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
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        for kind in &self.types {
            if !["Normal", "Warning"]
                .iter()
                .any(|known| known.eq_ignore_ascii_case(kind))
            {
                bail!("valid --types are Normal or Warning");
            }
        }
        let printer = self.print.printer()?;
        let path = self.path(session).await?;
        let answer = session
            .api
            .list(&path, "application/json", self.chunk_size)
            .await?;
        let mut events: Vec<Value> = crate::json::list(&answer["items"])
            .filter(|event| self.wants(event))
            .cloned()
            .collect();
        events.sort_by_key(|event| last_seen(event).to_owned());
        let mut writer = Tabwriter::for_tables();
        let nothing = events.is_empty() && !self.watch;
        match &printer {
            _ if nothing && self.all_namespaces => eprintln!("No events found."),
            _ if nothing => eprintln!("No events found in {} namespace.", session.namespace),
            Some(printer) if !self.watch => {
                let items: Vec<Value> = events
                    .into_iter()
                    .map(|mut event| {
                        event["apiVersion"] = json!("v1");
                        event["kind"] = json!("Event");
                        event
                    })
                    .collect();
                return printer.print(&json!({"apiVersion": "v1", "kind": "EventList", "metadata": answer["metadata"], "items": items}));
            }
            Some(printer) => events.iter().try_for_each(|event| printer.print(event))?,
            None => print!(
                "{}",
                self.table(&events)
                    .render_with(&mut writer, self.no_headers)
            ),
        }
        if !self.watch {
            return Ok(());
        }
        let version = str_of(&answer["metadata"]["resourceVersion"]).to_owned();
        let path = with_query(
            &path,
            &[("watch", "true".into()), ("resourceVersion", version)],
        );
        let mut stream = Box::pin(session.api.watch(&path, "application/json").await?);
        while let Some(event) = stream.next().await {
            let event = event?;
            if event["type"] == "DELETED"
                || event["type"] == "BOOKMARK"
                || !self.wants(&event["object"])
            {
                continue;
            }
            match &printer {
                Some(printer) => printer.print(&event["object"])?,
                None => print!(
                    "{}",
                    self.table(std::slice::from_ref(&event["object"]))
                        .render_with(&mut writer, true)
                ),
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
        if let Some(about) = &self.about {
            let Some((kind, name)) = about.split_once('/') else {
                bail!("--for must be in resource/name form");
            };
            let found = session.discovery.resolve(kind).await;
            let resource = found.map_err(|error| error::Plain(error.to_string()))?;
            let selector = format!(
                "involvedObject.kind={},involvedObject.name={name}",
                resource.kind
            );
            query.push(("fieldSelector", selector));
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
                escape(str_of(&event["type"])),
                escape(str_of(&event["reason"])),
                escape(&format!(
                    "{}/{}",
                    str_of(&about["kind"]),
                    str_of(&about["name"])
                )),
                escape(str_of(&event["message"]).trim()),
            ];
            if self.all_namespaces {
                row.insert(0, str_of(&event["metadata"]["namespace"]).to_owned());
            }
            table.rows.push(row);
        }
        table
    }
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
    let first = event["firstTimestamp"]
        .as_str()
        .or(event["eventTime"].as_str())
        .unwrap_or_default();
    let (count, last) = match event["series"].is_object() {
        true => (
            event["series"]["count"].as_i64().unwrap_or(1),
            str_of(&event["series"]["lastObservedTime"]),
        ),
        false => (
            event["count"].as_i64().unwrap_or(0),
            event["lastTimestamp"].as_str().unwrap_or(first),
        ),
    };
    match count > 1 {
        true => format!("{} (x{count} over {})", since(last), since(first)),
        false => since(if first.is_empty() { last } else { first }),
    }
}
