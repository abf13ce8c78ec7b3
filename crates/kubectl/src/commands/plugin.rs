//! `kubectl plugin list`, and programs named kubectl-… as commands.

use std::{
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Result, bail};
use clap::{Args, CommandFactory, Subcommand};

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Plugin {
    /// List all visible plugin executables on a user's PATH
    List(List),
}

/// Flags of `plugin list`.
#[derive(Debug, Args)]
pub(crate) struct List {
    /// Show only the binary name of each plugin, and not its full path
    #[arg(long)]
    name_only: bool,
}

impl Plugin {
    pub(crate) fn run(self) -> Result<()> {
        let Self::List(list) = self;
        unreadable();
        let plugins = all();
        if plugins.is_empty() {
            bail!("unable to find any kubectl plugins in your PATH");
        }
        println!("The following compatible plugins are available:\n");
        let mut problems = 0;
        let mut seen: Vec<(String, PathBuf)> = Vec::new();
        for path in plugins {
            let name = file_name(&path);
            match list.name_only {
                true => println!("{name}"),
                false => println!("{}", path.display()),
            }
            if !is_executable(&path) {
                problems += 1;
                eprintln!(
                    "  - warning: {} identified as a kubectl plugin, but it is not executable",
                    path.display()
                );
            }
            if let Some((_, earlier)) = seen.iter().find(|(known, _)| *known == name) {
                problems += 1;
                eprintln!(
                    "  - warning: {} is overshadowed by a similarly named plugin: {}",
                    path.display(),
                    earlier.display()
                );
            }
            if let Some(command) = builtin(&name) {
                problems += 1;
                eprintln!("  - warning: {name} overwrites existing command: {command:?}");
            }
            seen.push((name, path));
        }
        match problems {
            0 => Ok(()),
            1 => bail!("one plugin warning was found"),
            count => bail!("{count} plugin warnings were found"),
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// The command that a plugin's name begins with, such as `kubectl create` of kubectl-create-thing.
fn builtin(name: &str) -> Option<String> {
    let root = crate::args::Cli::command();
    let (mut at, mut found) = (&root, "kubectl".to_owned());
    for word in name.split('-').skip(1) {
        let Some(command) = at.find_subcommand(word) else {
            break;
        };
        at = command;
        found = format!("{found} {}", command.get_name());
    }
    (found != "kubectl").then_some(found)
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Reports the directories of the PATH that cannot be read.
fn unreadable() {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut seen = Vec::new();
    for directory in std::env::split_paths(&path) {
        if directory.as_os_str().is_empty() || seen.contains(&directory) {
            continue;
        }
        if let Err(error) = std::fs::read_dir(&directory) {
            let (shown, why) = (directory.display(), crate::error::io_reason(&error));
            eprintln!(
                "Unable to read directory {:?} from your PATH: open {shown}: {why}. Skipping...",
                shown.to_string()
            );
        }
        seen.push(directory);
    }
}

/// Every plugin on the PATH, in its order.
pub(crate) fn all() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut found = Vec::new();
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in std::env::split_paths(&path) {
        if directories.contains(&directory) {
            continue;
        }
        let mut names: Vec<PathBuf> = std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| file_name(path).starts_with("kubectl-") && !path.is_dir())
            .collect();
        names.sort();
        found.extend(names);
        directories.push(directory);
    }
    found
}

/// Replaces this process by a plugin, if the words name one and no built-in command.
pub(crate) fn dispatch(words: &[String]) -> Option<ExitCode> {
    let command: Vec<&str> = words
        .iter()
        .skip(1)
        .take_while(|word| !word.starts_with('-'))
        .map(String::as_str)
        .collect();
    let root = crate::args::Cli::command();
    let first = command.first()?;
    // Flags before the first word belong to kubectl.
    if *first == "help" {
        return None;
    }
    let is_create_plugin = *first == "create" && command.len() > 1;
    match root.find_subcommand(first) {
        None => {}
        Some(create) if is_create_plugin && create.find_subcommand(command[1]).is_none() => {}
        Some(_) => return None,
    }
    let (path, used) = lookup(&command)?;
    let error = std::process::Command::new(&path)
        .args(&words[1 + used..])
        .exec();
    eprintln!("error: {}: {error}", path.display());
    Some(ExitCode::FAILURE)
}

/// The longest matching program name, and its number of words.
fn lookup(command: &[&str]) -> Option<(PathBuf, usize)> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    (1..=command.len()).rev().find_map(|count| {
        let words: Vec<String> = command[..count]
            .iter()
            .map(|word| word.replace('-', "_"))
            .collect();
        let name = format!("kubectl-{}", words.join("-"));
        if name.contains('/') {
            return None;
        }
        let found = std::env::split_paths(&path)
            .map(|directory| directory.join(&name))
            .find(|path| is_executable(path));
        found.map(|path| (path, count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_whose_name_begins_with_a_command_are_named_with_it() {
        for (name, command) in [
            ("kubectl-foo", None),
            ("kubectl-get", Some("kubectl get")),
            ("kubectl-create-thing", Some("kubectl create")),
            ("kubectl-config-view-x", Some("kubectl config view")),
            ("kubectl-api_resources", None),
        ] {
            assert_eq!(builtin(name).as_deref(), command, "{name}");
        }
    }
}
