//! The flags. Each command's own flags stand beside it; here is what they share.

use std::path::PathBuf;

use clap::{Args, Parser};

use crate::commands::Command;

/// `kubectl …`
#[derive(Debug, Parser)]
#[command(
    name = "kubectl",
    about = "Controls the cluster, as the kubectl that you know",
    disable_version_flag = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Default, Args)]
pub struct Global {
    /// The kubeconfig to use
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig to use
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace to work in
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,
    /// How much to say about the requests made
    #[arg(short, long, global = true, value_name = "LEVEL", hide = true)]
    pub v: Option<u8>,
}

/// Which objects.
#[derive(Debug, Clone, Default, Args)]
pub struct Selection {
    /// Files or directories with manifests; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub filename: Vec<String>,
    /// Look into directories below the given one too
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Only objects whose labels match, such as app=web
    #[arg(short = 'l', long, value_name = "QUERY")]
    pub selector: Option<String>,
    /// Only objects whose fields match, such as status.phase=Running
    #[arg(long, value_name = "QUERY")]
    pub field_selector: Option<String>,
    /// Across all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
}

/// How to print.
#[derive(Debug, Clone, Default, Args)]
pub struct Output {
    /// json, yaml, name, wide, jsonpath=…, custom-columns=…
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
}

/// Whether to do it or only to say so.
#[derive(Debug, Clone, Default, Args)]
pub struct DryRun {
    /// none, client (print only), server (ask the server to check)
    #[arg(long, value_name = "MODE", default_value = "none", num_args = 0..=1, default_missing_value = "client")]
    pub dry_run: String,
}

impl DryRun {
    pub fn is_client(&self) -> bool {
        self.dry_run == "client"
    }

    /// What to add to a path's query.
    pub fn query(&self) -> &'static str {
        if self.dry_run == "server" {
            "?dryRun=All"
        } else {
            ""
        }
    }

    /// What to say after the deed.
    pub fn suffix(&self) -> &'static str {
        match self.dry_run.as_str() {
            "client" => " (dry run)",
            "server" => " (server dry run)",
            _ => "",
        }
    }
}
