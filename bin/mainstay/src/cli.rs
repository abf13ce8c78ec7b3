//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
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
    /// Run the control plane of a cluster, without a node
    Server(Box<Options>),
    /// Join a cluster as a node
    Agent(Box<Agent>),
    /// Tokens that machines join with
    #[command(subcommand)]
    Token(Token),
    /// Remove everything a cluster made on this machine
    Reset(Reset),
    /// Write all objects of a cluster to a file, while it runs or not
    Backup(Backup),
    /// Make the objects of a backup those of a cluster that does not run
    Restore(Restore),
    /// Show the parts of the cluster, its nodes and certificates, and what is wrong
    Status(Status),
    /// Say why something is as it is, and what would help
    Why(Why),
    /// Images in the node's store
    #[command(subcommand)]
    Image(Image),
    /// The command line of the cluster, as the kubectl that you know
    Kubectl { args: Vec<String> },
    /// The programs of the mainstay.local/hello image
    #[command(hide = true)]
    Hello { args: Vec<String> },
}

/// Flags of `agent`: how to join, and those of the node.
#[derive(Debug, Args)]
pub struct Agent {
    /// A server of the cluster, as https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The token to join with; not needed again after that
    #[arg(
        long,
        value_name = "TOKEN",
        env = "MAINSTAY_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// The hash of the cluster authority's public key, as sha256:HEX
    #[arg(long, value_name = "HASH", value_delimiter = ',')]
    pub ca_hash: Vec<String>,
    #[command(flatten)]
    pub options: Options,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum Token {
    /// Make a token, and print the command that joins with it
    Create {
        /// The token, as abcdef.0123456789abcdef; a random one when absent
        token: Option<String>,
        /// How long it counts, as 24h or 30m; 0 is for ever
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        ttl: String,
        /// What it is for
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// What it may be used for
        #[arg(long, value_delimiter = ',', default_values = ["authentication", "signing"])]
        usages: Vec<String>,
        /// Groups that its user is in
        #[arg(long, value_delimiter = ',', default_value = cluster::tokens::GROUP)]
        groups: Vec<String>,
        #[command(flatten)]
        cluster: Cluster,
    },
    /// List the tokens
    #[command(alias = "ls")]
    List {
        #[command(flatten)]
        cluster: Cluster,
    },
    /// Delete tokens
    #[command(alias = "rm")]
    Delete {
        /// The tokens, or their first parts
        #[arg(required = true)]
        tokens: Vec<String>,
        #[command(flatten)]
        cluster: Cluster,
    },
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// How to print it
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: Output,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Forms of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Flags of `why`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mainstay why pod/web                           Pending, crashing, not ready or Terminating
  mainstay why deployment/web -n shop            also replicaset, statefulset, daemonset, job
  mainstay why pvc/data                          also service, ingress, namespace, node
  mainstay why connection pod/a pod/b:80         which network policy decides
  mainstay why can alice create deployments.apps which role allows it, or would")]
pub struct Why {
    /// KIND/NAME, `connection FROM TO:PORT`, or `can USER VERB RESOURCE [NAME]`
    #[arg(required = true, value_name = "WHAT")]
    pub words: Vec<String>,
    /// The namespace
    #[arg(long, short, default_value = "default")]
    pub namespace: String,
    /// Groups of the user, for `can`
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<String>,
    /// A kubeconfig; without one, the administrator's of the cluster in the data directory
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Which cluster is meant.
#[derive(Debug, Clone, Args)]
pub struct Cluster {
    /// The server's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
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
