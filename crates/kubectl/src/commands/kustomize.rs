//! `kubectl kustomize`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::{kustomize::Options, output::yaml};

/// Flags of `kustomize`.
#[derive(Debug, Args)]
pub(crate) struct Kustomize {
    /// The directory with the kustomization
    #[arg(value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Write the output to this file, or to one file per object in this directory
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
    /// Which files may be read: LoadRestrictionsRootOnly, or LoadRestrictionsNone for files outside of the directory
    #[arg(
        long,
        default_value = "LoadRestrictionsRootOnly",
        value_name = "RESTRICTION"
    )]
    load_restrictor: String,
    // What these flags are for is refused where a kustomization asks for it.
    #[allow(dead_code)]
    #[command(flatten)]
    programs: Programs,
    /// The order of the output: legacy, or none for the order of the files
    #[arg(long, hide = true)]
    reorder: Option<String>,
    /// Label every object with app.kubernetes.io/managed-by
    #[arg(long, hide = true)]
    enable_managedby_label: bool,
}

/// Flags about programs that a kustomization may run.
#[derive(Debug, Args)]
#[allow(dead_code)]
struct Programs {
    /// Enable kustomize plugins
    #[arg(long)]
    enable_alpha_plugins: bool,
    /// Run functions in containers as the calling user
    #[arg(long)]
    as_current_user: bool,
    /// Environment variables for functions
    #[arg(short, long, value_name = "KEY=VALUE")]
    env: Vec<String>,
    /// Storage for functions
    #[arg(long)]
    mount: Vec<String>,
    /// Let functions use the network
    #[arg(long)]
    network: bool,
    /// The network for functions
    #[arg(long, default_value = "bridge", value_name = "NAME")]
    network_name: String,
    /// Enable charts of Helm
    #[arg(long)]
    enable_helm: bool,
    /// The program of Helm
    #[arg(long, default_value = "helm", value_name = "PROGRAM")]
    helm_command: String,
    /// API versions for Helm
    #[arg(long, value_name = "VERSION")]
    helm_api_versions: Vec<String>,
    /// The version of Kubernetes for Helm
    #[arg(long, value_name = "VERSION")]
    helm_kube_version: Option<String>,
    /// Let Helm print more
    #[arg(long)]
    helm_debug: bool,
}

impl Kustomize {
    pub(crate) fn run(self) -> Result<()> {
        if self.reorder.is_some() {
            eprintln!(
                "Flag --reorder has been deprecated, use the new 'sortOptions' field in kustomization.yaml instead."
            );
        }
        let directory = match self.directories.as_slice() {
            [] => PathBuf::from("."),
            [one] => one.clone(),
            _ => bail!("specify one path to kustomization.yaml"),
        };
        let options = Options {
            is_unrestricted: match self.load_restrictor.as_str() {
                "LoadRestrictionsRootOnly" => false,
                "LoadRestrictionsNone" => true,
                _ => bail!(
                    "illegal flag value --load-restrictor {}; legal values: [LoadRestrictionsRootOnly LoadRestrictionsNone]",
                    self.load_restrictor
                ),
            },
            keeps_order: match self.reorder.as_deref().unwrap_or("legacy") {
                "legacy" => false,
                "none" => true,
                _ => bail!(
                    "illegal flag value --reorder {}; legal values: [legacy none]",
                    self.reorder.as_deref().unwrap_or_default()
                ),
            },
            adds_managed_by: self.enable_managedby_label,
        };
        let objects = crate::kustomize::build_with(&directory, options)?;
        let documents: Vec<String> = objects.iter().map(yaml::to_string).collect();
        match &self.output {
            None => print!("{}", documents.join("---\n")),
            Some(path) if path.is_dir() => {
                for (object, document) in objects.iter().zip(&documents) {
                    let file = path.join(file_name(object));
                    std::fs::write(&file, document)
                        .with_context(|| format!("cannot write {}", file.display()))?;
                }
            }
            Some(path) => std::fs::write(path, documents.join("---\n"))
                .with_context(|| format!("cannot write {}", path.display()))?,
        }
        Ok(())
    }
}

/// `apps_v1_deployment_web.yaml`, with the namespace as prefix if there is one.
fn file_name(object: &serde_json::Value) -> String {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let mut parts = vec![
        text(&object["apiVersion"]).replace('/', "_"),
        text(&object["kind"]),
        text(&object["metadata"]["name"]),
    ];
    let namespace = text(&object["metadata"]["namespace"]);
    if !namespace.is_empty() {
        parts.insert(0, namespace);
    }
    format!("{}.yaml", parts.join("_").to_lowercase())
}
