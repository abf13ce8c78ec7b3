//! ImageService.

use std::{pin::Pin, sync::Arc};

use cri::{
    tonic::{Request, Response, Status, async_trait},
    v1::{self, image_service_server::ImageService},
};
use futures::{Stream, stream};

use super::Cri;
use crate::{
    engine::Engine,
    error::{Error, Result as Outcome},
    images::Image,
};

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn describe(image: &Image) -> v1::Image {
    let user = image.config.user.split(':').next().unwrap_or_default();
    let uid = user.parse::<i64>().ok();
    let spec = v1::ImageSpec {
        image: image.id.clone(),
        ..Default::default()
    };
    v1::Image {
        id: image.id.clone(),
        repo_tags: image.tags.iter().cloned().collect(),
        repo_digests: image.digests.iter().cloned().collect(),
        size: image.size,
        uid: uid.map(|value| v1::Int64Value { value }),
        username: if uid.is_none() {
            user.to_owned()
        } else {
            String::new()
        },
        spec: Some(spec),
        pinned: image.pinned,
    }
}

impl Engine {
    fn list_images(&self, filter: Option<v1::ImageFilter>) -> Outcome<Vec<v1::Image>> {
        let wanted = filter
            .and_then(|filter| filter.image)
            .unwrap_or_default()
            .image;
        if wanted.is_empty() {
            return Ok(self.images.list()?.iter().map(describe).collect());
        }
        Ok(self.images.get(&wanted)?.iter().map(describe).collect())
    }
}

fn named(spec: Option<v1::ImageSpec>) -> Outcome<String> {
    let name = spec.unwrap_or_default().image;
    if name.is_empty() {
        Err(Error::Invalid("no image specified".into()))
    } else {
        Ok(name)
    }
}

#[async_trait]
impl ImageService for Cri {
    async fn list_images(
        &self,
        request: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let images = self.0.list_images(request.into_inner().filter)?;
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn stream_images(
        &self,
        request: Request<v1::StreamImagesRequest>,
    ) -> Answer<Streamed<v1::StreamImagesResponse>> {
        let images = self.0.list_images(request.into_inner().filter)?;
        let message = v1::StreamImagesResponse { images };
        Ok(Response::new(Box::pin(stream::iter([Ok(message)]))))
    }

    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let request = request.into_inner();
        let image = self.0.images.get(&named(request.image)?)?;
        let mut info = std::collections::BTreeMap::new();
        if let (true, Some(image)) = (request.verbose, &image) {
            info.insert(
                "info".to_owned(),
                serde_json::json!({ "imageSpec": image.config }).to_string(),
            );
        }
        let image = image.as_ref().map(describe);
        Ok(Response::new(v1::ImageStatusResponse { image, info }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let request = request.into_inner();
        let name = named(request.image)?;
        let engine = self.0.clone();
        let work = async move {
            engine
                .pull_image(&name, request.auth, &Arc::default())
                .await
        };
        let image = self.0.finish(work).await?;
        Ok(Response::new(v1::PullImageResponse {
            image_ref: image.id,
        }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Answer<v1::RemoveImageResponse> {
        let name = named(request.into_inner().image)?;
        let engine = self.0.clone();
        let work = move || engine.images.remove(&name);
        self.0.blocking(work).await??;
        Ok(Response::new(Default::default()))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Answer<v1::ImageFsInfoResponse> {
        let engine = self.0.clone();
        let measure = move || v1::ImageFsInfoResponse {
            image_filesystems: vec![engine.image_filesystem()],
            container_filesystems: vec![engine.container_filesystem()],
        };
        Ok(Response::new(self.0.blocking(measure).await?))
    }
}
