//! `kubectl completion`: shell scripts, which call `kubectl __complete` for candidates.

use anyhow::{Result, bail};
use clap::{Args, CommandFactory};

use crate::{
    args::{Cli, Global},
    json::{list, str_of},
    kubeconfig,
    session::Session,
};

/// Flags of `completion`.
#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// bash, zsh, fish or powershell
    shell: Option<String>,
}

/// For bash.
const BASH: &str = r#"# kubectl completion for bash
__kubectl_complete() {
    local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    local line candidates=()
    while IFS= read -r line; do
        [[ -n "$line" ]] && candidates+=("${line%%$'\t'*}")
    done < <("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null)
    COMPREPLY=()
    local cur="${COMP_WORDS[COMP_CWORD]}"
    for line in "${candidates[@]}"; do
        [[ "$line" == "$cur"* ]] && COMPREPLY+=("$line")
    done
    if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == */ ]] || [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
}
complete -o default -F __kubectl_complete kubectl
"#;

const ZSH: &str = r#"#compdef kubectl
# kubectl completion for zsh
_kubectl() {
    local -a candidates
    local line
    while IFS= read -r line; do
        [[ -n "$line" ]] || continue
        local name="${line%%$'\t'*}" text=""
        [[ "$line" == *$'\t'* ]] && text="${line#*$'\t'}"
        candidates+=("${name//:/\\:}:$text")
    done < <("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    _describe 'kubectl' candidates || _files
}
compdef _kubectl kubectl
"#;

const FISH: &str = r#"# kubectl completion for fish
function __kubectl_complete
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete -- $words[2..-1] 2>/dev/null
end
complete -c kubectl -f -a '(__kubectl_complete)'
"#;

const POWERSHELL: &str = r#"# kubectl completion for powershell
Register-ArgumentCompleter -Native -CommandName 'kubectl' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $words = @($commandAst.CommandElements | Select-Object -Skip 1 | ForEach-Object { "$_" })
    if ($wordToComplete -eq '') { $words += '' }
    & kubectl __complete -- @words 2>$null | ForEach-Object {
        $parts = $_ -split "`t", 2
        if ($parts[0] -like "$wordToComplete*") {
            [System.Management.Automation.CompletionResult]::new($parts[0], $parts[0], 'ParameterValue', $parts[-1])
        }
    }
}
"#;

/// The scripts for bash, zsh and fish, in this order.
pub const COMPLETIONS: [&str; 3] = [BASH, ZSH, FISH];

impl Completion {
    pub(crate) fn run(self) -> Result<()> {
        match self.shell.as_deref() {
            None => {
                bail!("Shell not specified.\nSee 'kubectl completion -h' for help and examples")
            }
            Some("bash") => print!("{BASH}"),
            Some("zsh") => print!("{ZSH}"),
            Some("fish") => print!("{FISH}"),
            Some("powershell") => print!("{POWERSHELL}"),
            Some(other) => bail!(
                "Unsupported shell type {other:?}.\nSee 'kubectl completion -h' for help and examples"
            ),
        }
        Ok(())
    }
}

/// The words so far; the last one is being typed.
#[derive(Debug, Args)]
pub(crate) struct Complete {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// The source of candidates.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Given(Vec<String>),
    Types,
    Names(String),
    Namespaces,
    Contexts,
    Nothing,
}

impl Complete {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let mut global = global.clone();
        let (wish, namespace) = decide(&self.words);
        if namespace.is_some() {
            global.namespace = namespace;
        }
        let found = match wish {
            Wish::Given(found) => found,
            Wish::Nothing => Vec::new(),
            Wish::Contexts => {
                let config = kubeconfig::load(&global)?;
                list(&config["contexts"])
                    .map(|entry| str_of(&entry["name"]).to_owned())
                    .collect()
            }
            wish => self.ask(&global, wish).await?,
        };
        found.iter().for_each(|line| println!("{line}"));
        // Scripts of upstream's kubectl expect a directive: no names of files.
        let mut words = std::env::args().skip_while(|word| word != "__complete");
        if words.nth(1).as_deref() != Some("--") {
            println!(":4");
        }
        Ok(())
    }

    async fn ask(&self, global: &Global, wish: Wish) -> Result<Vec<String>> {
        let session = Session::open(global, "", "kubectl __complete")?;
        let typed = self.words.last().cloned().unwrap_or_default();
        match wish {
            Wish::Types => {
                let resources = session.discovery.resources().await?;
                let mut names: Vec<String> = resources
                    .iter()
                    .map(|resource| resource.plural.clone())
                    .collect();
                names.sort();
                names.dedup();
                Ok(names)
            }
            Wish::Namespaces => names(&session, "namespaces", "").await,
            Wish::Names(kind) => {
                let prefix = typed
                    .split_once('/')
                    .map(|(kind, _)| format!("{kind}/"))
                    .unwrap_or_default();
                names(&session, &kind, &prefix).await
            }
            _ => Ok(Vec::new()),
        }
    }
}

async fn names(session: &Session, kind: &str, prefix: &str) -> Result<Vec<String>> {
    let resource = session.discovery.resolve(kind).await?;
    let items = session
        .api
        .items(&resource.collection(Some(&session.namespace)))
        .await?;
    Ok(items
        .iter()
        .map(|item| format!("{prefix}{}", str_of(&item["metadata"]["name"])))
        .collect())
}

/// Commands whose words are pods.
const PODS: &[&str] = &["logs", "exec", "attach", "port-forward", "cp", "debug"];
/// Commands whose words are nodes.
const NODES: &[&str] = &["drain", "cordon", "uncordon"];

/// The candidates for the last word, and the namespace given in the words.
fn decide(words: &[String]) -> (Wish, Option<String>) {
    let root = Cli::command();
    let Some((typed, before)) = words.split_last() else {
        return (Wish::Nothing, None);
    };
    let mut at = &root;
    let mut path: Vec<&str> = Vec::new();
    let mut arguments: Vec<&str> = Vec::new();
    let mut namespace = None;
    let mut iterator = before.iter();
    let mut pending: Option<String> = None;
    while let Some(word) = iterator.next() {
        if let Some(flag) = word.strip_prefix('-') {
            let name = flag.trim_start_matches('-');
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let takes_value = is_valued(&root, at, name);
            let value = match (value, takes_value) {
                (Some(value), _) => Some(value),
                (None, true) => {
                    let next = iterator.next().cloned();
                    if next.is_none() {
                        pending = Some(name.to_owned());
                    }
                    next
                }
                (None, false) => None,
            };
            if name == "n" || name == "namespace" {
                namespace = value;
            }
        } else if let Some(next) = at.find_subcommand(word) {
            at = next;
            path.push(word);
        } else {
            arguments.push(word);
        }
    }
    if let Some(flag) = pending {
        return (of_flag(&flag), namespace);
    }
    if typed.starts_with('-') {
        return (Wish::Given(flags(&root, at)), namespace);
    }
    let subcommands: Vec<String> = at
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| match sub.get_about() {
            Some(about) => format!("{}\t{about}", sub.get_name()),
            None => sub.get_name().to_owned(),
        })
        .collect();
    if !subcommands.is_empty() && arguments.is_empty() {
        return (Wish::Given(subcommands), namespace);
    }
    (of_argument(&path, &arguments, typed), namespace)
}

fn of_flag(name: &str) -> Wish {
    match name {
        "n" | "namespace" => Wish::Namespaces,
        "context" => Wish::Contexts,
        "o" | "output" => Wish::Given(
            [
                "json",
                "yaml",
                "kyaml",
                "name",
                "wide",
                "jsonpath=",
                "go-template=",
                "custom-columns=",
            ]
            .map(ToOwned::to_owned)
            .into(),
        ),
        "dry-run" => Wish::Given(["none", "client", "server"].map(ToOwned::to_owned).into()),
        _ => Wish::Nothing,
    }
}

fn of_argument(path: &[&str], arguments: &[&str], typed: &str) -> Wish {
    let first = path.first().copied().unwrap_or_default();
    if let Some((kind, _)) = typed.split_once('/') {
        return Wish::Names(kind.to_owned());
    }
    match (first, path.get(1).copied()) {
        ("config", Some("use-context" | "delete-context" | "rename-context" | "get-contexts")) => {
            Wish::Contexts
        }
        ("completion", _) => Wish::Given(
            ["bash", "zsh", "fish", "powershell"]
                .map(ToOwned::to_owned)
                .into(),
        ),
        ("top", Some("pod")) => Wish::Names("pods".into()),
        ("top", Some("node")) => Wish::Names("nodes".into()),
        (command, _) if PODS.contains(&command) && arguments.is_empty() => {
            Wish::Names("pods".into())
        }
        (command, _) if NODES.contains(&command) => Wish::Names("nodes".into()),
        (
            "config" | "create" | "apply" | "run" | "plugin" | "kustomize" | "version" | "options",
            _,
        ) => Wish::Nothing,
        ("logs" | "exec" | "attach" | "port-forward" | "cp" | "debug", _) => Wish::Nothing,
        _ => match arguments.first() {
            None => Wish::Types,
            Some(kind) if !kind.contains('/') => Wish::Names((*kind).to_owned()),
            Some(_) => Wish::Types,
        },
    }
}

fn is_valued(root: &clap::Command, at: &clap::Command, name: &str) -> bool {
    let is_it = |argument: &&clap::Arg| {
        argument.get_long() == Some(name)
            || argument
                .get_short()
                .is_some_and(|short| name.starts_with(short) && name.len() == 1)
    };
    let found = at
        .get_arguments()
        .find(is_it)
        .or_else(|| root.get_arguments().find(is_it));
    found.is_some_and(|argument| {
        argument.get_action().takes_values() && !argument.is_require_equals_set()
    })
}

fn flags(root: &clap::Command, at: &clap::Command) -> Vec<String> {
    let own = at
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let global = root
        .get_arguments()
        .filter(|argument| argument.is_global_set());
    let line = |argument: &clap::Arg| {
        let help = argument
            .get_help()
            .map(ToString::to_string)
            .unwrap_or_default();
        argument.get_long().map(|long| format!("--{long}\t{help}"))
    };
    own.chain(global).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_completion_depends_on_the_words_before_the_cursor() {
        let wish = |line: &str| decide(&line.split(' ').map(ToOwned::to_owned).collect::<Vec<_>>());
        assert_eq!(wish("get ").0, Wish::Types);
        assert_eq!(wish("get pods "), (Wish::Names("pods".into()), None));
        assert_eq!(
            wish("-n web get pods x"),
            (Wish::Names("pods".into()), Some("web".into()))
        );
        assert_eq!(wish("get -n ").0, Wish::Namespaces);
        assert_eq!(wish("logs ").0, Wish::Names("pods".into()));
        assert_eq!(wish("describe deploy/w").0, Wish::Names("deploy".into()));
        assert_eq!(wish("config use-context ").0, Wish::Contexts);
        let Wish::Given(found) = wish("rollout ").0 else {
            panic!("subcommands")
        };
        assert!(found.iter().any(|line| line.starts_with("restart\t")));
        let Wish::Given(found) = wish("get --sh").0 else {
            panic!("flags")
        };
        assert!(found.iter().any(|line| line.starts_with("--show-labels\t")));
    }
}
