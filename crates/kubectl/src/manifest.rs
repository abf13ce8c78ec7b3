//! Reading manifests: files, directories and standard input; YAML with several documents, JSON, and
//! lists that are taken apart.

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// All objects in the given places, in order.
pub fn read(places: &[String], recursive: bool) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for place in places {
        if place == "-" {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            objects.extend(parse(&text).context("standard input")?);
            continue;
        }
        if place.starts_with("http://") || place.starts_with("https://") {
            bail!("{place}: manifests are read from files; download it first, or pipe it to -f -");
        }
        for file in files(Path::new(place), recursive)? {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("the path \"{}\" cannot be read", file.display()))?;
            objects.extend(parse(&text).with_context(|| file.display().to_string())?);
        }
    }
    if objects.is_empty() {
        bail!("no objects passed");
    }
    Ok(objects)
}

fn files(place: &Path, recursive: bool) -> Result<Vec<PathBuf>> {
    if !place.exists() {
        bail!("the path \"{}\" does not exist", place.display());
    }
    if !place.is_dir() {
        return Ok(vec![place.to_owned()]);
    }
    let mut entries: Vec<PathBuf> = std::fs::read_dir(place)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        if entry.is_dir() {
            if recursive {
                found.extend(files(&entry, true)?);
            }
        } else if entry
            .extension()
            .is_some_and(|e| e == "yaml" || e == "yml" || e == "json")
        {
            found.push(entry);
        }
    }
    Ok(found)
}

/// The objects of one text; lists give their items.
pub fn parse(text: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in documents(text)? {
        flatten(document, &mut objects)?;
    }
    Ok(objects)
}

fn documents(text: &str) -> Result<Vec<Value>> {
    if text.trim_start().starts_with('{') {
        let stream = serde_json::Deserializer::from_str(text).into_iter();
        return Ok(stream.collect::<Result<_, _>>()?);
    }
    let mut documents = Vec::new();
    for part in split(text) {
        let value: Value = serde_saphyr::from_str(&part).context("error parsing YAML")?;
        if !value.is_null() {
            documents.push(value);
        }
    }
    Ok(documents)
}

/// Cuts a YAML stream at its document marks.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        let is_mark = line == "---" || line.starts_with("--- ") || line.starts_with("---\t");
        match parts.last_mut() {
            Some(part) if !is_mark => {
                part.push_str(line);
                part.push('\n');
            }
            _ => parts.push(String::new()),
        }
    }
    let is_content = |part: &String| {
        part.lines()
            .any(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
    };
    parts.into_iter().filter(is_content).collect()
}

fn flatten(value: Value, objects: &mut Vec<Value>) -> Result<()> {
    let kind = value["kind"].as_str().unwrap_or_default();
    if kind.ends_with("List") && value["items"].is_array() {
        for item in value["items"].as_array().cloned().unwrap_or_default() {
            flatten(item, objects)?;
        }
        return Ok(());
    }
    if kind.is_empty() || value["apiVersion"].as_str().unwrap_or_default().is_empty() {
        bail!("error validating data: [apiVersion not set, kind not set]");
    }
    objects.push(value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_lists_become_single_objects() {
        let text = "# a comment\n---\napiVersion: v1\nkind: A\n---\n---\napiVersion: v1\nkind: List\n\
                    items:\n- {apiVersion: v1, kind: B}\n- {apiVersion: v1, kind: C}\n";
        let kinds: Vec<_> = parse(text)
            .unwrap()
            .iter()
            .map(|o| o["kind"].clone())
            .collect();
        assert_eq!(kinds, ["A", "B", "C"]);
    }

    #[test]
    fn several_json_objects_in_one_text_are_read() {
        let text = r#"{"apiVersion":"v1","kind":"A"} {"apiVersion":"v1","kind":"B"}"#;
        assert_eq!(parse(text).unwrap().len(), 2);
    }

    #[test]
    fn an_object_without_a_kind_is_refused() {
        assert!(parse("metadata: {name: x}").is_err());
    }
}
