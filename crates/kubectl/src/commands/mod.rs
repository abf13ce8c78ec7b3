//! The commands, one file each: its flags and what it does. [`Command`] is the one list of them; help, completion
//! and the reference in docs come from it.

mod alpha;
mod api_resources;
mod api_versions;
mod apply;
mod attach;
mod auth;
mod autoscale;
mod certificate;
mod cluster_info;
pub(crate) mod completion;
mod config;
mod cp;
mod create;
mod debug;
mod delete;
mod describe;
mod diff;
mod drain;
mod edit;
mod edit_fields;
mod editor;
mod events;
mod exec;
mod explain;
mod expose;
mod get;
mod kuberc;
mod kustomize;
mod logs;
mod options;
mod patch;
pub(crate) mod plugin;
mod port_forward;
mod proxy;
mod raw;
mod reconcile;
mod replace;
mod report;
mod rollout;
mod run;
mod scale;
mod set;
mod taint;
mod top;
mod version;
mod wait;

use anyhow::{Result, bail};
use clap::Subcommand;

use crate::{args::Cli, session::Session};

pub(crate) use create::content_hash;

/// Every command.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a resource from a file or from stdin
    Create(Box<create::Create>),
    /// Take a replication controller, service, deployment or pod and expose it as a new service
    Expose(Box<expose::Expose>),
    /// Run a particular image on the cluster
    Run(Box<run::Run>),
    /// Set specific features on objects
    Set(Box<set::Set>),
    /// Get documentation for a resource
    Explain(explain::Explain),
    /// Display one or many resources
    Get(Box<get::Get>),
    /// Edit a resource on the server
    Edit(Box<edit::Edit>),
    /// Delete resources by file names, stdin, resources and names, or by resources and label selector
    Delete(Box<delete::Delete>),
    /// Manage the rollout of a resource
    #[command(subcommand)]
    Rollout(Box<rollout::Rollout>),
    /// Set a new size for a deployment, replica set, or replication controller
    Scale(Box<scale::Scale>),
    /// Auto-scale a deployment, replica set, stateful set, or replication controller
    Autoscale(Box<autoscale::Autoscale>),
    /// Modify certificate resources
    #[command(subcommand)]
    Certificate(certificate::Certificate),
    /// Display cluster information
    ClusterInfo(cluster_info::ClusterInfo),
    /// Display resource (CPU/memory) usage
    #[command(subcommand)]
    Top(top::Top),
    /// Mark node as unschedulable
    Cordon(drain::Cordon),
    /// Mark node as schedulable
    Uncordon(drain::Cordon),
    /// Drain node in preparation for maintenance
    Drain(drain::Drain),
    /// Update the taints on one or more nodes
    Taint(taint::Taint),
    /// Show details of a specific resource or group of resources
    Describe(describe::Describe),
    /// Print the logs for a container in a pod
    Logs(logs::Logs),
    /// Attach to a running container
    Attach(attach::Attach),
    /// Execute a command in a container
    Exec(exec::Exec),
    /// Forward one or more local ports to a pod
    PortForward(port_forward::PortForward),
    /// Run a proxy to the Kubernetes API server
    Proxy(proxy::Proxy),
    /// Copy files and directories to and from containers
    Cp(cp::Cp),
    /// Inspect authorization
    #[command(subcommand)]
    Auth(Box<auth::Auth>),
    /// Create debugging sessions for troubleshooting workloads and nodes
    Debug(Box<debug::Debug>),
    /// List events
    #[command(alias = "event")]
    Events(events::Events),
    /// Diff the live version against a would-be applied version
    Diff(diff::Diff),
    /// Apply a configuration to a resource by file name or stdin
    Apply(Box<apply::Apply>),
    /// Update fields of a resource
    Patch(Box<patch::Patch>),
    /// Replace a resource by file name or stdin
    Replace(Box<replace::Replace>),
    /// Wait for a specific condition on one or many resources
    Wait(wait::Wait),
    /// Build a kustomization target from a directory
    Kustomize(kustomize::Kustomize),
    /// Update the labels on a resource
    Label(Box<edit_fields::EditFields>),
    /// Update the annotations on a resource
    Annotate(Box<edit_fields::EditFields>),
    /// Output shell completion code for the specified shell (bash, zsh, fish, or powershell)
    Completion(completion::Completion),
    /// Commands for features in alpha
    Alpha(alpha::Alpha),
    /// Print the supported API resources on the server
    ApiResources(api_resources::ApiResources),
    /// Print the supported API versions on the server, in the form of "group/version"
    ApiVersions(api_versions::ApiVersions),
    /// Modify kubeconfig files
    #[command(subcommand)]
    Config(Box<config::Config>),
    /// Manage kuberc configuration files
    #[command(subcommand)]
    Kuberc(kuberc::Kuberc),
    /// Provides utilities for interacting with plugins
    #[command(subcommand)]
    Plugin(plugin::Plugin),
    /// Print the list of flags inherited by all commands
    Options(options::Options),
    /// Print the client and server version information
    Version(version::Version),
    /// Print completions of a command line; called by shells
    #[command(name = "__complete", alias = "__completeNoDesc", hide = true)]
    Complete(completion::Complete),
}

/// The commands as the help groups them.
pub(crate) const GROUPS: &[(&str, &[&str])] = &[
    (
        "Basic Commands (Beginner)",
        &["create", "expose", "run", "set"],
    ),
    (
        "Basic Commands (Intermediate)",
        &["explain", "get", "edit", "delete"],
    ),
    ("Deploy Commands", &["rollout", "scale", "autoscale"]),
    (
        "Cluster Management Commands",
        &[
            "certificate",
            "cluster-info",
            "top",
            "cordon",
            "uncordon",
            "drain",
            "taint",
        ],
    ),
    (
        "Troubleshooting and Debugging Commands",
        &[
            "describe",
            "logs",
            "attach",
            "exec",
            "port-forward",
            "proxy",
            "cp",
            "auth",
            "debug",
            "events",
        ],
    ),
    (
        "Advanced Commands",
        &["diff", "apply", "patch", "replace", "wait", "kustomize"],
    ),
    ("Settings Commands", &["label", "annotate", "completion"]),
    (
        "Other Commands",
        &[
            "alpha",
            "api-resources",
            "api-versions",
            "config",
            "kuberc",
            "options",
            "plugin",
            "version",
        ],
    ),
];

/// The help of `kubectl` itself.
pub(crate) fn help(root: &clap::Command) -> String {
    let mut text = String::from("{about}\n");
    for (title, names) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for name in *names {
            let about = root
                .find_subcommand(name)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {name:<15} {about}\n"));
        }
    }
    text.push_str(
        "\nUsage:\n  kubectl [flags] [options]\n\nUse \"kubectl <command> --help\" for more information about a given \
         command.\nUse \"kubectl options\" for a list of global command-line options (applies to all commands).\n",
    );
    text
}

impl Command {
    /// The field manager of its writes; empty: kubectl's default.
    fn field_manager(&self) -> &'static str {
        match self {
            Self::Create(_) => "kubectl-create",
            Self::Run(_) => "kubectl-run",
            Self::Expose(_) => "kubectl-expose",
            Self::Autoscale(_) => "kubectl-autoscale",
            Self::Apply(_) => "kubectl-client-side-apply",
            Self::Rollout(command) => command.field_manager(),
            Self::Patch(_) => "kubectl-patch",
            Self::Label(_) => "kubectl-label",
            Self::Annotate(_) => "kubectl-annotate",
            Self::Replace(_) => "kubectl-replace",
            Self::Edit(_) => "kubectl-edit",
            Self::Set(_) => "kubectl-set",
            Self::Taint(_) => "kubectl-taint",
            Self::Debug(_) => "kubectl-debug",
            _ => "",
        }
    }
}

/// How a command was called.
pub(crate) struct Invocation {
    /// `create deployment`, its name.
    pub path: String,
    /// The command line, if objects are to be annotated with it (`--record`).
    pub change_cause: Option<String>,
}

/// Runs the command.
pub(crate) async fn run(cli: Cli, invocation: Invocation) -> Result<()> {
    let Cli { global, command } = cli;
    let global = global.without_empty_values();
    global.check_profile()?;
    // Commands that need no cluster must work without one.
    let command = match command {
        Command::Config(command) => return command.run(&global),
        Command::Completion(command) => return command.run(),
        Command::Complete(command) => return command.run(&global).await,
        Command::Kustomize(command) => return command.run(),
        Command::Kuberc(command) => return command.run(&global),
        Command::Options(command) => return command.run(),
        Command::Plugin(command) => return command.run(),
        Command::Alpha(command) => return command.run(),
        Command::Version(command) if command.is_client_only() => return command.print(None),
        command => command,
    };
    let path = format!("kubectl {}", invocation.path);
    let mut session = Session::open(&global, command.field_manager(), &path)?;
    session.change_cause = invocation.change_cause;
    if global.match_server_version {
        version::require_match(&session).await?;
    }
    let result = dispatch(command, &session).await;
    session.end(result)?;
    match session.api.warnings() {
        count if count > 0 && global.warnings_as_errors => {
            bail!(
                "{count} warning{} received",
                if count == 1 { "" } else { "s" }
            )
        }
        _ => Ok(()),
    }
}

async fn dispatch(command: Command, session: &Session) -> Result<()> {
    match command {
        Command::Create(command) => command.run(session).await,
        Command::Expose(command) => command.run(session).await,
        Command::Run(command) => command.run(session).await,
        Command::Set(command) => command.run(session).await,
        Command::Explain(command) => command.run(session).await,
        Command::Get(command) => command.run(session).await,
        Command::Edit(command) => command.run(session).await,
        Command::Delete(command) => command.run(session).await,
        Command::Rollout(command) => command.run(session).await,
        Command::Scale(command) => command.run(session).await,
        Command::Autoscale(command) => command.run(session).await,
        Command::Certificate(command) => command.run(session).await,
        Command::ClusterInfo(command) => command.run(session).await,
        Command::Top(command) => command.run(session).await,
        Command::Cordon(command) => command.run(session, true).await,
        Command::Uncordon(command) => command.run(session, false).await,
        Command::Drain(command) => command.run(session).await,
        Command::Taint(command) => command.run(session).await,
        Command::Describe(command) => command.run(session).await,
        Command::Logs(command) => command.run(session).await,
        Command::Attach(command) => command.run(session).await,
        Command::Exec(command) => command.run(session).await,
        Command::PortForward(command) => command.run(session).await,
        Command::Proxy(command) => command.run(session).await,
        Command::Cp(command) => command.run(session).await,
        Command::Auth(command) => command.run(session).await,
        Command::Debug(command) => command.run(session).await,
        Command::Events(command) => command.run(session).await,
        Command::Diff(command) => command.run(session).await,
        Command::Apply(command) => command.run(session).await,
        Command::Patch(command) => command.run(session).await,
        Command::Replace(command) => command.run(session).await,
        Command::Wait(command) => command.run(session).await,
        Command::Label(command) => command.run(session, edit_fields::Field::Labels).await,
        Command::Annotate(command) => command.run(session, edit_fields::Field::Annotations).await,
        Command::ApiResources(command) => command.run(session).await,
        Command::ApiVersions(command) => command.run(session).await,
        Command::Version(command) => command.run(session).await,
        Command::Kustomize(_)
        | Command::Completion(_)
        | Command::Complete(_)
        | Command::Alpha(_)
        | Command::Config(_)
        | Command::Kuberc(_)
        | Command::Plugin(_)
        | Command::Options(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_is_in_one_group_of_the_help() {
        let root = crate::args::Cli::command();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        let mut known: Vec<&str> = root
            .get_subcommands()
            .map(clap::Command::get_name)
            .filter(|name| !name.starts_with("__"))
            .collect();
        grouped.sort_unstable();
        known.sort_unstable();
        assert_eq!(grouped, known);
        assert_eq!(known.len(), 45, "44 commands and alpha");
    }
}
