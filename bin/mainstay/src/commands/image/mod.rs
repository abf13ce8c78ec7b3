//! `mainstay image`: the images of a running node.

mod files;
mod pull;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use cluster::Options;
use cri::v1::{
    Image as CriImage, ImageSpec, ImageStatusRequest, ListImagesRequest, RemoveImageRequest,
};
use nix::{
    errno::Errno,
    unistd::{AccessFlags, access},
};

use crate::cli::{Image, ImageStore};

/// Runs one of the image commands against the node's runtime.
pub(super) fn run(image: Image) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match image {
        Image::Pull {
            image,
            username,
            store,
            ..
        } => runtime.block_on(pull::pull(&socket(&store)?, image, username)),
        Image::Import { file, store } => runtime.block_on(files::import(&socket(&store)?, &file)),
        Image::Export { image, file, store } => {
            runtime.block_on(files::export(&socket(&store)?, image, &file))
        }
        Image::List { store } => runtime.block_on(list(&socket(&store)?)),
        Image::Remove { images, store } => runtime.block_on(remove(&socket(&store)?, images)),
    }
}

/// The runtime's socket of the cluster in this data directory.
fn socket(store: &ImageStore) -> Result<PathBuf> {
    let options = Options {
        data_dir: store.data_dir.clone(),
        ..Options::default()
    };
    let data_dir = cluster::settings::data_dir(&options)?;
    let socket = cluster::settings::state_dir(&cluster::settings::id(&data_dir)).join("cri.sock");
    match access(&socket, AccessFlags::W_OK) {
        Ok(()) => Ok(socket),
        Err(error) => Err(unusable(error, &socket, &data_dir)),
    }
}

/// Why the runtime's socket cannot be used.
fn unusable(error: Errno, socket: &Path, data_dir: &Path) -> anyhow::Error {
    match error {
        Errno::ENOENT => anyhow::anyhow!(
            "no cluster is running with the data directory {}; start one with `mainstay up`, or give another --data-dir",
            data_dir.display()
        ),
        error => {
            anyhow::Error::new(error).context(format!("cannot connect to {}", socket.display()))
        }
    }
}

async fn list(socket: &Path) -> Result<()> {
    let mut client = cri::connect(socket);
    let answer = client
        .images
        .list_images(ListImagesRequest { filter: None })
        .await
        .map_err(runtime_error)?;
    let mut rows: Vec<[String; 3]> = answer.into_inner().images.iter().flat_map(rows).collect();
    rows.sort();
    rows.insert(0, ["IMAGE", "ID", "SIZE"].map(str::to_owned));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (name, id) = (width(0), width(1));
    for row in &rows {
        println!("{:<name$}   {:<id$}   {}", row[0], row[1], row[2]);
    }
    Ok(())
}

fn rows(image: &CriImage) -> Vec<[String; 3]> {
    let id: String = image
        .id
        .trim_start_matches("sha256:")
        .chars()
        .take(12)
        .collect();
    let size = format!("{:.1} MB", image.size as f64 / 1e6);
    let names = if image.repo_tags.is_empty() {
        &image.repo_digests
    } else {
        &image.repo_tags
    };
    let names = if names.is_empty() {
        vec!["<none>".to_owned()]
    } else {
        names.clone()
    };
    names
        .into_iter()
        .map(|name| [name, id.clone(), size.clone()])
        .collect()
}

async fn remove(socket: &Path, images: Vec<String>) -> Result<()> {
    let mut client = cri::connect(socket);
    for image in images {
        let spec = Some(ImageSpec {
            image: image.clone(),
            ..ImageSpec::default()
        });
        let known = ImageStatusRequest {
            image: spec.clone(),
            verbose: false,
        };
        let known = client
            .images
            .image_status(known)
            .await
            .map_err(runtime_error)?;
        if known.into_inner().image.is_none() {
            bail!("no image {image:?} on this node; `mainstay image list` shows its images");
        }
        let request = RemoveImageRequest { image: spec };
        client
            .images
            .remove_image(request)
            .await
            .map_err(runtime_error)?;
        println!("removed {image}");
    }
    Ok(())
}

/// The runtime's message, without gRPC's words.
fn runtime_error(status: cri::tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("{}", status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_without_permission_is_no_stopped_cluster() {
        let text = |error| unusable(error, Path::new("/run/s"), Path::new("/data")).to_string();
        assert!(text(Errno::ENOENT).starts_with("no cluster is running"));
        assert_eq!(text(Errno::EACCES), "cannot connect to /run/s");
    }
}
