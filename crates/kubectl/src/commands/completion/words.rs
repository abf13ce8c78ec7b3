//! What the words before the cursor ask for, without asking the cluster.

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::args::Cli;

/// What the last word may be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One of these, with descriptions behind tabs.
    Given(Vec<String>),
    /// A type (any, if none are given), or the name of an object.
    Objects {
        types: &'static [&'static str],
        is_repeated: bool,
    },
    /// A pod or `TYPE/NAME` first, then this.
    Pod(ThenWanted),
    /// The name of one object of a type.
    Name(&'static str),
    /// A container of the pod in the first argument.
    Container,
    Context,
    Cluster,
    User,
    /// A path, or one in a pod: `POD:` or `NAMESPACE/`.
    CopySource,
    /// The name of a file with one of these endings.
    FileWithEnding(&'static [&'static str]),
    /// The name of a file, which the shell knows.
    File,
    Nothing,
}

/// What follows a pod.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ThenWanted {
    Nothing,
    Container,
    Port,
}

/// The words before the cursor, taken apart.
#[derive(Debug)]
pub(super) struct Words {
    pub wanted: Wanted,
    /// Required flags that are not there yet; they are offered beside arguments.
    pub required: Vec<String>,
    /// The word that is being typed.
    pub typed: String,
    /// A part of it that is not completed, such as `--output=`.
    pub prefix: String,
    /// The arguments before, without the names of commands.
    pub arguments: Vec<String>,
    pub namespace: Option<String>,
    pub context: Option<String>,
}

const ROLLOUTS: &[&str] = &["deployment", "daemonset", "statefulset"];
const SCALABLE: &[&str] = &[
    "deployment",
    "replicaset",
    "replicationcontroller",
    "statefulset",
];
const WITH_IMAGES: &[&str] = &[
    "daemonsets",
    "deployments",
    "pods",
    "cronjobs",
    "replicasets",
    "replicationcontrollers",
    "statefulsets",
];
const EXPOSED: &[&str] = &[
    "pod",
    "service",
    "replicationcontroller",
    "deployment",
    "replicaset",
];
const FORMATS: &[&str] = &[
    "json",
    "yaml",
    "kyaml",
    "name",
    "go-template",
    "go-template-file",
    "template",
    "templatefile",
    "jsonpath",
    "jsonpath-as-json",
    "jsonpath-file",
    "custom-columns",
    "custom-columns-file",
    "wide",
];
/// Flags without which a command fails: they are completed first.
const REQUIRED: &[(&[&str], &[&str])] = &[
    (&["run"], &["image"]),
    (&["scale"], &["replicas"]),
    (&["autoscale"], &["max"]),
    (&["create", "deployment"], &["image"]),
    (&["create", "cronjob"], &["image", "schedule"]),
    (&["create", "clusterrolebinding"], &["clusterrole"]),
    (&["create", "service", "externalname"], &["external-name"]),
    (&["kuberc", "set"], &["section"]),
];

/// Takes the words apart.
pub(super) fn parse(words: &[String]) -> Words {
    let root = Cli::command();
    let mut parsed = Words {
        wanted: Wanted::Nothing,
        required: Vec::new(),
        typed: String::new(),
        prefix: String::new(),
        arguments: Vec::new(),
        namespace: None,
        context: None,
    };
    let Some((typed, before)) = words.split_last() else {
        return parsed;
    };
    parsed.typed = typed.clone();
    let mut command = &root;
    let mut path: Vec<&str> = Vec::new();
    let mut before = before.iter();
    let mut pending = None;
    let mut given_flags: Vec<String> = Vec::new();
    while let Some(word) = before.next() {
        if let Some((name, given)) = as_flag(word) {
            let argument = argument(&root, command, name);
            // Flags that may be repeated are offered again.
            let is_repeated =
                argument.is_some_and(|one| matches!(one.get_action(), ArgAction::Append));
            given_flags.extend(
                argument
                    .and_then(Arg::get_long)
                    .filter(|_| !is_repeated)
                    .map(ToOwned::to_owned),
            );
            let value = match given {
                Some(value) => Some(value.to_owned()),
                None if argument.is_some_and(takes_value) => {
                    let next = before.next().cloned();
                    if next.is_none() {
                        pending = argument;
                    }
                    next
                }
                None => None,
            };
            match argument.and_then(Arg::get_long) {
                Some("namespace") => parsed.namespace = value,
                Some("context") => parsed.context = value,
                _ => {}
            }
        } else if let Some(next) = command.find_subcommand(word) {
            command = next;
            path.push(next.get_name());
        } else {
            parsed.arguments.push(word.clone());
        }
    }
    let inline = as_flag(typed).and_then(|(name, value)| Some((name, value?)));
    if let Some((name, value)) = inline {
        pending = argument(&root, command, name);
        parsed.prefix = typed[..typed.len() - value.len()].to_owned();
        parsed.typed = value.to_owned();
    }
    let required = required_flags(command, &path, &given_flags);
    parsed.wanted = match pending {
        Some(argument) if argument.get_long() == Some("output") && path != ["get"] => Wanted::File,
        Some(argument) => of_flag(argument),
        None if inline.is_some() => Wanted::Nothing,
        None if typed.starts_with('-') && !required.is_empty() => Wanted::Given(required.clone()),
        None if typed.starts_with('-') => Wanted::Given(flags(&root, command, &given_flags)),
        None => of_argument(command, &path, &parsed.arguments),
    };
    if pending.is_none() && !typed.starts_with('-') {
        parsed.required = required;
    }
    parsed
}

/// The name and the value of `--name=value`, `--name` or `-n`.
fn as_flag(word: &str) -> Option<(&str, Option<&str>)> {
    let name = word.strip_prefix("--").or(word.strip_prefix('-'))?;
    Some(match name.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (name, None),
    })
}

fn argument<'a>(root: &'a Command, command: &'a Command, name: &str) -> Option<&'a Arg> {
    let letter = (name.chars().count() == 1).then(|| name.chars().next());
    let is_it = |argument: &&Arg| {
        argument.get_long() == Some(name)
            || letter.is_some_and(|letter| argument.get_short() == letter)
    };
    let mut arguments = command.get_arguments().chain(root.get_arguments());
    arguments.find(is_it)
}

fn takes_value(argument: &Arg) -> bool {
    argument.get_action().takes_values() && !argument.is_require_equals_set()
}

fn given(words: &[&str]) -> Wanted {
    Wanted::Given(words.iter().map(|&word| word.to_owned()).collect())
}

fn of_flag(argument: &Arg) -> Wanted {
    match argument.get_long().unwrap_or_default() {
        "namespace" => Wanted::Name("namespaces"),
        "context" => Wanted::Context,
        "cluster" => Wanted::Cluster,
        "user" => Wanted::User,
        "clusterrole" => Wanted::Name("clusterroles"),
        "container" => Wanted::Container,
        "output" => given(FORMATS),
        "dry-run" => given(&["none", "client", "server"]),
        "filename" => Wanted::FileWithEnding(&["json", "yaml", "yml"]),
        "subresource" => given(&["status", "scale", "resize"]),
        _ => Wanted::File,
    }
}

fn of_argument(command: &Command, path: &[&str], arguments: &[String]) -> Wanted {
    if path.is_empty() && arguments.first().is_some_and(|word| word == "help") {
        return match arguments.len() {
            1 => Wanted::Given(subcommands(command)),
            _ => Wanted::Nothing,
        };
    }
    let subcommands = subcommands(command);
    if !subcommands.is_empty() && arguments.is_empty() {
        return Wanted::Given(subcommands);
    }
    let objects = |types, is_repeated| Wanted::Objects { types, is_repeated };
    match *path {
        [
            "config",
            "use-context" | "delete-context" | "rename-context" | "set-context",
        ] => Wanted::Context,
        ["config", "delete-cluster"] => Wanted::Cluster,
        ["config", "delete-user"] => Wanted::User,
        ["cp"] if arguments.is_empty() => Wanted::CopySource,
        ["completion"] => given(&["bash", "zsh", "fish", "powershell"]),
        ["top", "pod"] => Wanted::Name("pods"),
        ["top", "node"] | ["drain" | "cordon" | "uncordon"] => Wanted::Name("nodes"),
        ["create", "token"] => Wanted::Name("serviceaccounts"),
        ["certificate", _] => Wanted::Name("certificatesigningrequests"),
        ["logs"] => Wanted::Pod(ThenWanted::Container),
        ["exec" | "attach"] => Wanted::Pod(ThenWanted::Nothing),
        ["port-forward"] => Wanted::Pod(ThenWanted::Port),
        ["rollout", "pause" | "resume"] => objects(&["deployment"], true),
        ["rollout", "status"] => objects(ROLLOUTS, false),
        ["rollout", _] => objects(ROLLOUTS, true),
        ["scale" | "autoscale"] => objects(SCALABLE, true),
        ["set", "image"] => objects(WITH_IMAGES, false),
        ["expose"] => objects(EXPOSED, true),
        ["taint"] => objects(&["node"], true),
        ["apply", "edit-last-applied" | "view-last-applied"] | ["set", _] => objects(&[], true),
        ["explain"] if !arguments.is_empty() => Wanted::Nothing,
        [
            "annotate" | "debug" | "delete" | "describe" | "edit" | "explain" | "get" | "label"
            | "patch" | "wait",
        ] => objects(&[], true),
        _ => Wanted::File,
    }
}

/// The subcommands in the order of their names.
fn subcommands(command: &Command) -> Vec<String> {
    // There are no alpha commands.
    let is_shown = |sub: &&Command| !sub.is_hide_set() && sub.get_name() != "alpha";
    let shown = command.get_subcommands().filter(is_shown);
    let mut lines: Vec<String> = shown
        .map(|sub| match sub.get_about() {
            Some(about) => format!("{}\t{about}", sub.get_name()),
            None => sub.get_name().to_owned(),
        })
        .collect();
    lines.sort();
    lines
}

/// The global flags, then those of the command, each in the order of their names and before its letter.
fn flags(root: &Command, command: &Command, given: &[String]) -> Vec<String> {
    let own = command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !arg.is_global_set());
    let mut own: Vec<FlagLine> = own.filter_map(FlagLine::new).collect();
    own.push(FlagLine {
        name: "help".to_owned(),
        letter: Some('h'),
        help: format!("help for {}", command.get_name()),
    });
    let global = root.get_arguments().filter(|arg| arg.is_global_set());
    let is_own = |name: &str| own.iter().any(|known| known.name == name);
    let mut global: Vec<FlagLine> = global
        .filter_map(FlagLine::new)
        .filter(|flag| !is_own(&flag.name))
        .collect();
    for flags in [&mut own, &mut global] {
        flags.retain(|flag| !given.contains(&flag.name));
        flags.sort_by(|a, b| a.name.cmp(&b.name));
    }
    let lines = global.iter().chain(&own).flat_map(FlagLine::lines);
    lines.collect()
}

/// One flag as it is shown.
struct FlagLine {
    name: String,
    letter: Option<char>,
    help: String,
}

impl FlagLine {
    fn new(argument: &Arg) -> Option<Self> {
        let shown = crate::argv::with_shown_names(format!("--{}", argument.get_long()?));
        Some(Self {
            name: shown.trim_start_matches('-').to_owned(),
            letter: argument.get_short(),
            help: argument
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default(),
        })
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("--{}\t{}", self.name, self.help)];
        lines.extend(
            self.letter
                .map(|letter| format!("-{letter}\t{}", self.help)),
        );
        lines
    }
}

/// The required flags of a command that are not given.
fn required_flags(command: &Command, path: &[&str], given: &[String]) -> Vec<String> {
    let required = REQUIRED.iter().find(|(known, _)| *known == path);
    let names = required.map_or(&[][..], |(_, names)| names);
    command
        .get_arguments()
        .filter_map(FlagLine::new)
        .filter(|flag| names.contains(&flag.name.as_str()) && !given.contains(&flag.name))
        .flat_map(|flag| flag.lines())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Words {
        parse(&line.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_words_before_the_cursor_decide_what_is_wanted() {
        let objects = Wanted::Objects {
            types: &[],
            is_repeated: true,
        };
        for (line, expected) in [
            ("get pods ", objects),
            ("get -n ", Wanted::Name("namespaces")),
            ("get --namespace=d", Wanted::Name("namespaces")),
            ("logs ", Wanted::Pod(ThenWanted::Container)),
            ("port-forward web ", Wanted::Pod(ThenWanted::Port)),
            ("exec web -c ", Wanted::Container),
            ("config use-context ", Wanted::Context),
            ("--cluster ", Wanted::Cluster),
            (
                "apply -f ",
                Wanted::FileWithEnding(&["json", "yaml", "yml"]),
            ),
            ("cp ", Wanted::CopySource),
            ("cp web:/x ", Wanted::File),
            ("version ", Wanted::File),
            ("get --output=", given(FORMATS)),
        ] {
            assert_eq!(parsed(line).wanted, expected, "{line}");
        }
        let words = parsed("-n web --context=c get pods a x");
        assert_eq!(words.namespace.as_deref(), Some("web"));
        assert_eq!(words.context.as_deref(), Some("c"));
        assert_eq!(words.arguments, ["pods", "a"]);
        assert_eq!(words.typed, "x");
        assert_eq!(parsed("get --output=y").prefix, "--output=");
    }

    #[test]
    fn subcommands_and_flags_are_sorted() {
        for (line, expected) in [
            ("rollout ", ["history", "pause", "restart"]),
            ("get --", ["--as", "--as-group", "--as-uid"]),
        ] {
            let Wanted::Given(found) = parsed(line).wanted else {
                panic!("{line}")
            };
            let names = found.iter().filter_map(|line| line.split('\t').next());
            assert_eq!(names.take(3).collect::<Vec<_>>(), expected);
        }
        let Wanted::Given(found) = parsed("run --").wanted else {
            panic!("flags are wanted")
        };
        assert!(
            found.len() == 1 && found[0].starts_with("--image\t"),
            "{found:?}"
        );
        assert_eq!(parsed("run --image=x ").required.len(), 0);
    }
}
