//! `kubectl get`

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    api::{TABLE, with_query},
    args::Selection,
    discovery::Resource,
    error,
    json::{list, str_of},
    output::{
        Format, PrintFlags, Printer, sort,
        table::{Table, View},
        tabwriter::Tabwriter,
    },
    resources::{self, Named, of_item},
    session::Session,
};

/// Flags of `get`.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// TYPE[,TYPE] [NAME…] or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    print: PrintFlags,
    /// After listing or getting the requested object, watch for changes
    #[arg(short, long)]
    watch: bool,
    /// Watch for changes to the requested object(s), without listing or getting first
    #[arg(long)]
    watch_only: bool,
    /// Output watch event objects when --watch or --watch-only is used
    #[arg(long)]
    output_watch_events: bool,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// List the resource type for the requested objects
    #[arg(long)]
    show_kind: bool,
    /// Show all labels as the last column
    #[arg(long)]
    show_labels: bool,
    /// Labels to show as columns
    #[arg(short = 'L', long, value_delimiter = ',', value_name = "LABEL")]
    label_columns: Vec<String>,
    /// Exit with code 0 if the object does not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Sort list types by this JSONPath
    #[arg(long, value_name = "PATH")]
    sort_by: Option<String>,
    /// Let the server render the table
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    server_print: bool,
    /// Return large lists in chunks; 0 requests everything at once
    #[arg(long, default_value_t = 500, value_name = "COUNT")]
    chunk_size: i64,
    /// The subresource to read, such as status or scale
    #[arg(long, value_name = "NAME")]
    subresource: Option<String>,
    /// Raw URI to request from the server
    #[arg(long, value_name = "URI")]
    raw: Option<String>,
    /// With `all`: every resource that can be listed, not only those of the category
    #[arg(long)]
    really_all: bool,
}

/// One request and its resource.
struct ResourceQuery {
    resource: Resource,
    path: String,
    name: Option<String>,
    /// Of a single object.
    namespace: String,
}

impl Get {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        if let Some(path) = self.raw.as_ref().filter(|path| !path.is_empty()) {
            return self.print_raw(session, path).await;
        }
        self.check()?;
        self.warn_of_order();
        let mut printer = self.print.with_formats(&["wide", "custom-columns"])?;
        if let Some(Printer {
            format: Format::Columns(columns),
            ..
        }) = &mut printer
        {
            columns.no_headers = self.no_headers;
        }
        let asks = self.asks(session).await?;
        if self.watch || self.watch_only {
            return self.follow(session, printer, asks).await;
        }
        match printer {
            None => self.print_tables(session, &asks).await,
            Some(printer) => self.print_objects(session, &asks, &printer).await,
        }
    }

    async fn print_raw(&self, session: &Session, path: &str) -> Result<()> {
        use std::io::Write;
        if !self.resources.is_empty() {
            bail!("arguments may not be passed when --raw is specified");
        }
        if self.watch || self.watch_only || self.selection.selector.is_some() {
            bail!(
                "--raw may not be specified with other flags that filter the server request or alter the output"
            );
        }
        if self.print.output.is_some() {
            bail!("--raw and --output are mutually exclusive");
        }
        super::raw::check_path(path)?;
        let mut chunks = Box::pin(session.api.stream(path, "*/*").await?);
        while let Some(chunk) = chunks.next().await {
            std::io::stdout().write_all(&chunk?)?;
        }
        std::io::stdout().flush()?;
        Ok(())
    }

    /// The path of `--sort-by`.
    fn order(&self) -> Option<&str> {
        self.sort_by.as_deref().filter(|path| !path.is_empty())
    }

    /// Watched objects come in their own order.
    fn warn_of_order(&self) {
        match (self.order(), self.watch, self.watch_only) {
            (Some(_), true, _) => eprintln!(
                "warning: --watch requested, --sort-by will be ignored for watch events received"
            ),
            (Some(_), false, true) => {
                eprintln!("warning: --watch-only requested, --sort-by will be ignored");
            }
            _ => {}
        }
    }

    fn check(&self) -> Result<()> {
        let is_watching = self.watch || self.watch_only;
        if self.output_watch_events && !is_watching {
            bail!("--output-watch-events option can only be used with --watch or --watch-only");
        }
        if self.show_labels
            && self
                .print
                .output
                .as_deref()
                .is_some_and(|output| output != "wide")
        {
            bail!(
                "--show-labels option cannot be used with {} printer",
                self.print.output.as_deref().unwrap_or_default()
            );
        }
        let watches = self.watch || self.watch_only;
        if !watches && self.resources.is_empty() && self.selection.files.is_empty() {
            eprintln!(
                "You must specify the type of resource to get. Use \"kubectl api-resources\" for a complete list of supported resources.\n"
            );
            return Err(error::usage(
                "get",
                "Required resource not specified.\nUse \"kubectl explain <resource>\" for a detailed description of that resource (e.g. kubectl explain pods).",
            ));
        }
        Ok(())
    }

    async fn asks(&self, session: &Session) -> Result<Vec<ResourceQuery>> {
        if !self.selection.files.is_empty() {
            let targets =
                resources::targets(session, &self.selection, &self.resources, false).await?;
            let ask = |target: resources::Target| {
                self.object(target.resource, &target.namespace, &target.name)
            };
            return Ok(targets.into_iter().map(ask).collect());
        }
        if self.really_all && self.resources == ["all"] {
            let all = session.discovery.resources().await?;
            let mut types: Vec<Resource> = Vec::new();
            for resource in all
                .iter()
                .filter(|resource| resource.verbs.iter().any(|verb| verb == "list"))
            {
                let is_known = |known: &Resource| {
                    known.group == resource.group && known.plural == resource.plural
                };
                let is_events = resource.plural == "events";
                if !is_events && !types.iter().any(is_known) && resource.namespaced {
                    types.push(resource.clone());
                }
            }
            return Ok(types
                .into_iter()
                .map(|resource| self.collection(session, resource))
                .collect());
        }
        match resources::named(session, &self.resources).await? {
            Named::Types(_) if self.subresource.is_some() => {
                bail!("subresource cannot be used when bulk resources are specified")
            }
            Named::Types(types) => Ok(types
                .into_iter()
                .map(|resource| self.collection(session, resource))
                .collect()),
            Named::Objects(_) if self.selection.all_namespaces => {
                bail!("a resource cannot be retrieved by name across all namespaces")
            }
            Named::Objects(_)
                if self.selection.selector.is_some() || self.selection.field_selector.is_some() =>
            {
                bail!(resources::beside_selector(&self.resources))
            }
            Named::Objects(objects) => {
                let ask = |(resource, name): (Resource, String)| {
                    self.object(resource, &session.namespace, &name)
                };
                Ok(objects.into_iter().map(ask).collect())
            }
        }
    }

    fn object(&self, resource: Resource, namespace: &str, name: &str) -> ResourceQuery {
        let subresource = self
            .subresource
            .as_ref()
            .map(|name| format!("/{name}"))
            .unwrap_or_default();
        ResourceQuery {
            path: format!("{}{subresource}", resource.object(namespace, name)),
            namespace: match resource.namespaced {
                true => namespace.to_owned(),
                false => String::new(),
            },
            resource,
            name: Some(name.to_owned()),
        }
    }

    fn collection(&self, session: &Session, resource: Resource) -> ResourceQuery {
        let namespace = (!self.selection.all_namespaces).then_some(session.namespace.as_str());
        ResourceQuery {
            path: with_query(
                &resource.collection(namespace),
                &resources::query(&self.selection),
            ),
            resource,
            namespace: String::new(),
            name: None,
        }
    }

    async fn ask(&self, session: &Session, ask: &ResourceQuery, accept: &str) -> Result<Value> {
        let is_sorted_table = accept == TABLE && self.order().is_some();
        let path = match is_sorted_table {
            true => with_query(&ask.path, &[("includeObject", "Object".into())]),
            false => ask.path.clone(),
        };
        match ask.name {
            Some(_) => match session.api.get_as(&path, accept).await {
                Ok(object) => Ok(object),
                Err(error) => {
                    Err(resources::missing_namespace(session, &ask.namespace, error).await)
                }
            },
            None => {
                let listed = session.api.list(&path, accept, self.chunk_size).await;
                listed.map_err(|error| resources::refused(error, &self.selection, &ask.resource))
            }
        }
    }

    fn view(&self, ask: &ResourceQuery, several: bool) -> View {
        View {
            wide: self.print.is("wide"),
            with_namespace: self.selection.all_namespaces && ask.resource.namespaced,
            show_labels: self.show_labels,
            label_columns: self.label_columns.clone(),
            kind: (self.show_kind || several).then(|| {
                let kind = ask.resource.kind.to_lowercase();
                match ask.resource.group.as_str() {
                    "" => kind,
                    group => format!("{kind}.{group}"),
                }
            }),
        }
    }

    async fn print_tables(&self, session: &Session, asks: &[ResourceQuery]) -> Result<()> {
        let accept = if self.server_print {
            TABLE
        } else {
            "application/json"
        };
        let (mut answers, mut errors) = (Vec::new(), Vec::new());
        for ask in asks {
            let mut answer = match self.ask(session, ask, accept).await {
                Ok(answer) => as_table(answer),
                Err(error) if self.ignore_not_found && error::is_not_found(&error) => continue,
                // With --really-all, types that cannot be listed are skipped, and those that no longer exist: discovery may
                // be of an earlier time.
                Err(error)
                    if self.really_all
                        && (error::code_is(&error, 405) || error::is_not_found(&error)) =>
                {
                    continue;
                }
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            if let (Some(path), Some(rows)) = (
                self.order(),
                answer.pointer_mut("/rows").and_then(Value::as_array_mut),
            ) {
                match sort::by(rows, path, |row| row["object"].clone()) {
                    Ok(()) => {}
                    // As upstream: rows of one type that cannot be sorted are not shown.
                    Err(_) if asks.len() == 1 => rows.clear(),
                    Err(error) => return Err(error),
                }
            }
            answers.push((ask.resource.qualified_plural(), ask, answer));
        }
        // Objects that were not found are ignored.
        let several = answers.iter().any(|(name, ..)| *name != answers[0].0);
        let mut printed = Tables::new(self.no_headers);
        for (name, ask, answer) in &answers {
            printed.add(name, answer, &self.view(ask, several));
        }
        printed.flush();
        if !printed.wrote && errors.is_empty() && !self.ignore_not_found {
            let namespaced = asks.iter().all(|ask| ask.resource.namespaced);
            match namespaced && !self.selection.all_namespaces {
                true => eprintln!("No resources found in {} namespace.", session.namespace),
                false => eprintln!("No resources found"),
            }
        }
        error::aggregate(errors)
    }

    async fn print_objects(
        &self,
        session: &Session,
        asks: &[ResourceQuery],
        printer: &Printer,
    ) -> Result<()> {
        let mut objects = Vec::new();
        let mut errors = Vec::new();
        let is_list = asks.len() != 1 || asks.iter().any(|ask| ask.name.is_none());
        for ask in asks {
            let answer = match self.ask(session, ask, "application/json").await {
                Ok(answer) => answer,
                Err(error) if self.ignore_not_found && error::is_not_found(&error) => continue,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            match ask.name {
                Some(_) => objects.push(answer),
                None => objects.extend(
                    list(&answer["items"]).filter_map(|item| of_item(&ask.resource, item).live),
                ),
            }
        }
        if let Some(path) = self.order() {
            sort::by(&mut objects, path, Clone::clone)?;
        }
        match is_list {
            false => objects.iter().try_for_each(|object| printer.print(object))?,
            true if !self.ignore_not_found || !objects.is_empty() => printer.print(&json!({
                "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": objects}))?,
            true => {}
        }
        error::aggregate(errors)
    }

    /// Several objects are printed, and cannot be watched.
    async fn refuse_to_follow(
        &self,
        session: &Session,
        printer: Option<Printer>,
        asks: &[ResourceQuery],
    ) -> Result<()> {
        let is_file = !self.selection.files.is_empty();
        let mut others = asks.iter().map(|ask| &ask.resource);
        let is_one_type = others.all(|resource| *resource == asks[0].resource);
        if asks.is_empty() || !is_file && (!is_one_type || asks[0].name.is_none()) {
            bail!("you may only specify a single resource type");
        }
        match printer {
            Some(printer) => self.print_objects(session, asks, &printer).await?,
            None => self.print_tables(session, asks).await?,
        }
        match is_file {
            true => bail!(
                "watch is only supported on individual resources and resource collections - {} resources were found",
                asks.len()
            ),
            false => bail!("you may only watch a single resource or type of resource at a time"),
        }
    }

    async fn follow(
        &self,
        session: &Session,
        printer: Option<Printer>,
        asks: Vec<ResourceQuery>,
    ) -> Result<()> {
        let [ask] = asks.as_slice() else {
            return self.refuse_to_follow(session, printer, &asks).await;
        };
        let accept = if printer.is_none() {
            TABLE
        } else {
            "application/json"
        };
        let mut first = self.ask(session, ask, accept).await?;
        if let (Some(path), Some(rows)) = (
            self.order(),
            first.pointer_mut("/rows").and_then(Value::as_array_mut),
        ) {
            sort::by(rows, path, |row| row["object"].clone())?;
        }
        let mut screen = Screen {
            get: self,
            printer,
            view: self.view(ask, false),
            definitions: Value::Null,
            writer: Tabwriter::for_tables(),
            has_headings: false,
        };
        if !self.watch_only {
            match (&screen.printer, &ask.name) {
                (Some(_), None) => {
                    for item in list(&first["items"]) {
                        let item = of_item(&ask.resource, item).live.unwrap_or_default();
                        screen.show("ADDED", &item)?;
                    }
                }
                _ => screen.show("ADDED", &first)?,
            }
        }
        let version = latest(&first).to_owned();
        let collection = match &ask.name {
            None => ask.path.clone(),
            Some(name) => {
                let namespace =
                    (!self.selection.all_namespaces).then_some(session.namespace.as_str());
                let path = ask.resource.collection(namespace);
                with_query(&path, &[("fieldSelector", format!("metadata.name={name}"))])
            }
        };
        let watching = screen.watch(session, &collection, accept, version);
        match session.api.timeout() {
            // A timeout is not a failure of a watch.
            Some(timeout) => tokio::time::timeout(timeout, watching)
                .await
                .unwrap_or(Ok(())),
            None => watching.await,
        }
    }
}

impl Screen<'_> {
    /// Prints the changes until the server ends the watch.
    async fn watch(
        &mut self,
        session: &Session,
        collection: &str,
        accept: &str,
        version: String,
    ) -> Result<()> {
        let query = [("watch", "true".into()), ("resourceVersion", version)];
        let path = with_query(collection, &query);
        let mut events = Box::pin(session.api.watch(&path, accept).await?);
        while let Some(event) = events.next().await {
            let event = event?;
            let object = &event["object"];
            match str_of(&event["type"]) {
                "ERROR" => {
                    let why = object["message"].as_str();
                    bail!("{}", why.unwrap_or("the watch ended"));
                }
                "BOOKMARK" => {}
                kind => self.show(kind, object)?,
            }
        }
        Ok(())
    }
}

/// The version at which a watch starts.
fn latest(object: &Value) -> &str {
    let own = str_of(&object["metadata"]["resourceVersion"]);
    match own.is_empty() {
        false => own,
        true => str_of(&object["rows"][0]["object"]["metadata"]["resourceVersion"]),
    }
}

/// Prints watched objects.
struct Screen<'a> {
    get: &'a Get,
    printer: Option<Printer>,
    view: View,
    definitions: Value,
    writer: Tabwriter,
    has_headings: bool,
}

impl Screen<'_> {
    fn show(&mut self, event: &str, object: &Value) -> Result<()> {
        if let Some(printer) = &self.printer {
            return match self.get.output_watch_events {
                true => printer.print_event(event, object),
                false => printer.print(object),
            };
        }
        let object = as_table(object.clone());
        // Events after the first omit the column definitions.
        if list(&object["columnDefinitions"]).len() > 0 {
            self.definitions = object["columnDefinitions"].clone();
        }
        let mut table = Table::from_rows(&self.definitions, &object["rows"], &self.view);
        if table.rows.is_empty() {
            return Ok(());
        }
        if self.get.output_watch_events {
            table.headings.insert(0, "EVENT".into());
            table
                .rows
                .iter_mut()
                .for_each(|row| row.insert(0, format!("{event:<8}")));
        }
        let bare = self.get.no_headers || std::mem::replace(&mut self.has_headings, true);
        print!("{}", table.render_with(&mut self.writer, bare));
        Ok(())
    }
}

/// The response of a server without tables for a kind, as a table of names and ages.
fn as_table(answer: Value) -> Value {
    if answer["kind"] == "Table" {
        return answer;
    }
    let now = jiff::Timestamp::now().as_second();
    let objects: Vec<&Value> = match answer["items"].as_array() {
        Some(items) => items.iter().collect(),
        None => vec![&answer],
    };
    let row = |object: &&Value| {
        let created = object["metadata"]["creationTimestamp"].as_str();
        json!({"cells": [object["metadata"]["name"], machinery::time::age(created, now)], "object": object})
    };
    let rows: Vec<Value> = objects.iter().map(row).collect();
    json!({
        "kind": "Table", "metadata": answer["metadata"], "rows": rows,
        "columnDefinitions": [
            {"name": "Name", "type": "string", "format": "name", "priority": 0},
            {"name": "Age", "type": "string", "priority": 0}]})
}

/// Tables of several types, separated by blank lines.
struct Tables {
    no_headers: bool,
    wrote: bool,
    kind: String,
    pending: Table,
}

impl Tables {
    fn new(no_headers: bool) -> Self {
        Self {
            no_headers,
            wrote: false,
            kind: String::new(),
            pending: Table::default(),
        }
    }

    fn add(&mut self, kind: &str, answer: &Value, view: &View) {
        let table = Table::from_rows(&answer["columnDefinitions"], &answer["rows"], view);
        if self.kind == kind && self.pending.headings == table.headings {
            return self.pending.rows.extend(table.rows);
        }
        self.flush();
        kind.clone_into(&mut self.kind);
        self.pending = table;
    }

    fn flush(&mut self) {
        let table = std::mem::take(&mut self.pending);
        if table.rows.is_empty() {
            return;
        }
        if self.wrote && !self.no_headers {
            println!();
        }
        print!("{}", table.render(self.no_headers));
        self.wrote = true;
    }
}
