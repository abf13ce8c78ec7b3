//! Global flags, and flags shared by several commands.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{
    Args, Parser,
    builder::{OsStringValueParser, TypedValueParser},
};

use crate::commands::Command;

/// `kubectl …`
#[derive(Debug, Parser)]
#[command(
    name = "kubectl",
    about = "kubectl controls the Kubernetes cluster manager",
    disable_version_flag = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command; `kubectl options` lists them.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Username to impersonate for the operation
    #[arg(long = "as", global = true, hide = true, value_name = "USER")]
    pub as_user: Option<String>,
    /// Group to impersonate for the operation; may be repeated
    #[arg(long, global = true, hide = true, value_name = "GROUP")]
    pub as_group: Vec<String>,
    /// UID to impersonate for the operation
    #[arg(long, global = true, hide = true, value_name = "UID")]
    pub as_uid: Option<String>,
    /// Extra KEY=VALUE to impersonate for the operation; may be repeated
    #[arg(long, global = true, hide = true, value_name = "KEY=VALUE")]
    pub as_user_extra: Vec<String>,
    /// Default cache directory
    #[arg(long, global = true, hide = true, value_name = "DIR", value_parser = any_path())]
    pub cache_dir: Option<PathBuf>,
    /// Path to a certificate file of the certificate authority
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub certificate_authority: Option<String>,
    /// Path to a client certificate file for TLS
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub client_certificate: Option<String>,
    /// Path to a client key file for TLS
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub client_key: Option<String>,
    /// The name of the kubeconfig cluster to use
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// The name of the kubeconfig context to use
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Opt out of response compression for all requests
    #[arg(long, global = true, hide = true)]
    pub disable_compression: bool,
    /// Do not check the server's certificate
    #[arg(long, global = true, hide = true)]
    pub insecure_skip_tls_verify: bool,
    /// Path to the kubeconfig file to use for CLI requests
    #[arg(long, global = true, hide = true, value_name = "FILE", value_parser = any_path())]
    pub kubeconfig: Option<PathBuf>,
    /// Path to the kuberc file with preferences; KUBERC=off in the environment ignores it
    #[arg(long, global = true, hide = true, value_name = "FILE")]
    pub kuberc: Option<String>,
    /// Require server version to match client version
    #[arg(long, global = true, hide = true)]
    pub match_server_version: bool,
    /// The namespace scope for this CLI request
    #[arg(short, long, global = true, hide = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Password for basic authentication to the API server
    #[arg(long, global = true, hide = true, value_name = "PASSWORD")]
    pub password: Option<String>,
    /// How long to wait before giving up on a single request, such as 1s, 2m or 3h; 0 is no limit
    #[arg(
        long,
        global = true,
        hide = true,
        value_name = "DURATION",
        default_value = "0"
    )]
    pub request_timeout: String,
    /// The address and port of the Kubernetes API server
    #[arg(short, long, global = true, hide = true, value_name = "URL")]
    pub server: Option<String>,
    /// Server name to use for server certificate validation
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub tls_server_name: Option<String>,
    /// Bearer token for authentication to the API server
    #[arg(long, global = true, hide = true, value_name = "TOKEN")]
    pub token: Option<String>,
    /// The name of the kubeconfig user to use
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub user: Option<String>,
    /// Username for basic authentication to the API server
    #[arg(long, global = true, hide = true, value_name = "NAME")]
    pub username: Option<String>,
    /// Number for the log level verbosity
    #[arg(
        short,
        long,
        global = true,
        hide = true,
        value_name = "LEVEL",
        default_value_t = 0
    )]
    pub v: i32,
    /// How often to write buffered log lines
    // Log lines are written at once.
    #[allow(dead_code)]
    #[arg(
        long,
        global = true,
        hide = true,
        value_name = "DURATION",
        default_value = "5s",
        value_parser = flush_frequency
    )]
    pub log_flush_frequency: String,
    /// Log levels of single source files, as PATTERN=N,…
    #[arg(long, global = true, hide = true, value_name = "PATTERN=N,…", value_parser = vmodule)]
    pub vmodule: Option<String>,
    /// Name of profile to capture; only none is there
    // `debug` has a flag of the same name; argv.rs renames this one.
    #[arg(
        id = "global_profile",
        long = "global-profile",
        global = true,
        hide = true,
        value_name = "NAME",
        default_value = "none"
    )]
    pub profile: String,
    /// Name of the file to write the profile to
    #[allow(dead_code)]
    #[arg(
        long,
        global = true,
        hide = true,
        value_name = "FILE",
        default_value = "profile.pprof"
    )]
    pub profile_output: String,
    /// Treat warnings received from the server as errors and exit with a non-zero exit code
    #[arg(long, global = true, hide = true)]
    pub warnings_as_errors: bool,
}

/// A path that may be empty, which is as if the flag was not given.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

fn flush_frequency(text: &str) -> Result<String, String> {
    crate::duration::flag(text).map_err(|_| "parse error".to_owned())
}

fn vmodule(text: &str) -> Result<String, String> {
    let is_level = |pair: &str| {
        let level = pair.split_once('=').map(|(_, level)| level);
        level.is_some_and(|level| level.parse::<i32>().is_ok())
    };
    match text
        .split(',')
        .all(|pair| pair.is_empty() || is_level(pair))
    {
        true => Ok(text.to_owned()),
        false => Err("syntax error: expect comma-separated list of filename=N".to_owned()),
    }
}

impl Global {
    /// Flags with an empty value are as if they were not given.
    pub(crate) fn without_empty_values(mut self) -> Self {
        for flag in [
            &mut self.as_uid,
            &mut self.as_user,
            &mut self.certificate_authority,
            &mut self.client_certificate,
            &mut self.client_key,
            &mut self.cluster,
            &mut self.context,
            &mut self.password,
            &mut self.server,
            &mut self.tls_server_name,
            &mut self.token,
            &mut self.user,
            &mut self.username,
        ] {
            if flag.as_deref() == Some("") {
                *flag = None;
            }
        }
        for path in [&mut self.cache_dir, &mut self.kubeconfig] {
            if path
                .as_ref()
                .is_some_and(|path| path.as_os_str().is_empty())
            {
                *path = None;
            }
        }
        self
    }

    /// The log level of requests: that of `-v`, or a higher one of `--vmodule` for the file that
    /// logs them in upstream's kubectl.
    pub(crate) fn request_log_level(&self) -> u8 {
        let rules = self.vmodule.iter().flat_map(|rules| rules.split(','));
        let levels = rules.filter_map(|rule| {
            let (pattern, level) = rule.split_once('=')?;
            let level = level.parse::<i32>().ok()?;
            crate::glob::matches(pattern, "round_trippers").then_some(level)
        });
        let level = levels.fold(self.v, i32::max).max(0);
        u8::try_from(level).unwrap_or(u8::MAX)
    }

    /// There is no profiler to write a profile with.
    pub(crate) fn check_profile(&self) -> Result<()> {
        match self.profile.as_str() {
            "none" => Ok(()),
            "cpu" | "heap" | "goroutine" | "threadcreate" | "block" | "mutex" => {
                bail!("--profile={}: only none is supported", self.profile)
            }
            other => bail!("unknown profile '{other}'"),
        }
    }
}

/// Objects in files.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Files {
    /// Filename, directory, or URL to files with resources; - is standard input
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    pub filename: Vec<String>,
    /// Process a kustomization directory
    #[arg(short, long, value_name = "DIR")]
    pub kustomize: Option<PathBuf>,
    /// Process the directory used in -f recursively
    #[arg(short = 'R', long)]
    pub recursive: bool,
}

impl Files {
    /// Whether none are named.
    pub(crate) fn is_empty(&self) -> bool {
        self.filename.iter().all(String::is_empty) && self.kustomization().is_none()
    }

    /// The kustomization's directory; an empty flag names none.
    pub(crate) fn kustomization(&self) -> Option<&Path> {
        let directory = self.kustomize.as_deref();
        directory.filter(|directory| !directory.as_os_str().is_empty())
    }
}

/// Which objects.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Selection {
    #[command(flatten)]
    pub files: Files,
    /// Selector (label query) to filter on, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "QUERY")]
    pub selector: Option<String>,
    /// Selector (field query) to filter on, such as status.phase=Running
    #[arg(long, value_name = "QUERY")]
    pub field_selector: Option<String>,
    /// List the objects across all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// How many objects to list in one request; `None` is the default.
    #[arg(skip)]
    pub chunk_size: Option<i64>,
}

/// Objects in files, or those whose labels match.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FilesOrSelector {
    #[command(flatten)]
    pub files: Files,
    /// Selector (label query) to filter on, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "QUERY")]
    pub selector: Option<String>,
}

/// Objects in files and, by default, in the directories below.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RecursiveFiles {
    /// Filename, directory, or URL to files with resources; - is standard input
    #[arg(short, long, value_name = "FILE", value_delimiter = ',')]
    pub filename: Vec<String>,
    /// Process the directory used in -f recursively
    #[arg(short = 'R', long, default_value_t = true, action = clap::ArgAction::Set)]
    pub recursive: bool,
}

impl From<&Files> for Selection {
    fn from(files: &Files) -> Self {
        Self {
            files: files.clone(),
            ..Self::default()
        }
    }
}

impl From<&FilesOrSelector> for Selection {
    fn from(given: &FilesOrSelector) -> Self {
        Self {
            files: given.files.clone(),
            selector: given.selector.clone(),
            ..Self::default()
        }
    }
}

impl From<&RecursiveFiles> for Files {
    fn from(given: &RecursiveFiles) -> Self {
        Self {
            filename: given.filename.clone(),
            kustomize: None,
            recursive: given.recursive,
        }
    }
}

/// The flag `--dry-run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DryRun {
    /// none, server (send the request without keeping its result) or client (only print the object)
    #[arg(long, value_name = "MODE", default_value = "none", num_args = 0..=1, require_equals = true, default_missing_value = "unchanged")]
    dry_run: String,
}

impl Default for DryRun {
    fn default() -> Self {
        Self {
            dry_run: "none".to_owned(),
        }
    }
}

/// A mode of `--dry-run`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DryRunMode {
    None,
    Client,
    Server,
}

impl DryRun {
    /// Parses the flag.
    pub(crate) fn mode(&self) -> Result<DryRunMode> {
        Ok(match self.dry_run.as_str() {
            "none" => DryRunMode::None,
            "client" => DryRunMode::Client,
            "server" => DryRunMode::Server,
            "unchanged" => {
                // The flag is parsed more than once; warn only once.
                static ONCE: std::sync::Once = std::sync::Once::new();
                ONCE.call_once(|| {
                    eprintln!(
                        "W --dry-run is deprecated and can be replaced with --dry-run=client."
                    );
                });
                DryRunMode::Client
            }
            other => match crate::argv::switch(other) {
                Ok(is_on) => {
                    let mode = if is_on { "client" } else { "none" };
                    static ONCE: std::sync::Once = std::sync::Once::new();
                    ONCE.call_once(|| {
                        eprintln!(
                            "W --dry-run={other} is deprecated (boolean value) and can be replaced with --dry-run={mode}."
                        );
                    });
                    match is_on {
                        true => DryRunMode::Client,
                        false => DryRunMode::None,
                    }
                }
                Err(_) => bail!(
                    "Invalid dry-run value ({other}). Must be \"none\", \"server\", or \"client\"."
                ),
            },
        })
    }
}

impl DryRunMode {
    pub(crate) fn is_client(self) -> bool {
        self == Self::Client
    }

    /// The suffix of the output line.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Client => " (dry run)",
            Self::Server => " (server dry run)",
        }
    }

    /// The query parameter for a server-side dry run.
    pub(crate) fn parameter(self) -> Option<(&'static str, String)> {
        (self == Self::Server).then(|| ("dryRun", "All".to_owned()))
    }
}

/// How strictly the server checks fields.
#[derive(Debug, Clone, Args)]
pub(crate) struct Validate {
    /// strict (or true) refuses unknown fields, warn warns about them, ignore (or false) drops them
    #[arg(long, value_name = "MODE", default_value = "strict", num_args = 0..=1, require_equals = true, default_missing_value = "strict")]
    validate: String,
}

impl Validate {
    /// Whether manifests are checked before they are sent.
    pub(crate) fn is_on(&self) -> bool {
        !matches!(self.validate.as_str(), "ignore" | "false")
    }

    /// The query parameter.
    pub(crate) fn parameter(&self) -> Result<(&'static str, String)> {
        let mode = match self.validate.as_str() {
            "strict" | "true" => "Strict",
            "warn" => "Warn",
            "ignore" | "false" => "Ignore",
            other => bail!(
                "invalid - validate option \"{other}\"; must be one of: strict (or true), warn, ignore (or false)"
            ),
        };
        Ok(("fieldValidation", mode.to_owned()))
    }
}

impl Default for Validate {
    fn default() -> Self {
        Self {
            validate: "strict".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vmodule_raises_the_log_level_of_requests() {
        for (v, vmodule, expected) in [
            (0, "", 0),
            (6, "other=9", 6),
            (0, "round_trippers=8", 8),
            (7, "a=1,round*=6", 7),
            (-1, "round_trippers=-3", 0),
        ] {
            let vmodule = Some(vmodule.to_owned());
            let global = Global {
                v,
                vmodule,
                ..Global::default()
            };
            assert_eq!(global.request_log_level(), expected);
        }
    }
}
