//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use cluster::Options;

/// Kubernetes in one binary
#[derive(Debug, Parser)]
#[command(
    name = "mainstay",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Every command. `kubectl` and `hello` take the rest of the line as it is and never come here;
/// they are listed for the help.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a one-node cluster in the foreground
    Up(Box<Options>),
    /// Remove everything a cluster made on this machine
    Reset(Reset),
    /// Write all objects of a cluster to a file, while it runs or not
    Backup(Backup),
    /// Make the objects of a backup those of a cluster that does not run
    Restore(Restore),
    /// Images in the node's store
    #[command(subcommand)]
    Image(Image),
    /// The command line of the cluster, as the kubectl that you know
    Kubectl { args: Vec<String> },
    /// The programs of the mainstay.local/hello image
    #[command(hide = true)]
    Hello { args: Vec<String> },
}

/// Flags of `reset`.
#[derive(Debug, Args)]
pub struct Reset {
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// Flags of `backup`.
#[derive(Debug, Args)]
pub struct Backup {
    /// Where to write it
    pub file: PathBuf,
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// What `mainstay backup` wrote
    pub file: PathBuf,
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Set objects aside that are there already
    #[arg(long)]
    pub force: bool,
}

/// What can be done with images.
#[derive(Debug, Subcommand)]
pub enum Image {
    /// Pull an image from its registry
    Pull {
        image: String,
        /// Whom to be to the registry
        #[arg(long, value_name = "USER", requires = "password_stdin")]
        username: Option<String>,
        /// Read the password from standard input
        #[arg(long, requires = "username")]
        password_stdin: bool,
        #[command(flatten)]
        store: ImageStore,
    },
    /// Import an OCI or docker archive; - is standard input
    Import {
        file: String,
        #[command(flatten)]
        store: ImageStore,
    },
    /// Export an image as an OCI archive; - is standard output
    Export {
        image: String,
        file: String,
        #[command(flatten)]
        store: ImageStore,
    },
    /// List the images of the node
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        store: ImageStore,
    },
    /// Remove images
    #[command(alias = "rm")]
    Remove {
        #[arg(required = true)]
        images: Vec<String>,
        #[command(flatten)]
        store: ImageStore,
    },
}

/// Which node's store.
#[derive(Debug, Clone, Args)]
pub struct ImageStore {
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}
