//! `kubectl options`

use anyhow::Result;
use clap::{Args, CommandFactory};

/// Flags of `options`.
#[derive(Debug, Args)]
pub(crate) struct Options {}

impl Options {
    pub(crate) fn run(self) -> Result<()> {
        print!("{}", listed());
        Ok(())
    }
}

/// All global flags.
fn listed() -> String {
    let mut text = "The following options can be passed to any command:\n\n".to_owned();
    let command = crate::args::Cli::command();
    for argument in command
        .get_arguments()
        .filter(|argument| argument.is_global_set())
    {
        let long = argument.get_long().unwrap_or_default();
        let short = argument
            .get_short()
            .map(|short| format!("-{short}, "))
            .unwrap_or_default();
        let default = argument
            .get_default_values()
            .first()
            .map(|value| value.to_string_lossy().into_owned());
        let default = match (default, argument.get_action()) {
            (Some(default), _) => default,
            (None, clap::ArgAction::SetTrue) => "false".to_owned(),
            (None, clap::ArgAction::Append) => "[]".to_owned(),
            _ => "''".to_owned(),
        };
        let help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        text.push_str(&format!("    {short}--{long}={default}:\n\t{help}\n\n"));
    }
    crate::argv::with_shown_names(text)
}

#[cfg(test)]
mod tests {
    #[test]
    fn flags_have_the_names_that_users_write() {
        let text = super::listed();
        for flag in [
            "    --profile=none:",
            "    -n, --namespace='':",
            "    --warnings-as-errors=false:",
        ] {
            assert!(text.contains(flag), "{flag}");
        }
        assert!(!text.contains("global-profile"));
    }
}
