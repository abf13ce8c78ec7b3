//! docs/configuration.md, generated from the flags.

use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};
use kubectl::reference::{rows, value};

use crate::cli::Cli;

const INTRODUCTION: &str = "\
# Configuration: every flag

Written by `mainstay reference configuration` from the program's flags; a test compares it.

Options of `up`, `server` and `agent` are also keys of the YAML file that `--config` names, under the same names; a list is a YAML
list. A flag wins over the file, the file over the default. A service that was installed reads `/etc/mainstay/config.yaml`. An
unknown key is an error, and so is an option of the half that does not run (a node's on a server, a server's on an agent).

```yaml
node-name: first
cluster-cidr: 10.42.0.0/16
disable: [local-path]
```
";

/// The whole page.
pub(crate) fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    let command = Cli::command();
    if let (Some(up), Some(agent)) = (
        command.find_subcommand("up"),
        command.find_subcommand("agent"),
    ) {
        text += "\n## up, server and agent\n\n| option | meaning |\n|---|---|\n";
        flags(&mut text, up, |_| true);
        text += "\n## agent alone\n\n| option | meaning |\n|---|---|\n";
        let is_new = |arg: &Arg| {
            !up.get_arguments()
                .any(|known| known.get_id() == arg.get_id())
        };
        flags(&mut text, agent, is_new);
    }
    text += "\n## Commands\n";
    commands(&mut text, &command, "mainstay");
    text
}

/// Commands other than those that run a cluster, with their flags.
fn commands(text: &mut String, command: &Command, path: &str) {
    let running = ["up", "server", "agent"];
    for child in command
        .get_subcommands()
        .filter(|child| !child.is_hide_set())
    {
        let path = format!("{path} {}", child.get_name());
        if child.get_name() == "help"
            || running.contains(&child.get_name()) && path.matches(' ').count() == 1
        {
            continue;
        }
        let about = child
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        let positional: String = child
            .get_positionals()
            .map(|arg| format!(" {}", value(arg)))
            .collect();
        let _ = write!(text, "\n### {path}{positional}\n\n{about}\n");
        if child.get_name() == "kubectl" {
            text.push_str(
                "\nSee [kubectl](kubectl.md) and [its commands](kubectl-reference.md).\n",
            );
            continue;
        }
        let has_flags = child
            .get_arguments()
            .any(|arg| arg.get_long().is_some_and(|name| name != "help"));
        if has_flags {
            text.push_str("\n| option | meaning |\n|---|---|\n");
            flags(text, child, |_| true);
        }
        commands(text, child, &path);
    }
}

fn flags(text: &mut String, command: &Command, wanted: impl Fn(&Arg) -> bool) {
    let own = command.get_arguments().filter(|arg| {
        wanted(arg) && !arg.is_hide_set() && arg.get_long().is_some_and(|long| long != "help")
    });
    rows(text, own);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");

    #[test]
    fn the_reference_of_flags_is_current() {
        let text = page();
        if std::env::var_os("MAINSTAY_UPDATE_DOCS").is_some() {
            std::fs::write(FILE, &text).unwrap();
        }
        let written = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(
            written == text,
            "docs/configuration.md is out of date: run this test with MAINSTAY_UPDATE_DOCS=1"
        );
    }
}
