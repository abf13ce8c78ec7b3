//! The commands, one file each: its flags and what it does.

mod api_resources;
mod apply;
mod certificate;
mod create;
mod delete;
mod describe;
mod edit_fields;
mod exec;
mod expose;
mod get;
mod logs;
mod patch;
mod rollout;
mod run;
mod scale;
mod version;
mod wait;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

use crate::{args::Cli, session::Session};

/// Every command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Display one or many resources
    Get(get::Get),
    /// Show details of one or many resources
    Describe(describe::Describe),
    /// Create a resource from a file or from flags
    Create(create::Create),
    /// Run a particular image as a pod
    Run(run::Run),
    /// Expose a resource as a new service
    Expose(expose::Expose),
    /// Apply a configuration from a file
    Apply(apply::Apply),
    /// Delete resources by file, by name or by label selector
    Delete(delete::Delete),
    /// Set a new size for a deployment, replica set or stateful set
    Scale(scale::Scale),
    /// Manage the rollout of one or many resources
    #[command(subcommand)]
    Rollout(rollout::Rollout),
    /// Update fields of a resource
    Patch(patch::Patch),
    /// Update the labels on a resource
    Label(edit_fields::EditFields),
    /// Update the annotations on a resource
    Annotate(edit_fields::EditFields),
    /// Print the logs of a container
    Logs(logs::Logs),
    /// Execute a command in a container
    Exec(exec::Exec),
    /// Attach to a running container
    Attach(exec::Attach),
    /// Approve or deny requests for certificates
    #[command(subcommand)]
    Certificate(certificate::Certificate),
    /// Wait for a condition on one or many resources
    Wait(wait::Wait),
    /// Print the resource types that the server supports
    ApiResources(api_resources::ApiResources),
    /// Print the client's and the server's version
    Version(version::Version),
}

impl Command {
    /// Under which name its writes are noted in `managedFields`; empty: kubectl's own.
    fn field_manager(&self) -> &'static str {
        match self {
            Self::Create(_) => "kubectl-create",
            Self::Run(_) => "kubectl-run",
            Self::Expose(_) => "kubectl-expose",
            Self::Apply(_) => "kubectl-client-side-apply",
            Self::Rollout(command) => command.field_manager(),
            Self::Patch(_) => "kubectl-patch",
            Self::Label(_) => "kubectl-label",
            Self::Annotate(_) => "kubectl-annotate",
            _ => "",
        }
    }
}

/// Runs the command that was asked for.
pub async fn run(cli: Cli) -> Result<ExitCode> {
    if let Command::Version(command) = &cli.command
        && command.is_client_only()
    {
        command.print(None)?;
        return Ok(ExitCode::SUCCESS);
    }
    let session = Session::open(&cli.global, cli.command.field_manager())?;
    match cli.command {
        Command::Get(command) => command.run(&session).await?,
        Command::Describe(command) => command.run(&session).await?,
        Command::Create(command) => command.run(&session).await?,
        Command::Run(command) => command.run(&session).await?,
        Command::Expose(command) => command.run(&session).await?,
        Command::Apply(command) => command.run(&session).await?,
        Command::Delete(command) => command.run(&session).await?,
        Command::Scale(command) => command.run(&session).await?,
        Command::Rollout(command) => command.run(&session).await?,
        Command::Patch(command) => command.run(&session).await?,
        Command::Label(command) => command.run(&session, edit_fields::Field::Labels).await?,
        Command::Annotate(command) => {
            command
                .run(&session, edit_fields::Field::Annotations)
                .await?
        }
        Command::Logs(command) => command.run(&session).await?,
        Command::Exec(command) => command.run(&session).await?,
        Command::Attach(command) => command.run(&session).await?,
        Command::Certificate(command) => command.run(&session).await?,
        Command::Wait(command) => command.run(&session).await?,
        Command::ApiResources(command) => command.run(&session).await?,
        Command::Version(command) => command.run(&session).await?,
    }
    Ok(ExitCode::SUCCESS)
}
