//! Garbage: dead containers beyond the last one of each name, and images when the disk fills up.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use cri::v1;
use tracing::{info, warn};

use crate::{Result, core::Core, make::labels, node::machine};

const INTERVAL: Duration = Duration::from_secs(60);
/// Images are removed above the first and down to the second share of the disk, in percent.
const HIGH: i64 = 85;
const LOW: i64 = 80;

/// Collects for ever.
pub async fn run(core: Arc<Core>) {
    loop {
        core.config.clock.sleep(INTERVAL).await;
        if let Err(error) = containers(&core).await {
            warn!(%error, "cannot collect containers");
        }
        if let Err(error) = images(&core).await {
            warn!(%error, "cannot collect images");
        }
    }
}

/// Of each container the newest dead one stays, for its logs and its end; for a pod's users the one
/// before a running one, too.
async fn containers(core: &Core) -> Result<()> {
    let listed = core.runtime.list_containers(BTreeMap::new()).await?;
    for id in superfluous(&listed) {
        core.runtime.remove_container(&id).await?;
    }
    Ok(())
}

/// Ended containers that have a newer ended one of the same name.
fn superfluous(listed: &[v1::Container]) -> Vec<String> {
    let mut ended: Vec<&v1::Container> = listed
        .iter()
        .filter(|c| c.state() == v1::ContainerState::ContainerExited)
        .filter(|c| c.labels.contains_key(labels::POD_UID))
        .collect();
    ended.sort_by_key(|container| std::cmp::Reverse(container.created_at));
    let mut seen = HashSet::new();
    let key = |c: &v1::Container| {
        (
            c.labels.get(labels::POD_UID).cloned(),
            c.labels.get(labels::CONTAINER_NAME).cloned(),
        )
    };
    ended
        .into_iter()
        .filter(|c| !seen.insert(key(c)))
        .map(|c| c.id.clone())
        .collect()
}

async fn images(core: &Core) -> Result<()> {
    let (size, free) = machine::storage(&core.config.root_dir);
    let used = size - free;
    if size == 0 || used * 100 / size < HIGH {
        return Ok(());
    }
    let mut images = core.runtime.client.clone().images;
    let request = v1::ListImagesRequest { filter: None };
    let listed = images.list_images(request).await?.into_inner().images;
    let containers = core.runtime.list_containers(BTreeMap::new()).await?;
    let mut to_free = used - size * LOW / 100;
    for image in unused(&listed, &containers) {
        if to_free <= 0 {
            break;
        }
        info!(
            image = image.id,
            size = image.size,
            "removes image: the disk is full"
        );
        let spec = v1::ImageSpec {
            image: image.id.clone(),
            ..Default::default()
        };
        images
            .remove_image(v1::RemoveImageRequest { image: Some(spec) })
            .await?;
        to_free -= i64::try_from(image.size).unwrap_or(0);
    }
    Ok(())
}

/// Images that no container uses and nobody pinned, the largest first.
fn unused<'a>(images: &'a [v1::Image], containers: &[v1::Container]) -> Vec<&'a v1::Image> {
    let used: HashSet<&str> = containers
        .iter()
        .flat_map(|c| [c.image_id.as_str(), c.image_ref.as_str()])
        .chain(
            containers
                .iter()
                .filter_map(|c| c.image.as_ref().map(|i| i.image.as_str())),
        )
        .collect();
    let is_used = |image: &v1::Image| {
        used.contains(image.id.as_str())
            || image
                .repo_tags
                .iter()
                .any(|tag| used.contains(tag.as_str()))
            || image
                .repo_digests
                .iter()
                .any(|digest| used.contains(digest.as_str()))
    };
    let mut free: Vec<_> = images.iter().filter(|i| !i.pinned && !is_used(i)).collect();
    free.sort_by_key(|image| std::cmp::Reverse(image.size));
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(id: &str, name: &str, created_at: i64, ended: bool) -> v1::Container {
        let state = if ended {
            v1::ContainerState::ContainerExited
        } else {
            v1::ContainerState::ContainerRunning
        };
        v1::Container {
            id: id.into(),
            created_at,
            state: state as i32,
            image_id: "used".into(),
            labels: [(labels::POD_UID, "u"), (labels::CONTAINER_NAME, name)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        }
    }

    #[test]
    fn only_older_dead_containers_go() {
        let listed = [
            container("run", "a", 4, false),
            container("last", "a", 3, true),
            container("old", "a", 2, true),
            container("other", "b", 1, true),
        ];
        assert_eq!(superfluous(&listed), ["old"]);
    }

    #[test]
    fn used_and_pinned_images_stay() {
        let image = |id: &str, size, pinned| v1::Image {
            id: id.into(),
            size,
            pinned,
            ..Default::default()
        };
        let images = [
            image("used", 9, false),
            image("small", 1, false),
            image("big", 5, false),
            image("pinned", 7, true),
        ];
        let found: Vec<_> = unused(&images, &[container("c", "a", 1, false)])
            .iter()
            .map(|i| i.id.as_str())
            .collect();
        assert_eq!(found, ["big", "small"]);
    }
}
