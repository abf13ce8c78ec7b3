//! `kubectl api-resources`

use anyhow::{Result, bail};
use clap::Args;

use serde_json::{Value, json};

use crate::{
    discovery::Resource,
    json::indented,
    output::{kyaml, table::Table, yaml},
    session::Session,
};

/// Flags of `api-resources`.
#[derive(Debug, Args)]
pub(crate) struct ApiResources {
    /// Limit to resources in the specified API group
    #[arg(long, value_name = "GROUP")]
    api_group: Option<String>,
    /// Limit to resources that belong to the specified categories
    #[arg(long, value_delimiter = ',', value_name = "CATEGORY")]
    categories: Vec<String>,
    /// Limit to resources that support the specified verbs
    #[arg(long, value_delimiter = ',', value_name = "VERB")]
    verbs: Vec<String>,
    /// If false, non-namespaced resources will be returned, otherwise returning namespaced resources
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    namespaced: Option<bool>,
    /// Use the cached list of resources if available
    #[arg(long)]
    cached: bool,
    /// Do not print headers
    #[arg(long)]
    no_headers: bool,
    /// Sort by name or kind
    #[arg(long, default_value = "")]
    sort_by: String,
    /// name, wide, json, yaml or kyaml
    #[arg(short, long, default_value = "")]
    output: String,
    /// Keep managedFields in JSON and YAML
    // The printed list has none.
    #[allow(dead_code)]
    #[arg(long)]
    show_managed_fields: bool,
}

impl ApiResources {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        if !["", "name", "wide", "json", "yaml", "kyaml"].contains(&self.output.as_str()) {
            bail!(
                "unable to match a printer suitable for the output format {:?}, allowed formats are: json,kyaml,name,wide,yaml",
                self.output
            );
        }
        if !["", "name", "kind"].contains(&self.sort_by.as_str()) {
            bail!("--sort-by accepts only name or kind");
        }
        let resources = match self.cached {
            true => session.discovery.resources().await?,
            false => session.discovery.refresh().await?,
        };
        let mut resources: Vec<&Resource> = resources
            .iter()
            .filter(|resource| self.wants(resource))
            .collect();
        // Only the preferred version of each resource.
        let mut seen: Vec<(&str, &str)> = Vec::new();
        resources.retain(|resource| {
            let key = (resource.group.as_str(), resource.plural.as_str());
            let is_new = !seen.contains(&key);
            seen.push(key);
            is_new
        });
        match self.sort_by.as_str() {
            "kind" => resources.sort_by(|a, b| a.kind.cmp(&b.kind)),
            "name" => resources.sort_by(|a, b| a.plural.cmp(&b.plural)),
            _ => resources.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural))),
        }
        match self.output.as_str() {
            "json" => println!("{}", indented(&list(&resources))),
            "yaml" => print!("{}", yaml::to_string(&list(&resources))),
            "kyaml" => print!("{}", kyaml::to_string(&list(&resources))),
            _ => self.print(&resources),
        }
        session.discovery.check_complete()
    }

    fn wants(&self, resource: &Resource) -> bool {
        let has_all = |wanted: &[String], has: &[String]| {
            wanted.iter().all(|one| one.is_empty() || has.contains(one))
        };
        !resource.verbs.is_empty()
            && self
                .api_group
                .as_ref()
                .is_none_or(|group| *group == resource.group)
            && self
                .namespaced
                .is_none_or(|namespaced| namespaced == resource.namespaced)
            && has_all(&self.verbs, &resource.verbs)
            && has_all(&self.categories, &resource.categories)
    }

    fn print(&self, resources: &[&Resource]) {
        if self.output == "name" {
            return resources
                .iter()
                .for_each(|resource| println!("{}", resource.qualified_plural()));
        }
        let wide = self.output == "wide";
        let mut table =
            Table::with_headings(&["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]);
        if wide {
            table
                .headings
                .extend(["VERBS".to_owned(), "CATEGORIES".to_owned()]);
        }
        for resource in resources {
            let mut row = vec![
                resource.plural.clone(),
                resource.short_names.join(","),
                resource.api_version(),
                resource.namespaced.to_string(),
                resource.kind.clone(),
            ];
            if wide {
                row.extend([resource.verbs.join(","), resource.categories.join(",")]);
            }
            table.rows.push(row);
        }
        // Without headers the columns are only as wide as their cells.
        print!("{}", table.render(self.no_headers));
    }
}

/// The resources as an APIResourceList of all groups.
fn list(resources: &[&Resource]) -> Value {
    let one = |resource: &&Resource| {
        let mut value = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced});
        if !resource.group.is_empty() {
            value["group"] = json!(resource.group);
        }
        value["version"] = json!(resource.version);
        value["kind"] = json!(resource.kind);
        value["verbs"] = json!(resource.verbs);
        for (field, words) in [
            ("shortNames", &resource.short_names),
            ("categories", &resource.categories),
        ] {
            if !words.is_empty() {
                value[field] = json!(words);
            }
        }
        value
    };
    let resources: Vec<Value> = resources.iter().map(one).collect();
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "", "resources": resources})
}
