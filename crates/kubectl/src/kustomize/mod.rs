//! Kustomizations, built as kustomize v5 does. Helm charts, remote repositories and plugins that
//! are programs are rejected.

mod config;
mod defaults;
mod fieldspec;
mod generators;
mod id;
mod images;
mod kustomization;
mod loader;
mod merge;
mod order;
mod origin;
mod patches;
mod paths;
mod plugins;
mod references;
mod replacements;
mod resource;
mod schema;
#[cfg(test)]
mod tests;
mod transformers;
mod vars;

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use crate::json::{sorted, str_of};
use config::Config;
use kustomization::{COMPONENT, Kustomization};
use loader::Loader;
use origin::Origin;
use resource::{Resource, Resources};
use vars::Var;

const LOCAL_CONFIG: &str = "config.kubernetes.io/local-config";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The kustomize version in kubectl 1.36.
pub(crate) const VERSION: &str = "v5.8.1";

/// Options of the command line.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    /// Whether files outside of a kustomization's directory may be read.
    pub is_unrestricted: bool,
    /// Whether objects keep their input order.
    pub keeps_order: bool,
    /// Whether objects get a label with the tool's name.
    pub adds_managed_by: bool,
}

/// The objects of the kustomization in a directory.
pub(crate) fn build(directory: &Path) -> Result<Vec<Value>> {
    build_with(directory, Options::default())
}

pub(crate) fn build_with(directory: &Path, options: Options) -> Result<Vec<Value>> {
    let loader = Loader::new(directory, !options.is_unrestricted)?;
    let (kustomization, file) = Kustomization::load(&loader)?;
    let metadata = kustomization.build_metadata.clone();
    let mut target = Target {
        document: document(&kustomization, &loader)?,
        origin: (!metadata.is_empty()).then(Origin::default),
        build_metadata: &metadata,
        kustomization,
        file,
        loader,
    };
    let mut built = target.accumulate(Accumulated::default())?;
    generators::add_hashes(&mut built.resources);
    references::follow(&mut built.resources, &built.config.name_reference)?;
    vars::resolve(
        &built.vars,
        &built.config.var_reference,
        &mut built.resources,
    )?;
    let mut resources = built.resources;
    resources.0.retain(|resource| !is_local(resource));
    let sort_options = target.kustomization.sort_options.as_ref();
    if sort_options.is_some() || !options.keeps_order {
        order::sort(&mut resources, sort_options)?;
    }
    let has = |option: &str| metadata.iter().any(|known| known == option);
    let adds_managed_by = options.adds_managed_by || has("managedByLabel");
    let finish = |resource: Resource| {
        let mut object = resource.object;
        if adds_managed_by {
            object["metadata"]["labels"][MANAGED_BY] = json!(format!("kustomize-{VERSION}"));
        }
        let annotations = [
            (
                has("originAnnotations"),
                origin::ORIGIN,
                resource.origin.map(|origin| origin.text()),
            ),
            (
                has("transformerAnnotations") && !resource.transformations.is_empty(),
                origin::TRANSFORMATIONS,
                Some(origin::list_text(&resource.transformations)),
            ),
        ];
        for (is_wanted, key, text) in annotations {
            if let (true, Some(text)) = (is_wanted, text) {
                object["metadata"]["annotations"][key] = json!(text);
            }
        }
        sorted(&object)
    };
    Ok(resources.0.into_iter().map(finish).collect())
}

/// Whether an object is local configuration for tools.
fn is_local(resource: &Resource) -> bool {
    let annotation = &resource.object["metadata"]["annotations"][LOCAL_CONFIG];
    !annotation.is_null() && annotation != "false"
}

/// The schema of the field `openapi`.
fn document(kustomization: &Kustomization, loader: &Loader) -> Result<Option<Value>> {
    let Some(path) = kustomization
        .openapi
        .as_ref()
        .and_then(|openapi| openapi.get("path"))
    else {
        return Ok(None);
    };
    Ok(Some(serde_saphyr::from_str(&loader.text(path)?)?))
}

/// The result of a kustomization and its bases so far.
#[derive(Default)]
struct Accumulated {
    resources: Resources,
    config: Config,
    vars: Vec<Var>,
}

impl Accumulated {
    fn merge(&mut self, other: Self) -> Result<()> {
        self.resources.extend(other.resources.0)?;
        self.config.merge(&other.config)?;
        vars::add(&mut self.vars, &other.vars)
    }
}

/// One kustomization being built.
struct Target<'a> {
    loader: Loader,
    kustomization: Kustomization,
    file: &'static str,
    document: Option<Value>,
    /// Its path relative to the root kustomization; only if `buildMetadata` requests it.
    origin: Option<Origin>,
    build_metadata: &'a [String],
}

impl Target<'_> {
    fn accumulate(&mut self, accumulated: Accumulated) -> Result<Accumulated> {
        let mut all = accumulated;
        self.add_resources(&mut all, &self.kustomization.resources)
            .map_err(|error| anyhow!("accumulating resources: {error:#}"))?;
        let own = &self.kustomization;
        all.config
            .merge(&Config::load(&self.loader, &own.configurations, &own.crds)?)?;
        self.generate(&mut all.resources)?;
        for path in &own.components {
            let loader = self.loader.enter(path).map_err(|error| {
                let text = format!("{error:#}");
                anyhow!("accumulating components: loader.New {text:?}")
            })?;
            all = self.enter(loader, path, true, all).map_err(|error| {
                let text = format!("{error:#}");
                anyhow!("accumulating components: accumulateDirectory: {text:?}")
            })?;
        }
        self.transform(&mut all)?;
        let own_vars = own.vars.clone().unwrap_or_default();
        vars::merge(&mut all.vars, &own_vars, &mut all.resources).context("merging vars")?;
        Ok(all)
    }

    /// Reads files, and builds the kustomizations among the paths.
    fn add_resources(&self, all: &mut Accumulated, paths: &[String]) -> Result<()> {
        for path in paths {
            let Err(file_error) = self.add_file(&mut all.resources, path) else {
                continue;
            };
            let loader = match self.loader.enter(path) {
                Ok(loader) => loader,
                // It is a file, but not YAML.
                Err(_) if format!("{file_error:#}").contains("error parsing") => {
                    return Err(file_error);
                }
                Err(error) => bail!("accumulation err='{file_error:#}': {error:#}"),
            };
            let built = self
                .enter(loader, path, false, Accumulated::default())
                .map_err(|error| anyhow!("accumulation err='{file_error:#}': {error:#}"))?;
            all.merge(built).map_err(|error| {
                let root = self.loader.root().join(path);
                let root = root.canonicalize().unwrap_or(root);
                anyhow!(
                    "accumulation err='{file_error:#}': recursed merging from path '{}': {error:#}",
                    root.display()
                )
            })?;
        }
        Ok(())
    }

    fn add_file(&self, resources: &mut Resources, path: &str) -> Result<()> {
        let text = self
            .loader
            .text(path)
            .map_err(|error| anyhow!("accumulating resources from '{path}': {error:#}"))?;
        let parsed = resource::parse(&text, path)
            .map_err(|error| anyhow!("accumulating resources from '{path}': {error:#}"))?;
        for mut resource in parsed {
            resource.origin = self.origin.as_ref().map(|origin| origin.join(path));
            resources
                .push(resource)
                .map_err(|error| anyhow!("merging resources from '{path}': {error:#}"))?;
        }
        Ok(())
    }

    fn enter(
        &self,
        loader: Loader,
        path: &str,
        is_component: bool,
        accumulated: Accumulated,
    ) -> Result<Accumulated> {
        let root = loader.root().display().to_string();
        let (kustomization, file) = Kustomization::load(&loader)
            .map_err(|error| anyhow!("couldn't make target for path '{root}': {error:#}"))?;
        match (is_component, kustomization.kind.as_str()) {
            (true, COMPONENT) => {}
            (true, kind) => {
                bail!("expected kind '{COMPONENT}' for path '{root}' but got '{kind}'")
            }
            (false, COMPONENT) => bail!("expected kind != '{COMPONENT}' for path '{root}'"),
            (false, _) => {}
        }
        let own = document(&kustomization, &loader)?;
        let mut target = Target {
            document: own.or_else(|| self.document.clone()),
            origin: self.origin.as_ref().map(|origin| origin.join(path)),
            build_metadata: self.build_metadata,
            kustomization,
            file,
            loader,
        };
        target
            .accumulate(accumulated)
            .map_err(|error| anyhow!("recursed accumulation of path '{root}': {error:#}"))
    }

    fn generate(&self, resources: &mut Resources) -> Result<()> {
        let own = &self.kustomization;
        let options = own.generator_options.as_ref();
        for (kind, name, generators) in [
            ("ConfigMap", "ConfigMapGenerator", &own.config_map_generator),
            ("Secret", "SecretGenerator", &own.secret_generator),
        ] {
            for args in generators {
                let mut made = generators::generate(kind, args, options, &self.loader)?;
                let origin = self.origin.as_ref();
                made.origin = origin.map(|origin| origin.built_in(self.file, name));
                resources
                    .absorb(made)
                    .map_err(|error| anyhow!("merging from generator: {error:#}"))?;
            }
        }
        for plugin in self.plugins(&own.generators)? {
            let mut made = plugins::generator(&plugin.object, &self.loader)
                .context("loading generator plugins")?;
            made.origin = plugin.origin.map(|origin| origin.plugin(&plugin.object));
            resources.absorb(made)?;
        }
        Ok(())
    }

    /// The objects that configure plugins: inline, or in files and kustomizations.
    fn plugins(&self, entries: &[String]) -> Result<Vec<Resource>> {
        let mut all = Accumulated::default();
        for entry in entries {
            match resource::parse(entry, "inline") {
                Ok(parsed) if !parsed.is_empty() => {
                    for mut plugin in parsed {
                        let origin = self.origin.as_ref();
                        plugin.origin = origin.map(|origin| origin.join(self.file));
                        all.resources.push(plugin)?;
                    }
                }
                _ => self.add_resources(&mut all, std::slice::from_ref(entry))?,
            }
        }
        Ok(all.resources.0)
    }

    fn transform(&self, all: &mut Accumulated) -> Result<()> {
        let own = &self.kustomization;
        let document = self.document.as_ref();
        let built_in = plugins::built_in(own, &all.config, &self.loader, document)?;
        for step in built_in {
            let origin = self.origin.as_ref();
            let origin = origin.map(|origin| origin.built_in(self.file, step.name()));
            run(&step, &mut all.resources, origin.as_ref())?;
        }
        for plugin in self.plugins(&own.transformers)? {
            let step = plugins::transformer(&plugin.object, &self.loader, document)?;
            let origin = plugin.origin.map(|origin| origin.plugin(&plugin.object));
            run(&step, &mut all.resources, origin.as_ref())?;
        }
        for plugin in self.plugins(&own.validators)? {
            let step = plugins::transformer(&plugin.object, &self.loader, document)?;
            let mut copy = all.resources.clone();
            step.run(&mut copy)?;
            let objects = |resources: &Resources| -> Vec<Value> {
                resources.0.iter().map(|own| own.object.clone()).collect()
            };
            if objects(&copy) != objects(&all.resources) {
                bail!(
                    "validator shouldn't modify the resource map: {} changed it",
                    str_of(&plugin.object["kind"])
                );
            }
        }
        Ok(())
    }
}

fn run(step: &plugins::Transformer, all: &mut Resources, origin: Option<&Origin>) -> Result<()> {
    step.run(all)?;
    all.drop_deleted();
    if let Some(origin) = origin {
        for resource in &mut all.0 {
            match resource.origin {
                Some(_) => resource.transformations.push(origin.clone()),
                None => resource.origin = Some(origin.clone()),
            }
        }
    }
    Ok(())
}
