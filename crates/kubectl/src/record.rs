//! `--record`, deprecated: the command that changed an object becomes its annotation
//! `kubernetes.io/change-cause`, which `rollout history` shows.

use clap::{Arg, ArgAction, ArgMatches, Command, parser::ValueSource};
use serde_json::{Value, json};

/// The annotation.
pub(crate) const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";
const FLAG: &str = "record";
/// The commands that have the flag.
const COMMANDS: &[&str] = &[
    "annotate",
    "apply",
    "apply edit-last-applied",
    "autoscale",
    "create",
    "edit",
    "expose",
    "label",
    "patch",
    "replace",
    "run",
    "scale",
    "set image",
    "set resources",
    "set selector",
    "set serviceaccount",
];
/// Flags whose values are not written into objects.
const SECRETS: [&str; 2] = ["token", "password"];

/// Adds the flag to the commands that have it.
pub(crate) fn with_flag(root: Command) -> Command {
    add_flag(root, "")
}

/// Replaces every subcommand, since a replaced one becomes the last: all keep their order.
fn add_flag(command: Command, path: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}").trim_start().to_owned();
        command.mut_subcommand(name, |sub| {
            let flag = Arg::new(FLAG).long(FLAG);
            let flag = flag.action(ArgAction::SetTrue).hide(true);
            let has_it = COMMANDS.contains(&path.as_str());
            let sub = if has_it { sub.arg(flag) } else { sub };
            add_flag(sub, &path)
        })
    })
}

/// The text of the annotation, if `--record` was given. Warns that the flag is deprecated.
pub(crate) fn change_cause(
    root: &Command,
    matches: &ArgMatches,
    words: &[String],
) -> Option<String> {
    let mut matches = matches;
    while let Some((_, inner)) = matches.subcommand() {
        matches = inner;
    }
    let is_recorded = *matches.try_get_one::<bool>(FLAG).ok().flatten()?;
    if matches.value_source(FLAG) != Some(ValueSource::CommandLine) {
        return None;
    }
    eprintln!("Flag --record has been deprecated, --record will be removed in the future");
    is_recorded.then(|| described(root, words))
}

/// Sets the annotation of an object or of a merge patch.
pub(crate) fn annotate(object: &mut Value, cause: &str) {
    object["metadata"]["annotations"][CHANGE_CAUSE] = json!(cause);
}

/// A command line with its arguments first, then its flags with their long names.
fn described(root: &Command, words: &[String]) -> String {
    let (mut arguments, mut flags) = (Vec::new(), Vec::new());
    let mut command = root;
    let mut words = words.iter();
    let program = words.next().map_or("", String::as_str);
    arguments.push(program.rsplit('/').next().unwrap_or(program).to_owned());
    while let Some(word) = words.next() {
        if word == "--" {
            arguments.extend(words.by_ref().cloned());
        } else if let Some(long) = word.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                None => {
                    let arg = find(root, command, |arg| arg.get_long() == Some(long));
                    (long, value(arg, words.by_ref()))
                }
            };
            flags.push(flag(name, &value));
        } else if let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) {
            flags.extend(short_flags(root, command, letters, words.by_ref()));
        } else {
            command = command.find_subcommand(word).unwrap_or(command);
            arguments.push(word.clone());
        }
    }
    arguments.extend(flags);
    arguments.join(" ")
}

/// `-it` or `-nspace`: switches, and at the end perhaps a flag with a value.
fn short_flags<'a>(
    root: &Command,
    command: &Command,
    letters: &str,
    mut next: impl Iterator<Item = &'a String>,
) -> Vec<String> {
    let mut flags = Vec::new();
    for (at, letter) in letters.char_indices() {
        let Some(arg) = find(root, command, |arg| arg.get_short() == Some(letter)) else {
            break;
        };
        let name = arg.get_long().unwrap_or_default();
        let rest = &letters[at + letter.len_utf8()..];
        let is_valued = takes_value(arg);
        if rest.is_empty() || !is_valued && !rest.starts_with('=') {
            flags.push(flag(name, &value(Some(arg), &mut next)));
            continue;
        }
        flags.push(flag(name, rest.strip_prefix('=').unwrap_or(rest)));
        break;
    }
    flags
}

/// The value of a flag that is written without `=`.
fn value<'a>(arg: Option<&Arg>, mut next: impl Iterator<Item = &'a String>) -> String {
    match arg.is_some_and(takes_value) {
        true => next.next().cloned().unwrap_or_default(),
        false => "true".to_owned(),
    }
}

fn takes_value(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !arg.is_require_equals_set()
}

fn find<'a>(
    root: &'a Command,
    command: &'a Command,
    is_meant: impl Fn(&&Arg) -> bool,
) -> Option<&'a Arg> {
    command
        .get_arguments()
        .chain(root.get_arguments())
        .find(is_meant)
}

fn flag(name: &str, value: &str) -> String {
    match SECRETS.contains(&name) {
        true => format!("--{name}=CLASSIFIED"),
        false => format!("--{name}={value}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argv;

    fn cause(line: &str) -> Option<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let matches = argv::command().try_get_matches_from(&words).expect(line);
        change_cause(&argv::command(), &matches, &words)
    }

    #[test]
    fn the_change_cause_is_the_command_with_its_flags_at_the_end() {
        for (line, expected) in [
            (
                "/usr/bin/kubectl -n x set image deploy/web web=b --record",
                "kubectl set image deploy/web web=b --namespace=x --record=true",
            ),
            (
                "kubectl run a -it --rm --image b --record=true --token secret -- sh -c",
                "kubectl run a sh -c --stdin=true --tty=true --rm=true --image=b --record=true --token=CLASSIFIED",
            ),
            (
                "kubectl apply -fx.yaml --record --dry-run=server",
                "kubectl apply --filename=x.yaml --record=true --dry-run=server",
            ),
        ] {
            assert_eq!(cause(line).as_deref(), Some(expected));
        }
        assert_eq!(cause("kubectl scale deploy/web --replicas=2"), None);
        assert_eq!(cause("kubectl label pod a b=c --record=false"), None);
        assert_eq!(cause("kubectl get pods"), None);
    }

    #[test]
    fn only_the_commands_of_upstream_have_the_flag() {
        let words = "kubectl get pods --record".split(' ');
        assert!(argv::command().try_get_matches_from(words).is_err());
    }
}
