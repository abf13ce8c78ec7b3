//! Names, tags and digests of images.

use anyhow::{Result, bail};
use regex::Regex;
use serde_json::{Value, json};

use super::{
    fieldspec::{FieldSpec, Missing},
    kustomization::Image,
    resource::Resources,
};

#[derive(Debug)]
pub(super) struct Images {
    pub image: Image,
    pub specs: Vec<FieldSpec>,
}

impl Images {
    pub(super) fn run(&self, resources: &mut Resources) -> Result<()> {
        let pattern = Regex::new(&format!(
            "^{}(:[a-zA-Z0-9_.{{}}-]*)?(@sha256:[a-zA-Z0-9_.{{}}-]*)?$",
            self.image.name
        ))?;
        let update = &mut |field: &mut Value| {
            let Some(text) = field.as_str() else {
                bail!("wrong node kind: expected ScalarNode");
            };
            if pattern.is_match(text) {
                *field = json!(changed(text, &self.image));
            }
            Ok(())
        };
        for resource in &mut resources.0 {
            if resource.object["kind"] == "CustomResourceDefinition" {
                continue;
            }
            in_containers(&mut resource.object, update)?;
            for spec in &self.specs {
                spec.visit(&mut resource.object, Missing::Skip, update)?;
            }
        }
        Ok(())
    }
}

/// Calls a function with the images in lists named `containers` or `initContainers`, wherever they
/// are.
fn in_containers(
    value: &mut Value,
    update: &mut dyn FnMut(&mut Value) -> Result<()>,
) -> Result<()> {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                in_containers(inner, update)?;
                if !["containers", "initContainers"].contains(&key.as_str()) {
                    continue;
                }
                for container in inner.as_array_mut().into_iter().flatten() {
                    if let Some(image) = container.get_mut("image") {
                        update(image)?;
                    }
                }
            }
            Ok(())
        }
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|item| in_containers(item, update)),
        _ => Ok(()),
    }
}

fn changed(text: &str, image: &Image) -> String {
    let (mut name, mut tag, mut digest) = parts(text);
    let suffixed;
    if !image.new_name.is_empty() {
        name = &image.new_name;
    }
    match (image.new_tag.as_str(), image.digest.as_str()) {
        ("", "") if !image.tag_suffix.is_empty() => {
            suffixed = format!("{tag}{}", image.tag_suffix);
            (tag, digest) = (&suffixed, "");
        }
        ("", "") => {}
        (new_tag, new_digest) => (tag, digest) = (new_tag, new_digest),
    }
    let mut out = name.to_owned();
    for (mark, part) in [(':', tag), ('@', digest)] {
        if !part.is_empty() {
            out.push(mark);
            out.push_str(part);
        }
    }
    out
}

/// Name, tag and digest; a port's colon does not start a tag.
fn parts(text: &str) -> (&str, &str, &str) {
    let (rest, digest) = text.split_once('@').unwrap_or((text, ""));
    let path = rest.find('/').unwrap_or(0);
    match rest[path..].find(':') {
        Some(at) => (&rest[..path + at], &rest[path + at + 1..], digest),
        None => (rest, "", digest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_an_image_is_replaced_alone() {
        let image = |new_name: &str, new_tag: &str, digest: &str, tag_suffix: &str| Image {
            name: "n".to_owned(),
            new_name: new_name.to_owned(),
            new_tag: new_tag.to_owned(),
            digest: digest.to_owned(),
            tag_suffix: tag_suffix.to_owned(),
        };
        for (text, image, expected) in [
            ("n", image("", "2", "", ""), "n:2"),
            ("n:1", image("m", "", "", ""), "m:1"),
            (
                "reg:5000/n:1@sha256:a",
                image("", "2", "", ""),
                "reg:5000/n:2",
            ),
            ("n:1", image("", "", "sha256:b", ""), "n@sha256:b"),
            ("n:1", image("", "2", "sha256:b", ""), "n:2@sha256:b"),
            ("n:1", image("", "", "", "-x"), "n:1-x"),
            ("n@sha256:a", image("m", "", "", ""), "m@sha256:a"),
        ] {
            assert_eq!(changed(text, &image), expected);
        }
    }
}
