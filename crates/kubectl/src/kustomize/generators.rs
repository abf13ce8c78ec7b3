//! ConfigMaps and Secrets generated from literals and files.

use std::path::Path;

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};

use super::{
    kustomization::{GeneratorArgs, GeneratorOptions},
    loader::Loader,
    resource::{Behavior, Resource},
};
use crate::commands::content_hash;

/// The line width of base64 text.
const LINE: usize = 70;

/// The object of a generator.
pub(super) fn generate(
    kind: &str,
    args: &GeneratorArgs,
    global: Option<&GeneratorOptions>,
    loader: &Loader,
) -> Result<Resource> {
    if args.name.is_empty() {
        bail!("a configmap must have a name");
    }
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": args.name}});
    if !args.namespace.is_empty() {
        object["metadata"]["namespace"] = json!(args.namespace);
    }
    if kind == "Secret" {
        object["type"] = match args.secret_type.as_str() {
            "" => json!("Opaque"),
            secret_type => json!(secret_type),
        };
        object["data"] = json!({});
    }
    for (key, bytes) in pairs(args, loader).context("loading KV pairs")? {
        let taken = ["data", "binaryData"]
            .iter()
            .any(|field| object[field].get(&key).is_some());
        if taken {
            bail!("configmap {} illegally repeats the key `{key}`", args.name);
        }
        match (kind, String::from_utf8(bytes)) {
            ("Secret", Ok(text)) => object["data"][key] = json!(base64(text.as_bytes())),
            ("Secret", Err(error)) => object["data"][key] = json!(base64(error.as_bytes())),
            (_, Ok(text)) => object["data"][key] = json!(text),
            (_, Err(error)) => object["binaryData"][key] = json!(base64(error.as_bytes())),
        }
    }
    let options = merged(args.options.clone(), global);
    for (field, values) in [
        ("labels", &options.labels),
        ("annotations", &options.annotations),
    ] {
        for (key, value) in values {
            object["metadata"][field][key] = json!(value);
        }
    }
    if options.immutable {
        object["immutable"] = json!(true);
    }
    let mut resource = Resource::new(object);
    resource.needs_hash = !options.disable_name_suffix_hash;
    resource.behavior = Behavior::parse(&args.behavior);
    Ok(resource)
}

/// A generator's own options, with the kustomization's as defaults.
fn merged(own: Option<GeneratorOptions>, global: Option<&GeneratorOptions>) -> GeneratorOptions {
    let mut options = own.unwrap_or_default();
    let Some(global) = global else { return options };
    for (own, global) in [
        (&mut options.labels, &global.labels),
        (&mut options.annotations, &global.annotations),
    ] {
        for (key, value) in global {
            own.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    options.disable_name_suffix_hash |= global.disable_name_suffix_hash;
    options.immutable |= global.immutable;
    options
}

fn pairs(args: &GeneratorArgs, loader: &Loader) -> Result<Vec<(String, Vec<u8>)>> {
    let mut pairs = Vec::new();
    let envs = args
        .envs
        .iter()
        .chain((!args.env.is_empty()).then_some(&args.env));
    for path in envs {
        let text = loader
            .text(path)
            .with_context(|| format!("env source files: [{}]", args.envs.join(" ")))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        for line in text.lines().map(str::trim_start) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            pairs.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    for literal in &args.literals {
        match literal.split_once('=') {
            Some((key, value)) if !key.is_empty() => {
                pairs.push((key.to_owned(), unquoted(value).as_bytes().to_vec()));
            }
            _ => bail!(
                "literal sources [{}]: invalid literal source {literal}, expected key=value",
                args.literals.join(" ")
            ),
        }
    }
    for source in &args.files {
        let pair = file(source, loader)
            .with_context(|| format!("file sources: [{}]", args.files.join(" ")))?;
        pairs.push(pair);
    }
    Ok(pairs)
}

fn file(source: &str, loader: &Loader) -> Result<(String, Vec<u8>)> {
    let (key, path) = match source.split('=').collect::<Vec<_>>().as_slice() {
        [path] => {
            let name = Path::new(path).file_name().unwrap_or_default();
            (name.to_string_lossy().into_owned(), *path)
        }
        ["", path] => bail!("missing key name for file path {path:?} in source {source:?}"),
        [key, ""] => bail!("missing file path for key name {key:?} in source {source:?}"),
        [key, path] => ((*key).to_owned(), *path),
        _ => bail!("source {source:?} key name or file path contains '='"),
    };
    Ok((key, loader.bytes(path)?))
}

fn unquoted(value: &str) -> &str {
    for quote in ['"', '\''] {
        if value.len() >= 2
            && let Some(inner) = value
                .strip_prefix(quote)
                .and_then(|value| value.strip_suffix(quote))
        {
            return inner;
        }
    }
    value
}

/// Base64, wrapped if long.
fn base64(bytes: &[u8]) -> String {
    let text = BASE64_STANDARD.encode(bytes);
    if text.len() < LINE {
        return text;
    }
    let mut out = String::new();
    for line in text.as_bytes().chunks(LINE) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out
}

/// Adds content hashes to the names of generated objects.
pub(super) fn add_hashes(resources: &mut super::resource::Resources) {
    for resource in &mut resources.0 {
        if resource.needs_hash {
            let name = format!("{}-{}", resource.name(), hash(&resource.object));
            resource.remember_id();
            resource.set_name(&name);
        }
    }
}

fn hash(object: &Value) -> String {
    let field = |name: &str| object.get(name).cloned().unwrap_or_else(|| json!(""));
    let kind = object["kind"].as_str().unwrap_or_default();
    let mut content = match kind {
        "ConfigMap" | "Secret" => {
            json!({"kind": kind, "name": "", "data": field("data")})
        }
        _ => return content_hash(object),
    };
    let optional = match kind {
        "Secret" => {
            content["type"] = field("type");
            "stringData"
        }
        _ => "binaryData",
    };
    if object[optional].is_object() {
        content[optional] = object[optional].clone();
    }
    content_hash(&content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_around_a_literal_are_taken_off_once() {
        for (value, expected) in [
            ("\"a\"", "a"),
            ("'a'", "a"),
            ("\"a'", "\"a'"),
            ("\"", "\""),
            ("''a''", "'a'"),
        ] {
            assert_eq!(unquoted(value), expected);
        }
    }

    #[test]
    fn long_base64_is_broken_into_lines() {
        assert_eq!(base64(b"a"), "YQ==");
        assert_eq!(
            base64(&[0; 60]).lines().map(str::len).collect::<Vec<_>>(),
            [70, 10]
        );
    }
}
