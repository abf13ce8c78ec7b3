//! Sets imagePullPolicy Always, so that no pod uses an image that another's credentials brought to
//! a node.

use async_trait::async_trait;
use kinds::tree;
use machinery::{
    Object, Status, Value,
    field::{Error, Path},
};

use super::{Attributes, Operation, Plugin};

pub(crate) const NAME: &str = "AlwaysPullImages";

const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub(crate) struct AlwaysPullImages;

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, attributes: &Attributes<'_>) -> bool {
        attributes.is_write_of("", "pods")
    }

    async fn mutate(&self, attributes: &Attributes<'_>, object: &mut Object) -> Result<(), Status> {
        if has_no_new_image(attributes, object) {
            return Ok(());
        }
        let spec = tree::child_or_new(object, "spec");
        for key in CONTAINERS {
            let list = spec.get_mut(key).and_then(Value::as_array_mut);
            for container in list.into_iter().flatten() {
                if let Some(container) = container.as_object_mut() {
                    container.insert("imagePullPolicy".to_owned(), "Always".into());
                }
            }
        }
        let volumes = spec.get_mut("volumes").and_then(Value::as_array_mut);
        for volume in volumes.into_iter().flatten() {
            if let Some(image) = volume.get_mut("image").and_then(Value::as_object_mut) {
                image.insert("pullPolicy".to_owned(), "Always".into());
            }
        }
        Ok(())
    }

    async fn validate(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|object| !has_no_new_image(attributes, object)) else {
            return Ok(());
        };
        let spec = tree::get(object, "spec");
        let path = Path::new("spec");
        let mut wrong = Vec::new();
        let mut check = |at: Path, policy: &Value| {
            if policy != "Always" {
                wrong.push(Error::not_supported(&at, tree::text(policy), &["Always"]));
            }
        };
        for key in CONTAINERS {
            for (index, container) in tree::list(&spec[key]).iter().enumerate() {
                let at = path.child(key);
                let at = at.index(index);
                let at = at.child("imagePullPolicy");
                check(at, &container["imagePullPolicy"]);
            }
        }
        for (index, volume) in tree::list(&spec["volumes"]).iter().enumerate() {
            if tree::is_set(&volume["image"]) {
                let at = path.child("volumes");
                let at = at.index(index);
                check(
                    at.child("image").child("pullPolicy"),
                    &volume["image"]["pullPolicy"],
                );
            }
        }
        let wrong: Vec<String> = wrong
            .iter()
            .map(|error| attributes.forbidden(&error.to_string()).message)
            .collect();
        match wrong.as_slice() {
            [] => Ok(()),
            _ => {
                let mut status = attributes.forbidden("");
                status.message = wrong.join(", ");
                Err(status)
            }
        }
    }
}

fn images(object: &Object) -> Vec<&Value> {
    let spec = tree::get(object, "spec");
    let containers = CONTAINERS.iter().flat_map(|key| tree::list(&spec[*key]));
    containers.map(|container| &container["image"]).collect()
}

fn has_no_new_image(attributes: &Attributes<'_>, object: &Object) -> bool {
    let Some(old) = attributes
        .old
        .filter(|_| attributes.operation == Operation::Update)
    else {
        return false;
    };
    let known = images(old);
    images(object).iter().all(|image| known.contains(image))
}

#[cfg(test)]
mod tests {
    use machinery::json::json;

    use super::*;
    use crate::testing::{Case, object};

    #[tokio::test]
    async fn every_container_pulls_and_old_pods_are_left_alone() {
        let pod = |image: &str| {
            object(json!({"spec": {
                "initContainers": [{"name": "i", "image": "x", "imagePullPolicy": "Never"}],
                "containers": [{"name": "a", "image": image}],
                "volumes": [{"name": "v", "image": {"reference": "y"}}]}}))
        };
        let mut case = Case::new(Operation::Create, "", "pods").named("team", "web");
        let mut made = pod("app:1");
        AlwaysPullImages
            .validate(&case.attributes(), Some(&made))
            .await
            .unwrap_err();
        AlwaysPullImages
            .mutate(&case.attributes(), &mut made)
            .await
            .unwrap();
        AlwaysPullImages
            .validate(&case.attributes(), Some(&made))
            .await
            .unwrap();
        let spec = tree::get(&made, "spec");
        assert_eq!(spec["initContainers"][0]["imagePullPolicy"], "Always");
        assert_eq!(spec["volumes"][0]["image"]["pullPolicy"], "Always");
        case.operation = Operation::Update;
        case.old = Some(pod("app:1"));
        AlwaysPullImages
            .validate(&case.attributes(), Some(&pod("app:1")))
            .await
            .unwrap();
        AlwaysPullImages
            .validate(&case.attributes(), Some(&pod("app:2")))
            .await
            .unwrap_err();
    }
}
