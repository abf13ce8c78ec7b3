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
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Every command. `kubectl` and `hello` take the rest of the line as it is and never come here;
/// they are listed for the help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a one-node cluster
    Up(Box<Up>),
    /// Run the control plane of a cluster, without a node
    Server(Box<Up>),
    /// Join a cluster as a node
    Agent(Box<Agent>),
    /// Stop what runs here; containers go on
    Down(Cluster),
    /// Tokens that machines join with
    #[command(subcommand)]
    Token(Token),
    /// Remove everything a cluster made on this machine
    Reset(Reset),
    /// Write all objects and the keys of a cluster to a file, while it runs or not
    Backup(Backup),
    /// Make the objects and keys of a backup those of a cluster that does not run
    Restore(Restore),
    /// Move the objects of a stopped cluster from the embedded store to etcd, or back
    Migrate(Migrate),
    /// Print the version of this program and of the server
    Version(Version),
    /// Show the parts of the cluster, its nodes and certificates, and what is wrong
    Status(Status),
    /// Say why something is as it is, and what would help
    Why(Why),
    /// Print the administrator's kubeconfig, or add it to your own
    Kubeconfig(Kubeconfig),
    /// Run a scheduler for a cluster that is served elsewhere
    Scheduler(Scheduler),
    /// Simulate nodes of a cluster: pods that are bound to them run without containers
    Simulate(Simulate),
    /// Print what the parts have said
    Logs(Logs),
    /// Install the binary, kubectl, a systemd unit and a configuration file, and start it
    Install(Install),
    /// Stop the service and remove what `install` put in place
    Uninstall(Uninstall),
    /// Images in the node's store
    #[command(subcommand)]
    Image(Image),
    /// Print a page of the documents that is written from the flags
    #[command(hide = true)]
    Reference { page: Reference },
    /// Answer a container runtime as a CNI plugin; it sets CNI_COMMAND
    Cni,
    /// The command line of the cluster, as the kubectl that you know
    Kubectl { args: Vec<String> },
    /// The programs of the mainstay.local/hello image
    #[command(hide = true)]
    Hello { args: Vec<String> },
}

/// Pages that are written from the flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reference {
    /// docs/configuration.md
    Configuration,
    /// docs/kubectl-reference.md
    Kubectl,
}

/// Flags of `up` and `server`.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Run in the background; returns when it is ready
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub options: Options,
}

/// Flags of `agent`: how to join, and those of the node.
#[derive(Debug, Args)]
pub(crate) struct Agent {
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
    /// Run in the background; returns when it is ready
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub options: Options,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
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
    /// Print the token that further servers of a cluster in etcd start with
    Server {
        /// Replace it first: the one before opens nothing any more
        #[arg(long)]
        rotate: bool,
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
pub(crate) struct Status {
    /// How to print it
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: Output,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Forms of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Text,
    /// For programs
    Json,
}

/// Flags of `kubeconfig`.
#[derive(Debug, Args)]
pub(crate) struct Kubeconfig {
    /// Add it to ~/.kube/config of the calling user, also behind sudo, and keep it current there
    #[arg(long)]
    pub merge: bool,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Only lines of this part, as kubelet, scheduler, controllers, apiserver, proxy or dns
    pub part: Option<String>,
    /// Go on as more is written
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `install`.
#[derive(Debug, Args)]
pub(crate) struct Install {
    /// What the service runs
    #[arg(long, value_enum, default_value = "up")]
    pub role: Role,
    /// Install below this directory, and start nothing
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Do not start the service
    #[arg(long)]
    pub no_start: bool,
    /// Write the files of a distribution's package below the root
    #[arg(long, hide = true, requires = "root")]
    pub package: bool,
    /// Flags of the service, as -- --server URL --token TOKEN
    #[arg(last = true)]
    pub flags: Vec<String>,
}

/// What an installed service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// A control plane that is a node, too
    Up,
    /// A control plane
    Server,
    /// A node
    Agent,
}

/// Flags of `uninstall`.
#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    /// Where it was installed
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
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
pub(crate) struct Why {
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

/// Flags of `scheduler`.
#[derive(Debug, Args)]
pub(crate) struct Scheduler {
    /// The cluster, and who the scheduler is there [default: clientConnection.kubeconfig of the configuration]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// A KubeSchedulerConfiguration, as YAML or JSON: its profiles name the schedulers that pods can ask for
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// error, warn, info, debug, trace, or a filter such as scheduler=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// How many nodes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub nodes: usize,
    /// Their names are this and a number
    #[arg(long, value_name = "TEXT", default_value = "simulated-")]
    pub prefix: String,
    /// CPUs of each node
    #[arg(long, value_name = "QUANTITY", default_value = "32")]
    pub cpu: String,
    /// Memory of each node
    #[arg(long, value_name = "QUANTITY", default_value = "256Gi")]
    pub memory: String,
    /// How many pods fit on each node
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub pods: u32,
    /// Spread the nodes over this many zones
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub zones: usize,
    /// Labels of all nodes
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Leave the nodes in the cluster when the simulation ends
    #[arg(long)]
    pub keep: bool,
    /// A kubeconfig; without one, the administrator's of the cluster in the data directory
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Which cluster is meant.
#[derive(Debug, Clone, Args)]
pub(crate) struct Cluster {
    /// The server's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `reset`.
#[derive(Debug, Args)]
pub(crate) struct Reset {
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Do not ask
    #[arg(long, short)]
    pub yes: bool,
}

/// Flags of `backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Where to write it
    pub file: PathBuf,
    /// Encrypt it under the password in this file
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// What `mainstay backup` wrote
    pub file: PathBuf,
    /// The password of an encrypted backup is in this file
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Set objects and keys aside that are there already
    #[arg(long)]
    pub force: bool,
}

/// Flags of `version`.
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Do not ask the server
    #[arg(long)]
    pub client: bool,
    /// json
    #[arg(long, short, value_name = "FORMAT")]
    pub output: Option<String>,
    /// A kubeconfig; without one, the administrator's of the cluster in the data directory
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `migrate`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("direction").required(true).args(["to_etcd", "to_embedded"]))]
pub(crate) struct Migrate {
    /// From the data directory to an etcd that is empty
    #[arg(long)]
    pub to_etcd: bool,
    /// From etcd to the data directory of one of its servers
    #[arg(long)]
    pub to_embedded: bool,
    /// Members of the etcd cluster, as https://HOST:PORT
    #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
    pub etcd_endpoints: Vec<String>,
    /// The authority that etcd's certificates are checked against
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Our certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// Its key
    #[arg(long, value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The server's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

/// What can be done with images.
#[derive(Debug, Subcommand)]
pub(crate) enum Image {
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
pub(crate) struct ImageStore {
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}
