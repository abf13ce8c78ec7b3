//! Finds the command in a command line before it is parsed: behind flags and their values.

use clap::{Arg, ArgAction, Command};

/// The command that words name.
#[derive(Debug)]
pub(crate) struct Called<'a> {
    root: &'a Command,
    /// The command; the root if the words name none.
    pub command: &'a Command,
    /// Its names, without `kubectl`.
    pub path: Vec<&'a str>,
    /// The position of the first word that is neither a flag nor the value of one.
    pub start: Option<usize>,
}

impl<'a> Called<'a> {
    /// Looks at the words behind the program's name, up to `--`.
    pub(crate) fn find(root: &'a Command, words: &[String]) -> Self {
        let mut called = Self {
            root,
            command: root,
            path: Vec::new(),
            start: None,
        };
        let words = words.iter().enumerate().skip(1);
        let mut words = words.take_while(|(_, word)| *word != "--");
        while let Some((at, word)) = words.next() {
            if let Some(flag) = word.strip_prefix('-') {
                if called.takes_next_word(flag) {
                    words.next();
                }
                continue;
            }
            called.start.get_or_insert(at);
            let Some(next) = called.command.find_subcommand(word) else {
                break;
            };
            called.enter(next);
        }
        called
    }

    /// The words behind the command that are neither flags nor their values.
    pub(crate) fn arguments<'w>(&self, words: &'w [String]) -> Vec<&'w str> {
        let (mut found, mut is_literal) = (Vec::new(), false);
        let mut words = words.iter().skip(1);
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                _ if is_literal => found.push(word.as_str()),
                Some("-") => is_literal = true,
                Some(flag) => {
                    if self.takes_next_word(flag) {
                        words.next();
                    }
                }
                None => found.push(word.as_str()),
            }
        }
        found.split_off(self.path.len().min(found.len()))
    }

    /// The command of some names; the longest known beginning of them.
    pub(crate) fn named(root: &'a Command, names: &str) -> Self {
        let mut called = Self::find(root, &[]);
        for name in names.split_whitespace() {
            match called.command.find_subcommand(name) {
                Some(next) => called.enter(next),
                None => break,
            }
        }
        called
    }

    fn enter(&mut self, command: &'a Command) {
        self.path.push(command.get_name());
        self.command = command;
    }

    fn has(&self, long: &str) -> bool {
        let mut flags = self.command.get_arguments();
        flags.any(|flag| flag.get_long() == Some(long))
    }

    /// The name that a flag has in our definitions. Two names mean different flags in some commands:
    /// `--user` of bindings is a subject, elsewhere the user of the kubeconfig, and `debug` has a
    /// `--profile`, which elsewhere is that of a profiler.
    pub(crate) fn own_name<'n>(&self, name: &'n str) -> &'n str {
        match name {
            "user" if self.has("subject-user") => "subject-user",
            "profile" if !self.has("profile") => "global-profile",
            name => name,
        }
    }

    fn flags(&self) -> impl Iterator<Item = &'a Arg> + use<'a> {
        let command = self.command;
        command.get_arguments().chain(self.root.get_arguments())
    }

    /// A flag of the command, or of all commands.
    pub(crate) fn flag(&self, name: &str) -> Option<&'a Arg> {
        let name = self.own_name(name);
        self.flags().find(|flag| flag.get_long() == Some(name))
    }

    fn short(&self, letter: char) -> Option<&'a Arg> {
        self.flags().find(|flag| flag.get_short() == Some(letter))
    }

    /// Whether the next word is the value of a flag, which is given without its first dash.
    fn takes_next_word(&self, flag: &str) -> bool {
        if let Some(long) = flag.strip_prefix('-') {
            return self.flag(long).is_some_and(has_value);
        }
        // What follows the first letter with a value is its value.
        let mut letters = flag.char_indices();
        let first = letters.find(|(_, letter)| self.short(*letter).is_some_and(has_value));
        first.is_some_and(|(at, letter)| at + letter.len_utf8() == flag.len())
    }

    /// Whether the words set a flag: by name, or by letter, alone or with others (`-Aowide`).
    pub(crate) fn is_set(&self, flag: &Arg, words: &[String]) -> bool {
        let mut words = words.iter().skip(1).take_while(|word| *word != "--");
        words.any(|word| match word.strip_prefix("--") {
            Some(long) => {
                let name = long.split('=').next().unwrap_or(long);
                flag.get_long() == Some(self.own_name(name))
            }
            None => self.has_letter(word, flag),
        })
    }

    fn has_letter(&self, word: &str, flag: &Arg) -> bool {
        for letter in word.strip_prefix('-').unwrap_or_default().chars() {
            if flag.get_short() == Some(letter) {
                return true;
            }
            if self.short(letter).is_none_or(has_value) {
                return false;
            }
        }
        false
    }
}

/// Whether a flag has a value that may be the next word.
fn has_value(flag: &Arg) -> bool {
    matches!(flag.get_action(), ArgAction::Set | ArgAction::Append) && !flag.is_require_equals_set()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argv;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_command_is_found_behind_flags_and_their_values() {
        let root = argv::command();
        for (line, expected, start) in [
            ("kubectl create role", "create role", Some(1)),
            ("kubectl -n default create role", "create role", Some(3)),
            (
                "kubectl --server get create -ojson role",
                "create role",
                Some(3),
            ),
            ("kubectl -v6 --context=a get --watch pods", "get", Some(3)),
            ("kubectl get -wn top", "get", Some(1)),
            ("kubectl --nope get pods", "get", Some(2)),
            ("kubectl --profile none get pods", "get", Some(3)),
            ("kubectl -n x mine pods", "", Some(3)),
            ("kubectl --v=6 -- get", "", None),
        ] {
            let called = Called::find(&root, &words(line));
            assert_eq!(called.path.join(" "), expected, "{line}");
            assert_eq!(called.start, start, "{line}");
        }
        assert_eq!(
            Called::named(&root, "create role x").path.join(" "),
            "create role"
        );
    }

    #[test]
    fn arguments_are_what_is_neither_a_flag_nor_a_value() {
        let root = argv::command();
        for (line, expected) in [
            (
                "kubectl config set -n x a b --server=y c",
                vec!["a", "b", "c"],
            ),
            ("kubectl --context x config use-context", vec![]),
            ("kubectl config nope -v 6 x -- -y", vec!["nope", "x", "-y"]),
        ] {
            let words = words(line);
            let called = Called::find(&root, &words);
            assert_eq!(called.arguments(&words), expected, "{line}");
        }
    }

    #[test]
    fn a_flag_is_set_by_its_name_or_its_letter() {
        let root = argv::command();
        for (line, flag, expected) in [
            ("kubectl get pods -o json", "output", true),
            ("kubectl get pods -Aowide", "output", true),
            ("kubectl get pods -Aowide", "all-namespaces", true),
            ("kubectl get pods --output=json", "output", true),
            // The value of -n.
            ("kubectl get pods -nfoo", "output", false),
            ("kubectl get pods", "output", false),
            ("kubectl exec p -- x -i", "stdin", false),
            ("kubectl create rolebinding x --user=a", "user", true),
        ] {
            let words = words(line);
            let called = Called::find(&root, &words);
            let flag = called.flag(flag).expect(flag);
            assert_eq!(called.is_set(flag, &words), expected, "{line}");
        }
    }
}
