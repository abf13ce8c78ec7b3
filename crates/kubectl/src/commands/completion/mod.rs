//! `kubectl completion`: shell scripts, which call `kubectl __complete` for candidates.

mod candidates;
mod words;

use anyhow::{Result, bail};
use clap::Args;

use crate::args::Global;

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

impl Complete {
    /// Prints the candidates. Scripts of upstream's kubectl expect a number after them, which says
    /// what the shell does next; ours call `__complete --`.
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let mut given = std::env::args().skip_while(|word| !word.starts_with("__complete"));
        let has_descriptions = given.next().as_deref() != Some("__completeNoDesc");
        let is_ours = given.next().as_deref() == Some("--");
        let found = candidates::find(global, &self.words, is_ours).await;
        for line in &found.lines {
            let name = line.split('\t').next().unwrap_or_default();
            println!(
                "{}",
                if has_descriptions {
                    line.as_str()
                } else {
                    name
                }
            );
        }
        if !is_ours {
            println!(":{}", found.directive);
            eprintln!(
                "Completion ended with directive: {}",
                found.directive_name()
            );
        }
        Ok(())
    }
}
