//! `kubectl alpha`: there are no alpha commands.

use anyhow::Result;
use clap::Args;

/// Flags of `alpha`.
#[derive(Debug, Args)]
pub(crate) struct Alpha {}

impl Alpha {
    pub(crate) fn run(self) -> Result<()> {
        eprintln!("No alpha commands are available in this version of kubectl");
        Ok(())
    }
}
