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

/// Every command. `main` passes the arguments of `kubectl` and `hello` on before this is parsed;
/// the two are listed for the help.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a one-node cluster
    Up(Box<Up>),
    /// Run the control plane of a cluster, without a node
    Server(Box<Up>),
    /// Join a cluster as a node
    Agent(Box<Agent>),
    /// Stop the cluster or node on this machine; containers keep running
    Down(Cluster),
    /// Manage the tokens that machines join with
    #[command(subcommand)]
    Token(Token),
    /// Remove everything that a cluster created on this machine
    Reset(Reset),
    /// Back up all objects and keys of a running or stopped cluster to a file
    Backup(Backup),
    /// Restore the objects and keys of a backup into a stopped cluster
    Restore(Restore),
    /// Move the objects of a stopped cluster from the embedded store to etcd, or back
    Migrate(Migrate),
    /// Print the version of this program and of the server
    Version(Version),
    /// Show the components, nodes and certificates of the cluster, and what is wrong with them
    Status(Status),
    /// Explain why an object is in its state, and what would help
    Why(Why),
    /// Print the administrator's kubeconfig, or merge it into your own
    Kubeconfig(Kubeconfig),
    /// Run only a scheduler, for a cluster whose control plane runs elsewhere
    Scheduler(Scheduler),
    /// Simulate nodes of a cluster: pods bound to them run without containers
    Simulate(Simulate),
    /// Print the logs of the components
    Logs(Logs),
    /// Install the binary, kubectl, a systemd unit and a configuration file, and start it
    Install(Install),
    /// Stop the service and remove what `install` installed
    Uninstall(Uninstall),
    /// Manage images in the node's image store
    #[command(subcommand)]
    Image(Image),
    /// Print a documentation page that is generated from the flags
    #[command(hide = true)]
    Reference { page: Reference },
    /// Act as a CNI plugin of a container runtime, which sets CNI_COMMAND
    Cni,
    /// Run the built-in kubectl
    Kubectl { args: Vec<String> },
    /// Run a program of the mainstay.local/hello image
    #[command(hide = true)]
    Hello { args: Vec<String> },
}

/// Pages that are generated from the flags.
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
    /// Run in the background; return when it is ready
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub options: Options,
}

/// Flags of `agent`: how to join, and those of the node.
#[derive(Debug, Args)]
pub(crate) struct Agent {
    /// URL of a server of the cluster, as https://HOST:PORT
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Token to join with; needed only for the first start
    #[arg(
        long,
        value_name = "TOKEN",
        env = "MAINSTAY_TOKEN",
        hide_env_values = true
    )]
    pub token: Option<String>,
    /// Hash of the public key of the cluster's CA, as sha256:HEX
    #[arg(long, value_name = "HASH", value_delimiter = ',')]
    pub ca_hash: Vec<String>,
    /// Run in the background; return when it is ready
    #[arg(long, short)]
    pub detach: bool,
    #[command(flatten)]
    pub options: Options,
}

/// Subcommands of `token`.
#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Create a token and print the command that joins with it
    Create {
        /// The token, as abcdef.0123456789abcdef; random if absent
        token: Option<String>,
        /// How long the token is valid, such as 24h or 30m; 0 never expires
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        ttl: String,
        /// Description of the token
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Usages of the token
        #[arg(long, value_delimiter = ',', default_values = ["authentication", "signing"])]
        usages: Vec<String>,
        /// Groups of the user that authenticates with the token
        #[arg(long, value_delimiter = ',', default_value = cluster::tokens::GROUP)]
        groups: Vec<String>,
        #[command(flatten)]
        cluster: Cluster,
    },
    /// Print the token that further servers of an etcd-backed cluster join with
    Server {
        /// Replace the token first; the previous one becomes invalid
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
        /// The tokens, or their IDs
        #[arg(required = true)]
        tokens: Vec<String>,
        #[command(flatten)]
        cluster: Cluster,
    },
}

/// Flags of `status`.
#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Output format
    #[arg(long, short, value_enum, default_value = "text")]
    pub output: Output,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Output formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Human-readable
    Text,
    /// Machine-readable
    Json,
}

/// Flags of `kubeconfig`.
#[derive(Debug, Args)]
pub(crate) struct Kubeconfig {
    /// Merge it into ~/.kube/config of the calling user, also under sudo, and keep it up to date there
    #[arg(long)]
    pub merge: bool,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `logs`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    /// Only lines of this component: kubelet, scheduler, controllers, apiserver, proxy or dns
    pub part: Option<String>,
    /// Print new lines as they are written
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `install`.
#[derive(Debug, Args)]
pub(crate) struct Install {
    /// Role of the service [default: role and flags of an earlier install, or up]
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// Install below this directory and start nothing
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
    /// Do not start the service
    #[arg(long)]
    pub no_start: bool,
    /// Write the files of a distribution package below the root
    #[arg(long, hide = true, requires = "root")]
    pub package: bool,
    /// Flags of the service, such as -- --server URL --token TOKEN
    #[arg(last = true)]
    pub flags: Vec<String>,
}

/// The role of an installed service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// A control plane and a node
    Up,
    /// A control plane
    Server,
    /// A node
    Agent,
}

/// Flags of `uninstall`.
#[derive(Debug, Args)]
pub(crate) struct Uninstall {
    /// Directory below which it was installed
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// Flags of `why`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  mainstay why pod/web                            Pending, crashing, not ready or Terminating
  mainstay why deployment/web -n shop             also replicaset, statefulset, daemonset, job
  mainstay why pvc/data                           also service, ingress, namespace, node
  mainstay why connection pod/a pod/b:80          which network policy decides
  mainstay why can alice create deployments.apps  which role allows it, or would")]
pub(crate) struct Why {
    /// KIND/NAME, `connection FROM TO:PORT`, or `can USER VERB RESOURCE [NAME]`
    #[arg(required = true, value_name = "WHAT")]
    pub words: Vec<String>,
    /// Namespace of the object
    #[arg(long, short, default_value = "default")]
    pub namespace: String,
    /// Groups of the user, for `can`
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<String>,
    /// Kubeconfig file [default: the administrator's in the data directory, or ~/.kube/config if that is not readable]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `scheduler`.
#[derive(Debug, Args)]
pub(crate) struct Scheduler {
    /// Kubeconfig file [default: clientConnection.kubeconfig of the configuration]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// KubeSchedulerConfiguration file, as YAML or JSON; its profiles name the schedulers that pods can select
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Log level (error, warn, info, debug, trace), or a filter such as scheduler=debug [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Flags of `simulate`.
#[derive(Debug, Args)]
pub(crate) struct Simulate {
    /// Number of nodes
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub nodes: usize,
    /// Prefix of the node names, before a number
    #[arg(long, value_name = "TEXT", default_value = "simulated-")]
    pub prefix: String,
    /// CPU capacity of each node
    #[arg(long, value_name = "QUANTITY", default_value = "32")]
    pub cpu: String,
    /// Memory capacity of each node
    #[arg(long, value_name = "QUANTITY", default_value = "256Gi")]
    pub memory: String,
    /// Pod capacity of each node
    #[arg(long, value_name = "N", default_value_t = 110)]
    pub pods: u32,
    /// Number of zones to spread the nodes over; 0 sets no zone
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub zones: usize,
    /// Labels of all nodes
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub labels: Vec<String>,
    /// Keep the Node objects when the simulation ends
    #[arg(long)]
    pub keep: bool,
    /// Kubeconfig file [default: the administrator's kubeconfig in the data directory]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// The data directory of the cluster that a command works on.
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
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

/// Flags of `backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// File to write
    pub file: PathBuf,
    /// Encrypt the backup with the password in this file
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Flags of `restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// File written by `mainstay backup`
    pub file: PathBuf,
    /// File with the password of an encrypted backup
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Move existing objects and keys aside
    #[arg(long)]
    pub force: bool,
}

/// Flags of `version`.
#[derive(Debug, Args)]
pub(crate) struct Version {
    /// Print only the version of this program
    #[arg(long)]
    pub client: bool,
    /// Output format: json
    #[arg(long, short, value_name = "FORMAT")]
    pub output: Option<String>,
    /// Kubeconfig file [default: the administrator's in the data directory, or ~/.kube/config if that is not readable]
    #[arg(long, value_name = "FILE", env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    #[command(flatten)]
    pub cluster: Cluster,
}

/// Flags of `migrate`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("direction").required(true).args(["to_etcd", "to_embedded"]))]
pub(crate) struct Migrate {
    /// From the data directory to an empty etcd
    #[arg(long)]
    pub to_etcd: bool,
    /// From etcd to the data directory of one of its servers
    #[arg(long)]
    pub to_embedded: bool,
    /// Endpoints of the etcd cluster, as https://HOST:PORT
    #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
    pub etcd_endpoints: Vec<String>,
    /// CA certificate that etcd's certificates are verified against
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// Private key of the client certificate for etcd
    #[arg(long, value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The server's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

/// Subcommands of `image`.
#[derive(Debug, Subcommand)]
pub(crate) enum Image {
    /// Pull an image from its registry
    Pull {
        image: String,
        /// User name at the registry
        #[arg(long, value_name = "USER", requires = "password_stdin")]
        username: Option<String>,
        /// Read the password from standard input
        #[arg(long, requires = "username")]
        password_stdin: bool,
        #[command(flatten)]
        store: ImageStore,
    },
    /// Import an OCI or Docker archive; - is standard input
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

/// The data directory of the node whose image store a command works on.
#[derive(Debug, Clone, Args)]
pub(crate) struct ImageStore {
    /// The cluster's data directory [default: /var/lib/mainstay]
    #[arg(long, value_name = "DIR", env = "MAINSTAY_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_data_directory_can_be_set_by_the_environment() {
        fn check(command: &clap::Command) {
            let directories = command
                .get_arguments()
                .filter(|argument| argument.get_long() == Some("data-dir"));
            for argument in directories {
                let name = argument.get_env().and_then(|name| name.to_str());
                assert_eq!(name, Some("MAINSTAY_DATA_DIR"), "{}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&Cli::command());
    }
}
