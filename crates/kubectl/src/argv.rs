//! Command-line parsing as kubectl's users expect it: `--flag=false`, `--some_flag`, repeated
//! flags; and kubectl's messages for invalid input.

use std::{any::TypeId, convert::Infallible, path::PathBuf, process::ExitCode};

use clap::{
    Arg, ArgAction, ArgMatches, Command, CommandFactory,
    builder::ValueParser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{args::Cli, called::Called, commands, duration, record};

/// Replaces underscores in flag names by dashes, and names of flags that mean different flags in
/// different commands by those of the definitions; up to `--`.
pub(crate) fn normal(root: &Command, mut words: Vec<String>) -> Vec<String> {
    let is_completion = words
        .get(1)
        .is_some_and(|word| word.starts_with("__complete"));
    if is_completion && words.get(2).is_some_and(|word| word != "--") {
        // What is to be completed is not parsed: `-n` has no value yet.
        words.insert(2, "--".to_owned());
    }
    let words = renamed(words, |name| name.replace('_', "-"));
    let called = Called::find(root, &words);
    renamed(words.clone(), |name| called.own_name(name).to_owned())
}

fn renamed(mut words: Vec<String>, rename: impl Fn(&str) -> String) -> Vec<String> {
    let flags = words.iter_mut().skip(1).take_while(|word| *word != "--");
    for word in flags {
        let Some(flag) = word.strip_prefix("--") else {
            continue;
        };
        *word = match flag.split_once('=') {
            Some((name, value)) => format!("--{}={value}", rename(name)),
            None => format!("--{}", rename(flag)),
        };
    }
    words
}

/// The commands, whose flags are parsed as by Go's pflag.
pub(crate) fn command() -> Command {
    let root = as_pflag(record::with_flag(Cli::command()), "");
    let help = commands::help(&root);
    root.help_template(help)
}

/// Commands that take no arguments and ignore those that are given.
const IGNORE_ARGUMENTS: &[&str] = &[
    "alpha",
    "auth whoami",
    "cluster-info",
    "cluster-info dump",
    "config current-context",
    "config get-clusters",
    "config get-users",
    "events",
    "kuberc set",
    "kuberc view",
    "options",
    "plugin list",
    "proxy",
    "replace",
];

fn as_pflag(command: Command, path: &str) -> Command {
    let names: Vec<String> = command
        .get_subcommands()
        .map(|sub| sub.get_name().to_owned())
        .collect();
    let mut command = command.mut_args(flag).args_override_self(true);
    if IGNORE_ARGUMENTS.contains(&path) {
        command = command.arg(Arg::new("ignored").num_args(0..).hide(true));
    }
    for name in names {
        let inner = format!("{path} {name}");
        command = command.mut_subcommand(name, |sub| as_pflag(sub, inner.trim_start()));
    }
    command
}

/// A boolean flag accepts `=true` and `=false`; other flags take the next word whatever it looks
/// like.
fn flag(arg: Arg) -> Arg {
    if arg.is_positional() {
        return arg;
    }
    let default: Vec<String> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
    let is_switch = match arg.get_action() {
        ArgAction::SetTrue => true,
        ArgAction::Set => matches!(default.first().map(String::as_str), Some("true" | "false")),
        _ => false,
    };
    if is_switch {
        let is_true = default.first().is_some_and(|value| value == "true");
        return arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .default_value(if is_true { "true" } else { "false" })
            .default_missing_value("true")
            .hide_default_value(!is_true)
            .hide_possible_values(true)
            .value_parser(ValueParser::new(switch));
    }
    let is_bool = |arg: &Arg| {
        let values = arg.get_possible_values();
        !values.is_empty()
            && values
                .iter()
                .all(|value| matches!(value.get_name(), "true" | "false"))
    };
    let has_name = |arg: &Arg, name: &str| {
        let mut names = arg.get_value_names().into_iter().flatten();
        names.any(|known| known.as_str() == name)
    };
    // These two are parsed in ways of their own.
    let is_go_duration = |id: &str| id != "request_timeout" && id != "log_flush_frequency";
    let arg = match &arg {
        arg if is_bool(arg) => arg.clone().value_parser(ValueParser::new(switch)),
        arg if has_name(arg, "DURATION") && is_go_duration(arg.get_id().as_str()) => {
            arg.clone().value_parser(ValueParser::new(duration::flag))
        }
        // The usual parser refuses an empty one.
        arg if arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() => {
            arg.clone().value_parser(ValueParser::new(any_path))
        }
        _ => arg,
    };
    match arg.get_action() {
        ArgAction::Set | ArgAction::Append if !arg.is_require_equals_set() => {
            arg.allow_hyphen_values(true)
        }
        _ => arg,
    }
}

fn any_path(text: &str) -> Result<PathBuf, Infallible> {
    Ok(text.into())
}

/// Parses a bool as Go's strconv.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!(
            "strconv.ParseBool: parsing {text:?}: invalid syntax"
        )),
    }
}

/// `create deployment`, the command that was called.
pub(crate) fn path(matches: &ArgMatches) -> String {
    let mut words = Vec::new();
    let mut matches = matches;
    while let Some((name, inner)) = matches.subcommand() {
        words.push(name.to_owned());
        matches = inner;
    }
    words.join(" ")
}

/// Reports invalid input, as kubectl does.
pub(crate) fn report(error: &clap::Error, words: &[String]) -> ExitCode {
    let mistake = Mistake::new(error, words);
    let is_help_shown = mistake.path == "kubectl certificate";
    if let Some(code) = mistake.report_number_of_arguments() {
        return code;
    }
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print!("{}", with_shown_names(error.render().to_string()));
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if is_help_shown => {
            print!("{}", error.render());
            return ExitCode::SUCCESS;
        }
        ErrorKind::InvalidSubcommand if words.get(1).is_some_and(|word| word == "help") => {
            let topics = words[2..].join("` `");
            println!("Unknown help topic [`{topics}`]\n");
            let _ = command().print_help();
            return ExitCode::SUCCESS;
        }
        ErrorKind::MissingSubcommand => {
            let _ = command().print_help();
            return ExitCode::SUCCESS;
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            if mistake.path == "kubectl rollout" =>
        {
            print!("{}", error.render());
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => eprint!("{}", error.render()),
        _ => eprintln!("{}", mistake.message()),
    }
    mistake.exit_code()
}

/// Invalid input.
struct Mistake<'a> {
    error: &'a clap::Error,
    words: &'a [String],
    /// `kubectl create deployment`, the command that was called.
    path: String,
}

impl<'a> Mistake<'a> {
    fn new(error: &'a clap::Error, words: &'a [String]) -> Self {
        Self {
            error,
            words,
            path: called(words),
        }
    }

    fn context(&self, kind: ContextKind) -> String {
        match self.error.get(kind) {
            Some(ContextValue::String(text)) => text.clone(),
            Some(ContextValue::Strings(texts)) => texts.join(" "),
            _ => String::new(),
        }
    }

    /// The words behind the command.
    fn arguments(&self) -> String {
        let root = command();
        let called = Called::find(&root, self.words);
        called.arguments(self.words).join(" ")
    }

    /// Commands that report a wrong number of arguments by their help.
    fn report_number_of_arguments(&self) -> Option<ExitCode> {
        let is_about_arguments = match self.error.kind() {
            ErrorKind::MissingRequiredArgument => true,
            ErrorKind::UnknownArgument => !self.context(ContextKind::InvalidArg).starts_with('-'),
            ErrorKind::InvalidSubcommand => true,
            _ => false,
        };
        let name = self.path.strip_prefix("kubectl ")?;
        let said = match name {
            "certificate" | "config delete-cluster" | "config delete-context" => None,
            "config set-credentials" => Some("unexpected"),
            "config rename-context"
            | "config set"
            | "config set-cluster"
            | "config set-context"
            | "config unset"
            | "config use-context" => Some("Unexpected"),
            _ => return None,
        };
        if !is_about_arguments {
            return None;
        }
        print!("{}", help_of(name));
        Some(match said {
            None => ExitCode::SUCCESS,
            Some(said) => {
                eprintln!("error: {said} args: [{}]", self.arguments());
                ExitCode::FAILURE
            }
        })
    }

    /// 1 of `diff` means that there is a difference.
    fn exit_code(&self) -> ExitCode {
        match self.path.as_str() {
            "kubectl diff" => ExitCode::from(2),
            _ => ExitCode::FAILURE,
        }
    }

    /// The line after the error.
    fn see(&self) -> String {
        match self.path.as_str() {
            "kubectl diff" => self.see_examples(),
            path => format!("See '{path} --help' for usage."),
        }
    }

    fn see_examples(&self) -> String {
        format!("See '{} -h' for help and examples", self.path)
    }

    fn message(&self) -> String {
        let see = self.see();
        match self.error.kind() {
            ErrorKind::UnknownArgument => self.unknown_argument(),
            ErrorKind::InvalidSubcommand => self.unknown_command(),
            ErrorKind::ArgumentConflict if self.path == "kubectl apply" => {
                format!("error: {}", unexpected(&self.path, &self.arguments()))
            }
            ErrorKind::ValueValidation | ErrorKind::InvalidValue
                if self.error.kind() == ErrorKind::ValueValidation
                    || !self.context(ContextKind::InvalidValue).is_empty() =>
            {
                let value = self.context(ContextKind::InvalidValue);
                let name = flag_name(&command(), &self.path, &self.flag());
                let why = reason(self.error);
                format!("error: invalid argument {value:?} for {name:?} flag{why}\n{see}")
            }
            ErrorKind::InvalidValue => self.missing_value(),
            ErrorKind::MissingRequiredArgument => self.missing_argument(),
            _ => {
                let text = self.error.render().to_string();
                let first = text.lines().next().unwrap_or_default();
                format!("{first}\n{see}")
            }
        }
    }

    /// The flag whose value is invalid.
    fn flag(&self) -> String {
        let flag = self.context(ContextKind::InvalidArg);
        let name = flag.split(['=', ' ', '[']).next();
        name.unwrap_or(&flag).to_owned()
    }

    fn unknown_argument(&self) -> String {
        let given = self.context(ContextKind::InvalidArg);
        let see = self.see();
        match given.strip_prefix('-') {
            Some(_) if self.misplaced_flag().is_some() => {
                let flag = self.misplaced_flag().unwrap_or_default();
                format!("Error: flags cannot be placed before plugin name: {flag}")
            }
            Some("-") => {
                let word = word_of(self.words, &given);
                format!("error: bad flag syntax: {word}\n{see}")
            }
            Some(rest) if rest.starts_with('-') => {
                let name = given.split('=').next().unwrap_or(&given);
                format!("error: unknown flag: {name}\n{see}")
            }
            Some(rest) => {
                let letter = rest.chars().next().unwrap_or_default();
                let word = word_of(self.words, &given);
                format!("error: unknown shorthand flag: '{letter}' in {word}\n{see}")
            }
            None => format!("error: {}", unexpected(&self.path, &self.arguments())),
        }
    }

    fn unknown_command(&self) -> String {
        let given = self.context(ContextKind::InvalidSubcommand);
        let shown = match self.path.as_str() {
            "kubectl" => given.clone(),
            _ => self.arguments(),
        };
        if let Some(flag) = self.misplaced_flag() {
            return format!("Error: flags cannot be placed before plugin name: {flag}");
        }
        let mut message = format!("error: {}", unexpected(&self.path, &shown));
        let near = match self.path.as_str() {
            "kubectl" => suggestions(&given),
            _ => Vec::new(),
        };
        if !near.is_empty() {
            message.push_str("\n\nDid you mean this?");
            for name in near {
                message.push_str(&format!("\n\t{name}"));
            }
        }
        message
    }

    /// The flag before a word that is no command, and so the name of a plugin. As upstream, an unknown flag has the next
    /// word as its value.
    fn misplaced_flag(&self) -> Option<&str> {
        let root = command();
        let first = self.words.get(1).filter(|word| word.starts_with('-'))?;
        let is_switch = |flag: &Arg| flag.is_require_equals_set();
        let long = |name: &str| {
            root.get_arguments()
                .find(|flag| flag.get_long() == Some(name))
        };
        let short = |letter| root.get_arguments().find(|flag| flag.get_short() == letter);
        let mut words = self.words.iter().skip(1);
        while let Some(word) = words.next() {
            let has_value = match word.strip_prefix('-') {
                None => {
                    let is_known = word == "help" || root.find_subcommand(word).is_some();
                    return (!is_known).then_some(first.as_str());
                }
                Some("-") => return None,
                Some(_) if word.contains('=') => false,
                Some(flag) => match flag.strip_prefix('-') {
                    Some(name) => !long(name).is_some_and(is_switch),
                    None => flag.len() == 1 && !short(flag.chars().next()).is_some_and(is_switch),
                },
            };
            if has_value {
                words.next();
            }
        }
        None
    }

    fn missing_value(&self) -> String {
        let see = self.see();
        let short = self.words.last().and_then(|word| word.strip_prefix('-'));
        match short.filter(|letters| !letters.starts_with('-')) {
            Some(letters) => {
                let letter = letters.chars().last().unwrap_or_default();
                format!("error: flag needs an argument: '{letter}' in -{letters}\n{see}")
            }
            None => {
                let flag = with_shown_names(self.flag());
                format!("error: flag needs an argument: {flag}\n{see}")
            }
        }
    }

    fn missing_argument(&self) -> String {
        let missing = self.context(ContextKind::InvalidArg);
        let mut needed = match self.path.as_str() {
            "kubectl create deployment" => vec!["image"],
            "kubectl create service externalname" => vec!["external-name"],
            "kubectl create cronjob" => vec!["image", "schedule"],
            "kubectl create clusterrolebinding" => vec!["clusterrole"],
            _ => Vec::new(),
        };
        needed.retain(|flag| {
            let flag = format!("--{flag}");
            let is_it = |word: &String| word.split('=').next() == Some(&flag);
            !self.words.iter().any(is_it)
        });
        if !needed.is_empty() {
            return required(&needed);
        }
        let hint = self.see_examples();
        match self.path.as_str() {
            "kubectl cp" => "error: source and destination are required".to_owned(),
            "kubectl port-forward" => {
                format!("error: TYPE/NAME and list of ports are required for port-forward\n{hint}")
            }
            "kubectl certificate approve" | "kubectl certificate deny" => {
                "error: one or more CSRs must be specified as <name> or -f <filename>".to_owned()
            }
            "kubectl config delete-user" => format!("error: user to delete is required\n{hint}"),
            create if create.starts_with("kubectl create ") && missing == "<NAME>" => {
                format!("error: exactly one NAME is required, got 0\n{hint}")
            }
            _ => format!(
                "error: required arguments are missing: {missing}\n{}",
                self.see()
            ),
        }
    }
}

/// The help of a command, by its names.
fn help_of(name: &str) -> String {
    let mut root = command();
    root.build();
    let mut command = &mut root;
    for word in name.split(' ') {
        match command.find_subcommand_mut(word) {
            Some(next) => command = next,
            None => return String::new(),
        }
    }
    with_shown_names(command.render_help().to_string())
}

/// The error for flags that must be given.
fn required(flags: &[&str]) -> String {
    let quoted: Vec<String> = flags.iter().map(|flag| format!("{flag:?}")).collect();
    format!("error: required flag(s) {} not set", quoted.join(", "))
}

/// The word of the command line that a flag stands in, with its value.
fn word_of<'a>(words: &'a [String], flag: &'a str) -> &'a str {
    let is_short = !flag.starts_with("--");
    let is_meant = |word: &&String| match word.strip_prefix(flag) {
        Some(rest) => rest.starts_with('=') || is_short && !rest.is_empty(),
        None => false,
    };
    let word = words.iter().find(is_meant);
    word.map_or(flag, String::as_str)
}

/// The commands that begin with a word, or differ from it by at most two letters.
fn suggestions(given: &str) -> Vec<String> {
    let root = Cli::command();
    root.get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .filter(|name| distance(given, name) <= 2 || name.starts_with(given))
        .collect()
}

/// How many letters to insert, delete or replace.
pub(crate) fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// The flags as users write them: `--user` of bindings has another name inside.
pub(crate) fn with_shown_names(text: String) -> String {
    text.replace("--subject-user", "--user")
        .replace("--global-profile", "--profile")
}

/// `-p, --port`: the flag with its letter.
fn flag_name(root: &Command, path: &str, flag: &str) -> String {
    let mut command = root;
    for word in path.split(' ').skip(1) {
        command = command.find_subcommand(word).unwrap_or(command);
    }
    let long = flag.trim_start_matches('-');
    let mut arguments = command.get_arguments().chain(root.get_arguments());
    let short = arguments
        .find(|argument| argument.get_long() == Some(long))
        .and_then(Arg::get_short);
    short.map_or(flag.to_owned(), |letter| format!("-{letter}, {flag}"))
}

/// The error for an invalid number, as Go's strconv words it.
fn reason(error: &clap::Error) -> String {
    use std::{error::Error as _, num::IntErrorKind};
    let Some(cause) = error.source() else {
        return String::new();
    };
    let value = match error.get(clap::error::ContextKind::InvalidValue) {
        Some(clap::error::ContextValue::String(value)) => value.as_str(),
        _ => "",
    };
    let why = match cause.downcast_ref::<std::num::ParseIntError>() {
        Some(number) => match number.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        },
        // Numbers that 64 bits hold, but the flag's type does not.
        None if cause.to_string().contains(" is not in -") => "value out of range",
        None => return format!(": {cause}"),
    };
    format!(": strconv.ParseInt: parsing {value:?}: {why}")
}

/// The error for an unexpected argument.
fn unexpected(path: &str, given: &str) -> String {
    let said = match path {
        "kubectl" => return format!("unknown command {given:?} for {path:?}"),
        "kubectl create" | "kubectl apply" | "kubectl diff" => {
            format!("Unexpected args: [{given}]")
        }
        "kubectl completion" => "Too many arguments. Expected only the shell type.".to_owned(),
        "kubectl explain" => return "We accept only this format: explain RESOURCE".to_owned(),
        "kubectl version" => return format!("extra arguments: [{given}]"),
        "kubectl api-resources" | "kubectl api-versions" | "kubectl config view" => {
            format!("unexpected arguments: [{given}]")
        }
        "kubectl logs" => "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\n\
             POD or TYPE/NAME is a required argument for the logs command"
            .to_owned(),
        "kubectl cp" => return "source and destination are required".to_owned(),
        "kubectl config delete-user" => "user to delete is required".to_owned(),
        "kubectl top node" => "node [NAME | -l label]".to_owned(),
        "kubectl top pod" => "pod [NAME | -l label]".to_owned(),
        "kubectl create secret" | "kubectl create service" => {
            format!("unknown command {given:?}")
        }
        create if create.starts_with("kubectl create ") => {
            "exactly one NAME is required, got 2".to_owned()
        }
        _ => format!("unknown command {given:?}"),
    };
    format!("{said}\nSee '{path} -h' for help and examples")
}

/// `kubectl create deployment`: the words that are commands, also behind flags with values.
fn called(words: &[String]) -> String {
    let root = command();
    let called = Called::find(&root, words);
    [&["kubectl"], &called.path[..]].concat().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let words = text.split(' ').map(str::to_owned).collect();
        normal(&command(), words)
    }

    #[test]
    fn commands_near_a_mistake_are_suggested() {
        assert_eq!(suggestions("gte"), ["get"]);
        assert_eq!(suggestions("getpods"), Vec::<String>::new());
        assert_eq!(suggestions("desc"), ["describe"]);
        assert_eq!(distance("kitten", "sitting"), 3);
    }

    #[test]
    fn the_commands_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn flags_are_read_as_pflag_reads_them() {
        for line in [
            "kubectl get pods --watch=false --all_namespaces=true -o wide -o json",
            "kubectl get pods -A=false -wojson",
            "kubectl logs x --tail -1 -f",
            "kubectl exec -it x -- sh -c ls",
            "kubectl delete pod x --wait=false --cascade=orphan --now",
            "kubectl create rolebinding x --clusterrole=view --user=jane",
            "kubectl create deployment x --image=a --image=b --dry-run=client",
            "kubectl -n x get pods -v=6 --as jane --as-group a --as-group b",
            "kubectl --user=dev get rolebinding x",
            "kubectl delete clusterrolebinding x --user dev",
            "kubectl --profile none get pod debug",
            "kubectl cluster-info x --context a",
            "kubectl cluster-info dump x y",
            "kubectl config get-users x",
            "kubectl replace -f a b",
            "kubectl __complete -n",
        ] {
            let parsed = command().try_get_matches_from(words(line));
            assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
        }
        for line in [
            "kubectl get pods --nonsense",
            "kubectl nonsense",
            "kubectl get pods --watch=perhaps",
        ] {
            assert!(
                command().try_get_matches_from(words(line)).is_err(),
                "{line}"
            );
        }
    }
}
