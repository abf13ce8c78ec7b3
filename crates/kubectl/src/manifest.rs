//! Reading manifests: files, directories, URLs, kustomizations and standard input; YAML with
//! several documents, JSON, and lists, which are expanded.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use crate::{args::Files, json::list};

/// An object and its source.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub object: Value,
    pub source: String,
}

/// All objects of the given sources, in order; what it means that there are none is the command's.
/// The first error ends it.
pub(crate) async fn read(files: &Files) -> Result<Vec<Manifest>> {
    read_each(files, true).await?.into_iter().collect()
}

/// The same with an error in the place of what cannot be read: commands continue with the other
/// objects. Without validation, what is no object is an error only if it has no kind.
pub(crate) async fn read_each(files: &Files, is_validated: bool) -> Result<Vec<Result<Manifest>>> {
    let mut found = Vec::new();
    if files.filename.iter().filter(|name| *name == "-").count() > 1 {
        bail!("standard input cannot be used for multiple arguments");
    }
    if let Some(directory) = files.kustomization() {
        if !files.filename.is_empty() {
            bail!("only one of -f or -k can be specified");
        }
        if files.recursive {
            bail!("the -k flag can't be used with -f or -R");
        }
        let source = directory.display().to_string();
        let objects = crate::kustomize::build(directory)?;
        found.extend(objects.into_iter().map(|object| {
            Ok(Manifest {
                object,
                source: source.clone(),
            })
        }));
        return Ok(found);
    }
    // A name that does not exist is reported before anything is read.
    let mut places = Vec::new();
    for place in &files.filename {
        match place == "-" || is_url(place) {
            true => places.push((place.clone(), None)),
            false => places.extend(
                find(place, files.recursive)?
                    .into_iter()
                    .map(|file| (file.display().to_string(), Some(file))),
            ),
        }
    }
    for (name, file) in places {
        let (text, source) = match file {
            Some(file) => {
                let text = std::fs::read_to_string(&file);
                (
                    text.with_context(|| format!("error reading {name:?}")),
                    name,
                )
            }
            None if name == "-" => (stdin(), "STDIN".to_owned()),
            None => (crate::download::text(&name).await, name),
        };
        match text {
            Ok(text) => objects_of(&text, &source, is_validated, &mut found),
            Err(error) => found.push(Err(error)),
        }
    }
    Ok(found)
}

fn is_url(place: &str) -> bool {
    place.starts_with("http://") || place.starts_with("https://")
}

fn stdin() -> Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The objects of one text. What is not valid ends it; an object that cannot be decoded does not.
fn objects_of(text: &str, source: &str, is_validated: bool, found: &mut Vec<Result<Manifest>>) {
    let mut documents = Vec::new();
    let parsed = documents_with(text, source, false, &mut documents);
    for document in documents {
        let mut objects = Vec::new();
        let flattened = flatten(document, source, is_validated, &mut objects);
        found.extend(objects.into_iter().map(|object| {
            Ok(Manifest {
                object,
                source: source.to_owned(),
            })
        }));
        match flattened {
            Ok(()) => {}
            Err(Flaw::Invalid(error)) => return found.push(Err(error)),
            Err(Flaw::Undecodable(error)) => found.push(Err(error)),
        }
    }
    found.extend(parsed.err().map(Err));
}

/// The files of a name or a pattern.
fn find(place: &str, recursive: bool) -> Result<Vec<PathBuf>> {
    let path = Path::new(place);
    if path.exists() {
        return files(path, recursive, true);
    }
    if place.contains(['*', '?', '[']) {
        let found = glob(path)?;
        if found.is_empty() {
            bail!("the path \"{place}\" does not exist");
        }
        let mut all = Vec::new();
        for path in found {
            all.extend(files(&path, recursive, true)?);
        }
        return Ok(all);
    }
    bail!("the path \"{place}\" does not exist")
}

/// The paths that match a pattern in the last segment.
fn glob(pattern: &Path) -> Result<Vec<PathBuf>> {
    let directory = pattern.parent().filter(|path| !path.as_os_str().is_empty());
    let name = pattern
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let listed = std::fs::read_dir(directory.unwrap_or(Path::new(".")));
    let mut found = Vec::new();
    for entry in listed.into_iter().flatten() {
        let file = entry?.file_name();
        if crate::glob::matches(&name, &file.to_string_lossy()) {
            found.push(
                directory.map_or_else(|| PathBuf::from(&file), |directory| directory.join(&file)),
            );
        }
    }
    found.sort();
    Ok(found)
}

fn files(place: &Path, recursive: bool, is_root: bool) -> Result<Vec<PathBuf>> {
    if !place.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(place)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        let is_manifest = entry
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
        if entry.is_dir() {
            if recursive {
                found.extend(files(&entry, true, false)?);
            }
        } else if is_manifest {
            found.push(entry);
        }
    }
    if is_root && found.is_empty() {
        bail!(
            "error reading [{}]: recognized file extensions are [.json .yaml .yml]",
            place.display()
        );
    }
    Ok(found)
}

/// The objects of one text; lists are expanded.
pub(crate) fn parse(text: &str, source: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in documents(text, source)? {
        flatten(document, source, true, &mut objects)?;
    }
    Ok(objects)
}

/// The documents of one text, parsed as YAML 1.1: `yes` and `on` are booleans.
pub(crate) fn documents(text: &str, source: &str) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    documents_with(text, source, false, &mut documents)?;
    Ok(documents)
}

/// The documents of one text, parsed as kustomize does: only `true` and `false` are booleans.
pub(crate) fn strict_documents(text: &str, source: &str) -> Result<Vec<Value>> {
    let mut documents = Vec::new();
    documents_with(text, source, true, &mut documents)?;
    Ok(documents)
}

/// Adds the documents up to the first error.
fn documents_with(
    text: &str,
    source: &str,
    strict_booleans: bool,
    documents: &mut Vec<Value>,
) -> Result<()> {
    if text.trim_start().starts_with('{')
        && let Ok(values) = serde_json::Deserializer::from_str(text)
            .into_iter()
            .collect::<Result<Vec<Value>, _>>()
    {
        documents.extend(values);
        return Ok(());
    }
    for (first_line, part) in split(text) {
        let options = serde_saphyr::options! {
            strict_booleans: strict_booleans,
            legacy_octal_numbers: true,
        };
        let value: Value = match serde_saphyr::from_str_with_options(&part, options) {
            Ok(value) => value,
            Err(error) => bail!(
                "error parsing {}",
                with_position(&error, source, first_line)
            ),
        };
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(())
}

/// `web.yaml:3:7: what is wrong`, with the line of the file, not of the document.
fn with_position(error: &serde_saphyr::Error, source: &str, first_line: usize) -> String {
    let text = error.to_string();
    let why = text.lines().next().unwrap_or_default();
    match error.location() {
        Some(location) => {
            let line = usize::try_from(location.line()).unwrap_or(1) + first_line;
            format!("{source}:{line}:{}: {why}", location.column())
        }
        None => format!("{source}: {why}"),
    }
}

/// Splits a YAML stream at its document markers; each part with its first line's number.
fn split(text: &str) -> Vec<(usize, String)> {
    let mut parts = vec![(0, String::new())];
    for (at, line) in text.lines().enumerate() {
        let is_mark = line == "---" || line.starts_with("--- ") || line.starts_with("---\t");
        match parts.last_mut() {
            Some((_, part)) if !is_mark => {
                part.push_str(line);
                part.push('\n');
            }
            // Text after the marker belongs to the document.
            _ => parts.push((at, format!("{}\n", &line[3..]))),
        }
    }
    let is_content = |(_, part): &(usize, String)| {
        part.lines()
            .any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    };
    parts.into_iter().filter(is_content).collect()
}

/// What is wrong with a document.
#[derive(Debug)]
enum Flaw {
    /// Validation ends the file.
    Invalid(anyhow::Error),
    Undecodable(anyhow::Error),
}

impl From<Flaw> for anyhow::Error {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::Invalid(error) | Flaw::Undecodable(error) => error,
        }
    }
}

fn invalid(source: &str, why: &str) -> Flaw {
    Flaw::Invalid(anyhow!(
        "error validating {source:?}: error validating data: {why}; if you choose to ignore these errors, turn validation off with --validate=false"
    ))
}

fn flatten(
    value: Value,
    source: &str,
    is_validated: bool,
    objects: &mut Vec<Value>,
) -> Result<(), Flaw> {
    if !value.is_object() {
        return Err(invalid(source, "invalid object to validate"));
    }
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind.ends_with("List") && value["items"].is_array() {
        for item in list(&value["items"]).cloned() {
            flatten(item, source, is_validated, objects)?;
        }
        return Ok(());
    }
    let undecodable =
        |why: String| Flaw::Undecodable(anyhow!("unable to decode {source:?}: {why}"));
    for field in ["labels", "annotations"] {
        let odd = crate::json::entries(&value["metadata"][field])
            .into_iter()
            .find_map(|(_, value)| go_type(value));
        if let Some(odd) = odd {
            return Err(undecodable(format!(
                "json: cannot unmarshal {odd} into Go struct field ObjectMeta.metadata.{field} of type string"
            )));
        }
    }
    if !is_validated && kind.is_empty() {
        let text = crate::json::compact(&value);
        return Err(undecodable(format!("Object 'Kind' is missing in '{text}'")));
    }
    let missing: Vec<String> = ["apiVersion", "kind"]
        .into_iter()
        .filter(|field| value[*field].as_str().unwrap_or_default().is_empty())
        .map(|field| format!("{field} not set"))
        .collect();
    match missing.as_slice() {
        [one] if is_validated => return Err(invalid(source, one)),
        [_, _] if is_validated => {
            return Err(invalid(source, &format!("[{}]", missing.join(", "))));
        }
        _ => {}
    }
    objects.push(value);
    Ok(())
}

/// Go's name of a value's type that should have been a string.
fn go_type(value: &Value) -> Option<&'static str> {
    match value {
        Value::String(_) | Value::Null => None,
        Value::Bool(_) => Some("bool"),
        Value::Number(_) => Some("number"),
        Value::Array(_) => Some("array"),
        Value::Object(_) => Some("object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_become_single_objects() {
        let text = "# a comment\n---\napiVersion: v1\nkind: A\n---\n---\napiVersion: v1\nkind: List\n\
                    items:\n- {apiVersion: v1, kind: B}\n- {apiVersion: v1, kind: C}\n";
        let kinds: Vec<_> = parse(text, "x")
            .unwrap()
            .iter()
            .map(|o| o["kind"].clone())
            .collect();
        assert_eq!(kinds, ["A", "B", "C"]);
    }

    #[test]
    fn several_json_objects_in_one_text_are_read() {
        let text = r#"{"apiVersion":"v1","kind":"A"} {"apiVersion":"v1","kind":"B"}"#;
        assert_eq!(parse(text, "x").unwrap().len(), 2);
    }

    #[test]
    fn an_object_without_a_kind_is_refused() {
        let error = parse("metadata: {name: x}", "a.yaml")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("[apiVersion not set, kind not set]"),
            "{error}"
        );
    }

    #[test]
    fn a_syntax_error_names_file_line_and_column() {
        let error = parse(
            "kind: A\napiVersion: v1\n---\nkind: B\n  bad: [\n",
            "a.yaml",
        )
        .unwrap_err()
        .to_string();
        assert!(error.starts_with("error parsing a.yaml:"), "{error}");
        let line: usize = error.split(':').nth(1).unwrap().parse().unwrap();
        assert!((4..=6).contains(&line), "{error}");
    }
}
