//! `kubectl api-resources`

use anyhow::Result;
use clap::Args;

use crate::{discovery::Discovery, output::table::Table, session::Session};

/// Flags of `api-resources`.
#[derive(Debug, Args)]
pub struct ApiResources {
    /// Only resources of this API group
    #[arg(long)]
    api_group: Option<String>,
    /// Only resources that live in namespaces, or only others
    #[arg(long, action = clap::ArgAction::Set)]
    namespaced: Option<bool>,
    /// Do not print headings
    #[arg(long)]
    no_headers: bool,
    /// name or wide
    #[arg(short, long)]
    output: Option<String>,
}

impl ApiResources {
    pub async fn run(self, session: &Session) -> Result<()> {
        let discovery = Discovery::load(&session.api).await?;
        let mut resources = discovery.resources;
        resources.retain(|resource| {
            self.api_group
                .as_ref()
                .is_none_or(|group| *group == resource.group)
                && self
                    .namespaced
                    .is_none_or(|namespaced| namespaced == resource.namespaced)
        });
        resources.sort_by(|a, b| (&a.group, &a.plural).cmp(&(&b.group, &b.plural)));
        if self.output.as_deref() == Some("name") {
            resources
                .iter()
                .for_each(|resource| println!("{}", resource.qualified_plural()));
            return Ok(());
        }
        let wide = self.output.as_deref() == Some("wide");
        let mut headings: Vec<String> = ["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"]
            .map(str::to_owned)
            .into();
        if wide {
            headings.extend(["VERBS".to_owned(), "CATEGORIES".to_owned()]);
        }
        let row = |resource: &crate::discovery::Resource| {
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
            row
        };
        let rows = resources.iter().map(row).collect();
        print!("{}", Table { headings, rows }.render(self.no_headers));
        Ok(())
    }
}
