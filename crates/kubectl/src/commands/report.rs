//! Output of commands about changed objects.

use anyhow::Result;
use serde_json::Value;

use crate::{
    args::DryRunMode,
    output::{self, PrintFlags, Printer},
};

/// Prints `deployment.apps/web created`, or the object in the requested format.
pub(super) struct Report {
    printer: Option<Printer>,
    dry_run: DryRunMode,
}

impl Report {
    /// From the flags.
    pub(super) fn new(flags: &PrintFlags, dry_run: DryRunMode) -> Result<Self> {
        Ok(Self {
            printer: flags.printer()?,
            dry_run,
        })
    }

    /// Prints what happened to an object.
    pub(super) fn print(&self, object: &Value, deed: &str) -> Result<()> {
        match &self.printer {
            None => println!("{} {deed}{}", output::name(object), self.dry_run.suffix()),
            Some(printer) => printer.print(object)?,
        }
        Ok(())
    }

    /// The same for a generated object, whose JSON and KYAML have the order of Go's types.
    pub(super) fn say_typed(&self, object: &Value, deed: &str) -> Result<()> {
        match &self.printer {
            Some(printer) => printer.print_typed(object),
            None => self.print(object, deed),
        }
    }

    /// Whether objects are printed and not only named.
    pub(super) fn prints_objects(&self) -> bool {
        self.printer.is_some()
    }
}
