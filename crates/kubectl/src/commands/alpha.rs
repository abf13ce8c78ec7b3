//! `kubectl alpha`: no command is in alpha.

use anyhow::Result;
use clap::Args;

/// Flags of `alpha`.
#[derive(Debug, Args)]
pub struct Alpha {}

impl Alpha {
    pub fn run(self) -> Result<()> {
        println!("No alpha commands are available in this version of kubectl");
        Ok(())
    }
}
