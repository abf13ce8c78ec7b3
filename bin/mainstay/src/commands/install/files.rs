//! The files of an installation beside the binary, as text: systemd unit, configuration, defaults.

use std::fmt::Write;

use clap::Args;
use cluster::Options;

use crate::cli::Role;

/// The path of the configuration, below the root.
pub(super) const CONFIG: &str = "etc/mainstay/config.yaml";
/// The file that a package's unit reads: the role, and flags.
pub(super) const DEFAULTS: &str = "etc/default/mainstay";

/// The file with the tokens that were among the flags of `mainstay install`. Every user of the machine can see a unit's
/// command, and a process's arguments, but not its environment.
pub(super) const TOKENS: &str = "etc/mainstay/tokens";

/// Flags with secrets, and the variables that replace them.
const SECRETS: [(&str, &str); 2] = [
    ("--token", "MAINSTAY_TOKEN"),
    ("--server-token", "MAINSTAY_SERVER_TOKEN"),
];

/// A unit, and the content of [`TOKENS`] if its flags had tokens.
#[derive(Debug, PartialEq)]
pub(super) struct Unit {
    pub text: String,
    pub tokens: Option<String>,
}

impl Unit {
    fn new(mut start: String) -> Self {
        let mut tokens = String::new();
        for (flag, variable) in SECRETS {
            while let Some(token) = take_token(&mut start, flag) {
                let _ = writeln!(tokens, "{variable}={token}");
            }
        }
        Self {
            text: service("", &format!("EnvironmentFile=-/{TOKENS}\n{start}\n")),
            tokens: Some(tokens).filter(|tokens| !tokens.is_empty()),
        }
    }
}

/// Removes a flag with its token from a command.
fn take_token(start: &mut String, flag: &str) -> Option<String> {
    [format!(" \"{flag}\" \""), format!(" \"{flag}=")]
        .iter()
        .find_map(|prefix| {
            let at = start.find(prefix)?;
            let from = at + prefix.len();
            let length = start[from..].find('"')?;
            let token = start[from..from + length].to_owned();
            // Anything else is no token, and would need quotes in the file.
            let is_token = |c: char| c.is_ascii_alphanumeric() || c == '.';
            if token.is_empty() || !token.chars().all(is_token) {
                return None;
            }
            start.replace_range(at..=from + length, "");
            Some(token)
        })
}

/// The unit of `mainstay install`: one role, with these flags.
pub(super) fn unit(binary: &str, role: Role, flags: &[String]) -> Unit {
    let mut start = format!("/{binary} {} --config /{CONFIG}", command(role));
    for flag in flags {
        // systemd expands percent and dollar signs, and splits at spaces.
        let quoted = flag
            .replace('%', "%%")
            .replace('$', "$$")
            .replace('\\', "\\\\")
            .replace('"', "\\\"");
        let _ = write!(start, " \"{quoted}\"");
    }
    Unit::new(format!("ExecStart={start}"))
}

/// A new unit with the role and flags of an installed one; `None` if that has none.
pub(super) fn renewed_unit(installed: &str) -> Option<Unit> {
    let mut lines = installed.lines();
    let start = lines.find(|line| line.starts_with("ExecStart="))?;
    Some(Unit::new(start.to_owned()))
}

/// Whether a unit runs its role without more flags.
pub(super) fn has_no_flags(unit: &str) -> bool {
    unit.contains(&format!(" --config /{CONFIG}\n"))
}

/// The unit of a package: role and flags are in a separate file.
pub(super) fn package_unit(binary: &str) -> String {
    let start = format!(
        "Environment=MAINSTAY_COMMAND=up\nEnvironmentFile=-/{DEFAULTS}\n\
         ExecStart=/{binary} $MAINSTAY_COMMAND --config /{CONFIG} $MAINSTAY_FLAGS\n"
    );
    service(
        "Documentation=file:///usr/share/doc/mainstay/README.md\n",
        &start,
    )
}

fn command(role: Role) -> &'static str {
    match role {
        Role::Up => "up",
        Role::Server => "server",
        Role::Agent => "agent",
    }
}

/// Stopping the unit stops only the daemon: containers keep running. It is restarted as often as it fails: after a power
/// cut a machine may have no address for longer than systemd's default limit lasts. Only packages have documents.
fn service(documents: &str, start: &str) -> String {
    format!(
        "[Unit]\nDescription=Mainstay: Kubernetes in one binary\n{documents}\
         Wants=network-online.target\nAfter=network-online.target\nStartLimitIntervalSec=0\n\n\
         [Service]\nType=notify\n{start}KillMode=process\nDelegate=yes\nRestart=on-failure\nRestartSec=1\n\
         TimeoutStartSec=infinity\nLimitNOFILE=1048576\nLimitNPROC=infinity\nTasksMax=infinity\nOOMScoreAdjust=-999\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    )
}

/// The default command of a package's unit.
pub(super) const DEFAULTS_TEXT: &str = "\
# What the service `mainstay` runs: up (a control plane and a node), server (a control plane) or agent (a node).
MAINSTAY_COMMAND=up

# More flags, separated by spaces. For an agent: --server https://SERVER:6443 --ca-hash sha256:HASH
MAINSTAY_FLAGS=

# The token that an agent joins with; it is not needed again after that.
#MAINSTAY_TOKEN=
";

/// Every option with its description, commented out.
pub(super) fn config() -> String {
    let command = Options::augment_args(clap::Command::new("mainstay"));
    let mut text =
        "# Options of mainstay. Keys are the names of flags; a flag takes precedence over this file.\n"
            .to_owned();
    for argument in command.get_arguments() {
        let (Some(name), Some(help)) = (argument.get_long(), argument.get_help()) else {
            continue;
        };
        if name == "config" {
            continue;
        }
        let takes_value = argument.get_action().takes_values();
        let value = match argument.get_value_names() {
            Some([value, ..]) if takes_value => value.as_str(),
            _ => "true",
        };
        let _ = write!(text, "\n# {help}\n# {name}: {value}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_reach_the_daemon_as_they_were_given() {
        let flags = ["--server", "https://a b:6443", "100%", "$HOME"].map(str::to_owned);
        let made = unit("usr/local/bin/mainstay", Role::Agent, &flags);
        let unit = &made.text;
        let start = "ExecStart=/usr/local/bin/mainstay agent --config /etc/mainstay/config.yaml \
                     \"--server\" \"https://a b:6443\" \"100%%\" \"$$HOME\"\n";
        assert!(unit.contains(start), "{unit}");
        assert!(unit.contains("KillMode=process\n"), "{unit}");
        assert_eq!(renewed_unit(unit).as_ref(), Some(&made));
        assert!(!has_no_flags(unit));
        assert!(has_no_flags(&super::unit("mainstay", Role::Up, &[]).text));
    }

    #[test]
    fn tokens_are_not_in_the_command_that_every_user_can_see() {
        let flags = |words: &[&str]| -> Vec<String> {
            words.iter().map(|word| (*word).to_owned()).collect()
        };
        let token = "abcdef.0123456789abcdef";
        for words in [
            &[
                "--server",
                "https://a:6443",
                "--token",
                token,
                "--ca-hash",
                "sha256:1",
            ][..],
            &[
                "--token=abcdef.0123456789abcdef",
                "--server",
                "https://a:6443",
                "--ca-hash",
                "sha256:1",
            ],
        ] {
            let made = unit("mainstay", Role::Agent, &flags(words));
            assert!(!made.text.contains(token), "{}", made.text);
            let rest = "\"--server\" \"https://a:6443\" \"--ca-hash\" \"sha256:1\"\n";
            assert!(made.text.contains(rest), "{}", made.text);
            assert_eq!(made.tokens, Some(format!("MAINSTAY_TOKEN={token}\n")));
        }
        let made = unit(
            "mainstay",
            Role::Server,
            &flags(&["--server-token", "server.x1"]),
        );
        assert_eq!(
            made.tokens.as_deref(),
            Some("MAINSTAY_SERVER_TOKEN=server.x1\n")
        );
        assert!(has_no_flags(&made.text), "{}", made.text);
        // An upgrade of a unit that has one.
        let before = "[Service]\nExecStart=/mainstay agent --config /c \"--token\" \"abcdef.0123456789abcdef\"\n";
        let made = renewed_unit(before).unwrap();
        assert!(
            made.text
                .contains("ExecStart=/mainstay agent --config /c\n"),
            "{}",
            made.text
        );
        assert!(made.tokens.is_some() && made.text.contains("StartLimitIntervalSec=0\n"));
        // Not a token: the daemon reports it.
        let made = unit("mainstay", Role::Agent, &flags(&["--token", "a b"]));
        assert!(made.tokens.is_none() && made.text.contains("\"a b\""));
    }

    #[test]
    fn the_configuration_file_names_every_option_and_sets_none() {
        let text = config();
        assert!(text.contains("\n# node-name: NAME\n"), "{text}");
        assert!(
            text.lines()
                .all(|line| line.is_empty() || line.starts_with('#')),
            "{text}"
        );
        let keys = text
            .lines()
            .filter_map(|line| line.strip_prefix("# ")?.split_once(": "));
        let names: Vec<&str> = keys
            .map(|(name, _)| name)
            .filter(|name| !name.contains(' '))
            .collect();
        assert!(names.len() > 30, "{names:?}");
        // Unchanged, it is valid and has no effect.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let options = Options {
            config: Some(file.path().to_owned()),
            ..Options::default()
        };
        let read = options.clone().with_file().unwrap();
        assert_eq!(read, options);
    }
}
