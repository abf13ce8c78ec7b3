//! docs/kubectl-reference.md, generated from the commands; and the rows of flags that
//! docs/configuration.md has too.

use std::fmt::Write;

use clap::{Arg, Command};

use crate::argv;

const INTRODUCTION: &str = "\
# kubectl: all commands

Written by `mainstay reference kubectl` from the commands; a test compares it. How it differs from upstream's:
[kubectl](kubectl.md).
";

/// The whole page.
pub fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    let mut command = argv::command();
    command.build();
    commands(&mut text, &command, "kubectl");
    text.push_str("\n## Options of every command\n\n| option | meaning |\n|---|---|\n");
    let mut globals: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .collect();
    globals.sort_by_key(|arg| arg.get_long());
    rows(&mut text, globals);
    text
}

fn commands(text: &mut String, command: &Command, path: &str) {
    for child in command.get_subcommands() {
        if child.is_hide_set() || child.get_name() == "help" {
            continue;
        }
        let path = format!("{path} {}", child.get_name());
        let level = if path.matches(' ').count() == 1 {
            "##"
        } else {
            "###"
        };
        let aliases: Vec<&str> = child
            .get_visible_aliases()
            .chain(child.get_all_aliases())
            .collect();
        let aliases = match aliases.is_empty() {
            true => String::new(),
            false => format!(" Also: `{}`.", aliases.join("`, `")),
        };
        let about = child
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        let words: String = child
            .get_positionals()
            .map(|arg| format!(" {}", value(arg)))
            .collect();
        let _ = write!(text, "\n{level} {path}{words}\n\n{about}.{aliases}\n");
        let mut own: Vec<&Arg> = child
            .get_arguments()
            .filter(|arg| !arg.is_global_set() && !arg.is_hide_set() && !arg.is_positional())
            .filter(|arg| arg.get_id() != "help")
            .collect();
        own.sort_by_key(|arg| arg.get_long());
        if !own.is_empty() {
            text.push_str("\n| option | meaning |\n|---|---|\n");
        }
        rows(text, own);
        commands(text, child, &path);
    }
}

/// A row for each flag: syntax, meaning, default and environment variable.
pub fn rows<'a>(text: &mut String, args: impl IntoIterator<Item = &'a Arg>) {
    for arg in args {
        let Some(long) = arg.get_long() else { continue };
        let short = arg
            .get_short()
            .map(|short| format!("-{short}, "))
            .unwrap_or_default();
        let takes_value = takes_value(arg);
        let value = match takes_value {
            true => format!(" {}", value(arg)),
            false => String::new(),
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let defaults: Vec<String> = arg
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned())
            .filter(|default| takes_value && !default.is_empty())
            .collect();
        let default = match defaults.is_empty() {
            true => String::new(),
            false => format!(" [default: {}]", defaults.join(",")),
        };
        let environment = arg
            .get_env()
            .map(|name| format!(" [env: {}]", name.to_string_lossy()))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "| `{short}--{long}{value}` | {}{default}{environment} |",
            help.replace('|', "\\|")
        );
    }
}

/// Switches accept `=false`, but need no value.
fn takes_value(arg: &Arg) -> bool {
    let is_switch = arg.is_require_equals_set()
        && arg
            .get_default_values()
            .first()
            .is_some_and(|value| value == "true" || value == "false");
    arg.get_action().takes_values() && !is_switch
}

/// The placeholder of an argument's value: its choices, or its name.
pub fn value(arg: &Arg) -> String {
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .map(|choice| choice.get_name().to_owned())
        .collect();
    if takes_value(arg) && !choices.is_empty() && !arg.is_hide_possible_values_set() {
        return choices.join("/");
    }
    let names = arg.get_value_names().unwrap_or_default();
    names.first().map_or_else(
        || arg.get_id().to_string().to_uppercase(),
        ToString::to_string,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/kubectl-reference.md"
    );

    #[test]
    fn the_reference_of_commands_is_current() {
        let text = page();
        if std::env::var_os("MAINSTAY_UPDATE_DOCS").is_some() {
            std::fs::write(FILE, &text).unwrap();
        }
        let written = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(
            written == text,
            "docs/kubectl-reference.md is out of date: run this test with MAINSTAY_UPDATE_DOCS=1"
        );
    }
}
