//! A call to the runtime that pulls an image. It goes on when its pod is deleted, as the pull in the runtime may: only
//! the end of the call tells whether the image came, and by which secret.

use cri::v1;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::{
    core::Core,
    images::{ImageClient, UNRESPONSIVE_AFTER, inspect},
    pull_records::{PullSecret, Pulling},
};

/// What a pull holds until it has ended.
pub(crate) struct PullCall {
    pub pulling: Pulling,
    /// The permit of a limited number of pulls.
    pub _turn: Option<OwnedSemaphorePermit>,
}

/// Why there is no image.
pub(crate) enum Failure {
    /// The runtime could not pull it. The call can be repeated with other credentials.
    Pull(PullCall, tonic::Status),
    /// It was pulled, and the runtime cannot describe it.
    Inspect(String),
    /// The runtime does not answer. The call goes on.
    Unanswered(tonic::Status),
}

impl PullCall {
    /// Pulls the image with the credentials of a secret, and records the secret.
    pub(crate) async fn run(
        self,
        core: &Core,
        request: v1::PullImageRequest,
        secret: Option<PullSecret>,
    ) -> Result<v1::Image, Failure> {
        let (answer, answered) = oneshot::channel();
        let images = core.runtime.client.clone().images;
        let clock = core.config.clock.clone();
        core.context.spawn("pull", async move {
            let spec = request.image.clone().unwrap_or_default();
            let pulled = { images.clone() }.pull_image(request).await;
            let result = match pulled.map(|pulled| pulled.into_inner().image_ref) {
                Ok(image_ref) => {
                    let image = find(images, &spec, &image_ref).await;
                    let id = image.as_ref().map_or(&image_ref, |image| &image.id);
                    if !id.is_empty() {
                        self.pulling.came(id, secret, clock.now());
                    }
                    image.map_err(Failure::Inspect)
                }
                Err(error) => Err(Failure::Pull(self, error)),
            };
            // Without a pod that waits for it, a failed pull is settled here.
            if let Err(Err(Failure::Pull(call, _))) = answer.send(result) {
                call.pulling.failed();
            }
        });
        tokio::select! {
            result = answered => result.unwrap_or_else(|_| {
                Err(Failure::Unanswered(tonic::Status::cancelled("the kubelet is stopping")))
            }),
            // A pull may take any time while the runtime answers other calls.
            () = core.runtime.client.answers.silent_for(UNRESPONSIVE_AFTER) => {
                let status = tonic::Status::deadline_exceeded("the runtime does not answer");
                Err(Failure::Unanswered(status))
            }
        }
    }
}

/// The pulled image. If the runtime has no status of it, the reference that the pull returned is used.
async fn find(
    images: ImageClient,
    spec: &v1::ImageSpec,
    image_ref: &str,
) -> Result<v1::Image, String> {
    let name = &spec.user_specified_image;
    let found = inspect(images, spec).await.map_err(|error| {
        let cause = error.message();
        format!("Failed to inspect image {name:?}: {cause}")
    })?;
    match found {
        Some(image) => Ok(image),
        None if image_ref.is_empty() => Err(format!(
            "Failed to inspect image {name:?}: it is not there after its pull"
        )),
        None => Ok(v1::Image {
            id: image_ref.to_owned(),
            ..Default::default()
        }),
    }
}
