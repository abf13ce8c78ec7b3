//! `kubectl get`

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};

use crate::{
    api::TABLE,
    args::{Output, Selection},
    discovery::{Discovery, Resource},
    error, manifest,
    output::{
        Format,
        table::{Table, View},
    },
    resources::{self, Named},
    session::Session,
};

/// Flags of `get`.
#[derive(Debug, Args)]
pub struct Get {
    /// TYPE[,TYPE] [NAME…] or TYPE/NAME…
    resources: Vec<String>,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    output: Output,
    /// After listing, watch for changes
    #[arg(short, long)]
    watch: bool,
    /// Watch for changes without listing first
    #[arg(long)]
    watch_only: bool,
    /// Do not print headings
    #[arg(long)]
    no_headers: bool,
    /// Show all labels in the last column
    #[arg(long)]
    show_labels: bool,
    /// Labels to show as columns
    #[arg(short = 'L', long, value_delimiter = ',', value_name = "LABEL")]
    label_columns: Vec<String>,
    /// Keep managedFields in JSON and YAML
    #[arg(long)]
    show_managed_fields: bool,
    /// Say nothing about objects that do not exist
    #[arg(long)]
    ignore_not_found: bool,
    /// Sort by this JSONPath
    #[arg(long, value_name = "PATH")]
    sort_by: Option<String>,
    /// A path to ask for as it is
    #[arg(long, value_name = "PATH")]
    raw: Option<String>,
}

/// One request and what its answer is about.
struct Query {
    resource: Resource,
    path: String,
    is_list: bool,
}

impl Get {
    pub async fn run(self, session: &Session) -> Result<()> {
        if let Some(path) = &self.raw {
            println!("{}", session.api.text(path).await?);
            return Ok(());
        }
        let format = Format::parse(self.output.output.as_deref())?;
        let discovery = Discovery::load(&session.api).await?;
        let queries = self.queries(session, &discovery)?;
        if self.watch || self.watch_only {
            return self.follow(session, &format, &queries).await;
        }
        match format {
            Format::Table { wide } => self.print_tables(session, &queries, wide).await,
            format => self.print_objects(session, &queries, &format).await,
        }
    }

    fn queries(&self, session: &Session, discovery: &Discovery) -> Result<Vec<Query>> {
        let query = resources::query(&self.selection);
        let object = |resource: Resource, namespace: &str, name: &str| Query {
            path: resource.object(namespace, name),
            resource,
            is_list: false,
        };
        if !self.selection.filename.is_empty() {
            let manifests = manifest::read(&self.selection.filename, self.selection.recursive)?;
            let targets = resources::from_manifests(session, discovery, manifests)?;
            return Ok(targets
                .into_iter()
                .map(|t| object(t.resource, &t.namespace, &t.name))
                .collect());
        }
        let namespace = (!self.selection.all_namespaces).then_some(session.namespace.as_str());
        match resources::named(discovery, &self.resources)? {
            Named::Type(types) => {
                let list = |resource: Resource| Query {
                    path: format!("{}{query}", resource.collection(namespace)),
                    resource,
                    is_list: true,
                };
                Ok(types.into_iter().map(list).collect())
            }
            Named::Objects(_) if self.selection.all_namespaces => {
                bail!("a resource cannot be retrieved by name across all namespaces")
            }
            Named::Objects(objects) => Ok(objects
                .into_iter()
                .map(|(r, name)| object(r, &session.namespace, &name))
                .collect()),
        }
    }

    fn view<'a>(&'a self, query: &Query, wide: bool, prefix: Option<&'a str>) -> View<'a> {
        View {
            wide,
            with_namespace: self.selection.all_namespaces && query.resource.namespaced,
            show_labels: self.show_labels,
            label_columns: &self.label_columns,
            name_prefix: prefix,
        }
    }

    async fn print_tables(&self, session: &Session, queries: &[Query], wide: bool) -> Result<()> {
        let types: BTreeSet<String> = queries
            .iter()
            .map(|query| query.resource.qualified_plural())
            .collect();
        let mut tables: Vec<(String, Table)> = Vec::new();
        let mut failure = None;
        for query in queries {
            let answer = match session.api.get_as(&query.path, TABLE).await {
                Ok(answer) => answer,
                Err(error) if self.ignore_not_found && error::is_not_found(&error) => continue,
                Err(error) => {
                    // Say what is missing, and still show the rest.
                    if let Some(earlier) = failure.replace(error) {
                        error::report(&earlier);
                    }
                    continue;
                }
            };
            let prefix = query.resource.qualified_singular();
            let prefix = (types.len() > 1).then_some(prefix.as_str());
            let table = Table::of(&self.sorted(answer)?, self.view(query, wide, prefix));
            let kind = query.resource.qualified_plural();
            match tables.last_mut() {
                Some((last, merged)) if *last == kind => merged.rows.extend(table.rows),
                _ => tables.push((kind, table)),
            }
        }
        tables.retain(|(_, table)| !table.rows.is_empty());
        for (at, (_, table)) in tables.iter().enumerate() {
            if at > 0 {
                println!();
            }
            print!("{}", table.render(self.no_headers));
        }
        if tables.is_empty() && failure.is_none() && !self.ignore_not_found {
            self.say_nothing_found(session, queries);
        }
        failure.map_or(Ok(()), Err)
    }

    fn say_nothing_found(&self, session: &Session, queries: &[Query]) {
        let namespaced = queries.iter().any(|query| query.resource.namespaced);
        if namespaced && !self.selection.all_namespaces {
            eprintln!("No resources found in {} namespace.", session.namespace);
        } else {
            eprintln!("No resources found");
        }
    }

    /// Rows in the order that `--sort-by` asks for.
    fn sorted(&self, mut table: Value) -> Result<Value> {
        let Some(path) = &self.sort_by else {
            return Ok(table);
        };
        let path = crate::output::jsonpath::Template::parse(path)?;
        let key = |row: &Value| -> String {
            path.values(&row["object"])
                .first()
                .map(sort_key)
                .unwrap_or_default()
        };
        if let Some(rows) = table["rows"].as_array_mut() {
            rows.sort_by_key(key);
        }
        Ok(table)
    }

    async fn print_objects(
        &self,
        session: &Session,
        queries: &[Query],
        format: &Format,
    ) -> Result<()> {
        let mut objects = Vec::new();
        let mut is_list = queries.len() != 1;
        for query in queries {
            let answer = match session.api.get(&query.path).await {
                Ok(answer) => answer,
                Err(error) if self.ignore_not_found && error::is_not_found(&error) => continue,
                Err(error) => return Err(error),
            };
            if query.is_list {
                is_list = true;
                objects.extend(items_of(&answer, &query.resource));
            } else {
                objects.push(answer);
            }
        }
        match (is_list, objects.pop()) {
            (false, Some(object)) => format.print(&object, self.show_managed_fields),
            (false, None) => Ok(()),
            (true, last) => {
                objects.extend(last);
                let list = json!({
                    "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""},
                    "items": objects});
                format.print(&list, self.show_managed_fields)
            }
        }
    }

    async fn follow(&self, session: &Session, format: &Format, queries: &[Query]) -> Result<()> {
        let [query] = queries else {
            bail!("watch is only supported on individual resources and resource collections");
        };
        let (wide, accept) = match format {
            Format::Table { wide } => (*wide, TABLE),
            _ => (false, "application/json"),
        };
        let path = watch_path(query);
        let separator = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{separator}watch=true");
        let mut events = Box::pin(session.api.watch(&path, accept).await?);
        let mut bare = self.no_headers;
        while let Some(event) = events.next().await {
            let event = event?;
            let object = &event["object"];
            if event["type"] == "ERROR" {
                bail!(
                    "{}",
                    object["message"].as_str().unwrap_or("the watch ended")
                );
            }
            match format {
                Format::Table { .. } => {
                    print!(
                        "{}",
                        Table::of(object, self.view(query, wide, None)).render(bare)
                    );
                    bare = true;
                }
                format => format.print(object, self.show_managed_fields)?,
            }
        }
        Ok(())
    }
}

/// A watch of one object is a watch of its collection that selects it by name.
fn watch_path(query: &Query) -> String {
    if query.is_list {
        return query.path.clone();
    }
    match query.path.rsplit_once('/') {
        Some((collection, name)) => format!("{collection}?fieldSelector=metadata.name%3D{name}"),
        None => query.path.clone(),
    }
}

/// Items of a list with their kind, which lists of built-in kinds leave out.
fn items_of(list: &Value, resource: &Resource) -> Vec<Value> {
    let complete = |item: &Value| {
        let mut object = json!({"apiVersion": resource.api_version(), "kind": resource.kind});
        if let (Some(object), Some(fields)) = (object.as_object_mut(), item.as_object()) {
            object.extend(fields.clone());
        }
        object
    };
    list["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(complete)
        .collect()
}

/// Numbers sort by value, everything else as text.
fn sort_key(value: &Value) -> String {
    match value.as_f64() {
        Some(number) => format!("{number:020.6}"),
        None => crate::output::jsonpath::text(value),
    }
}
