//! `kubectl api-versions`

use anyhow::Result;
use clap::Args;

use crate::session::Session;

/// Flags of `api-versions`.
#[derive(Debug, Args)]
pub(crate) struct ApiVersions {}

impl ApiVersions {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let resources = session.discovery.refresh().await?;
        let mut versions: Vec<String> = resources
            .iter()
            .map(|resource| resource.api_version())
            .collect();
        versions.sort();
        versions.dedup();
        versions.iter().for_each(|version| println!("{version}"));
        Ok(())
    }
}
