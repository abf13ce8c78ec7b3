//! The files of an installation beside the binary, as text: systemd unit, configuration, defaults.

use std::fmt::Write;

use clap::Args;
use cluster::Options;

use crate::cli::Role;

/// The path of the configuration, below the root.
pub(super) const CONFIG: &str = "etc/mainstay/config.yaml";
/// The file that a package's unit reads: the role, and flags.
pub(super) const DEFAULTS: &str = "etc/default/mainstay";

/// The unit of `mainstay install`: one role, with these flags.
pub(super) fn unit(binary: &str, role: Role, flags: &[String]) -> String {
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
    service(&format!("ExecStart={start}\n"))
}

/// A new unit with the role and flags of an installed one; `None` if that has none.
pub(super) fn renewed_unit(installed: &str) -> Option<String> {
    let mut lines = installed.lines();
    let start = lines.find(|line| line.starts_with("ExecStart="))?;
    Some(service(&format!("{start}\n")))
}

/// Whether a unit runs its role without more flags.
pub(super) fn has_no_flags(unit: &str) -> bool {
    unit.contains(&format!(" --config /{CONFIG}\n"))
}

/// The unit of a package: role and flags are in a separate file.
pub(super) fn package_unit(binary: &str) -> String {
    service(&format!(
        "Environment=MAINSTAY_COMMAND=up\nEnvironmentFile=-/{DEFAULTS}\n\
         ExecStart=/{binary} $MAINSTAY_COMMAND --config /{CONFIG} $MAINSTAY_FLAGS\n"
    ))
}

fn command(role: Role) -> &'static str {
    match role {
        Role::Up => "up",
        Role::Server => "server",
        Role::Agent => "agent",
    }
}

/// Stopping the unit stops only the daemon: containers keep running.
fn service(start: &str) -> String {
    format!(
        "[Unit]\nDescription=Mainstay: Kubernetes in one binary\n\
         Documentation=file:///usr/share/doc/mainstay/README.md\n\
         Wants=network-online.target\nAfter=network-online.target\n\n\
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
        let unit = unit("usr/local/bin/mainstay", Role::Agent, &flags);
        let start = "ExecStart=/usr/local/bin/mainstay agent --config /etc/mainstay/config.yaml \
                     \"--server\" \"https://a b:6443\" \"100%%\" \"$$HOME\"\n";
        assert!(unit.contains(start), "{unit}");
        assert!(unit.contains("KillMode=process\n"), "{unit}");
        assert_eq!(renewed_unit(&unit).as_ref(), Some(&unit));
        assert!(!has_no_flags(&unit));
        assert!(has_no_flags(&super::unit("mainstay", Role::Up, &[])));
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
