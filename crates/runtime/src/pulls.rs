//! Pulls that CRI clients requested, with log messages.

use std::{sync::Arc, time::Instant};

use cri::v1;

use crate::{
    engine::Engine,
    error::{Error, Result},
    images::{HELLO, Image, LOCAL_REGISTRY, Progress, Reference},
};

impl Engine {
    /// Pulls an image, or finds a local one.
    pub(crate) async fn pull_image(
        &self,
        name: &str,
        auth: Option<v1::AuthConfig>,
        progress: &Arc<Progress>,
    ) -> Result<Image> {
        let reference = Reference::parse(name)?;
        if reference.registry == LOCAL_REGISTRY {
            return self.find_local(name, &reference).await;
        }
        let credentials = auth.map(Into::into).unwrap_or_default();
        let begun = Instant::now();
        tracing::info!(image = %reference, "pulling image");
        let pull = self
            .images
            .pull(&reference, &self.config.registries, &credentials, progress);
        let stopping = self.token();
        let pulled = tokio::select! {
            pulled = pull => pulled,
            // A registry may take minutes. Partial blobs are kept, and the next pull resumes them.
            () = stopping.cancelled() => Err(Error::Registry("the runtime is stopping".into())),
        };
        let seconds = begun.elapsed().as_secs_f64();
        match &pulled {
            Ok(image) => {
                let layers = image.layers.len();
                tracing::info!(image = %reference, layers, bytes = image.size, seconds, "image pulled");
            }
            Err(error) => tracing::warn!(image = %reference, %error, seconds, "cannot pull image"),
        }
        pulled
    }

    /// A locally built image; the built-in one is built again if it was removed.
    async fn find_local(&self, name: &str, reference: &Reference) -> Result<Image> {
        let known = self.images.get(name)?;
        match (known, &self.config.hello_program) {
            (Some(image), _) => Ok(image),
            (None, Some(program)) if reference.to_string() == HELLO => {
                let (images, program) = (self.images.clone(), program.clone());
                self.blocking(move || images.ensure_hello(&program)).await?
            }
            (None, _) => self.images.need(name),
        }
    }
}
