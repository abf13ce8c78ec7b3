//! What a command says about an object that it changed.

use anyhow::Result;
use serde_json::Value;

use crate::{
    args::DryRunMode,
    output::{self, Format, PrintFlags, Printer},
};

/// Says `deployment.apps/web created`, or prints the object in the form that was asked for.
pub(super) struct Report {
    printer: Option<Printer>,
    dry_run: DryRunMode,
}

impl Report {
    /// As the flags say.
    pub(super) fn new(flags: &PrintFlags, dry_run: DryRunMode) -> Result<Self> {
        Ok(Self {
            printer: flags.printer()?,
            dry_run,
        })
    }

    /// Says what happened to an object.
    pub(super) fn say(&self, object: &Value, deed: &str) -> Result<()> {
        match &self.printer {
            None => println!("{} {deed}{}", output::name(object), self.dry_run.suffix()),
            Some(printer) => printer.print(object)?,
        }
        Ok(())
    }

    /// The same for an object of our own making, whose JSON has the order that Go's types give it.
    pub(super) fn say_typed(&self, object: &Value, deed: &str) -> Result<()> {
        match &self.printer {
            Some(printer) if matches!(printer.format, Format::Json) => {
                print!("{}", printer.render(object)?)
            }
            _ => self.say(object, deed)?,
        }
        Ok(())
    }

    /// Whether objects are printed and not only named.
    pub(super) fn prints_objects(&self) -> bool {
        self.printer.is_some()
    }
}
