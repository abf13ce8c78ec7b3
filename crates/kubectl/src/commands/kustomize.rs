//! `kubectl kustomize`

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;

use crate::output::yaml;

/// Flags of `kustomize`.
#[derive(Debug, Args)]
pub struct Kustomize {
    /// The directory with the kustomization
    #[arg(default_value = ".")]
    directory: PathBuf,
    /// Write the output to this file, or to one file per object in this directory
    #[arg(short, long, value_name = "PATH")]
    output: Option<PathBuf>,
}

impl Kustomize {
    pub fn run(self) -> Result<()> {
        let objects = crate::kustomize::build(&self.directory)?;
        let documents: Vec<String> = objects.iter().map(yaml::to_string).collect();
        match &self.output {
            None => print!("{}", documents.join("---\n")),
            Some(path) if path.is_dir() => {
                for (object, document) in objects.iter().zip(&documents) {
                    let text = |field: &str| {
                        object[field]
                            .as_str()
                            .unwrap_or_default()
                            .to_lowercase()
                            .replace('/', "_")
                    };
                    let name = object["metadata"]["name"].as_str().unwrap_or_default();
                    let file = path.join(format!(
                        "{}_{}_{name}.yaml",
                        text("apiVersion"),
                        text("kind")
                    ));
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
