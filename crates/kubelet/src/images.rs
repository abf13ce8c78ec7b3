//! Makes sure that images are present, as the pull policy says.

use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use cri::v1;
use k8s_openapi::{
    ByteString,
    api::core::v1::{Container, ImageVolumeSource, Pod, Secret},
};
use reconcile::Kind;
use volume::Need;

use crate::{
    core::Core,
    make::security::ImageUser,
    pod::{memory::Waiting, spec},
    pull_call::{Failure, PullCall},
    pull_records::{self, PullSecret, Verdict},
};

/// A runtime that answers no call for this long, not even the kubelet's periodic ones, hangs.
pub(crate) const UNRESPONSIVE_AFTER: Duration = cri::REQUEST_TIMEOUT;

/// The runtime's image service.
pub(crate) type ImageClient = v1::image_service_client::ImageServiceClient<cri::Deadline>;

/// An image that is present.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    pub spec: v1::ImageSpec,
    pub user: ImageUser,
}

/// Why an image is not present.
#[derive(Debug, Clone)]
pub(crate) struct NoImage {
    pub waiting: Waiting,
    /// The reason that is shown later, such as ImagePullBackOff.
    pub then: Option<Waiting>,
}

fn refused(reason: &str, message: String) -> NoImage {
    NoImage {
        waiting: Waiting {
            reason: reason.to_owned(),
            message,
        },
        then: None,
    }
}

/// Adds `:latest` to a name without tag and digest.
pub(crate) fn with_tag(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    if last.contains(':') || last.contains('@') {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

/// An image that a container needs: its own, or one that it mounts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequiredImage<'a> {
    pub container: &'a str,
    pub image: Option<&'a str>,
    pub policy: Option<&'a str>,
}

impl<'a> RequiredImage<'a> {
    /// The image that the container runs.
    pub(crate) fn by(container: &'a Container) -> Self {
        Self {
            container: &container.name,
            image: container.image.as_deref(),
            policy: container.image_pull_policy.as_deref(),
        }
    }

    /// The image of a volume that the container mounts.
    pub(crate) fn mounted_by(container: &'a Container, volume: &'a ImageVolumeSource) -> Self {
        Self {
            container: &container.name,
            image: volume.reference.as_deref(),
            policy: volume.pull_policy.as_deref(),
        }
    }

    /// The pull policy, with the default that the API server would set.
    fn policy(&self, image: &str) -> &'static str {
        match self.policy {
            Some("Always") => "Always",
            Some("Never") => "Never",
            Some("IfNotPresent") => "IfNotPresent",
            _ if with_tag(image).ends_with(":latest") => "Always",
            _ => "IfNotPresent",
        }
    }
}

/// Makes sure that an image is present.
pub(crate) async fn ensure(
    core: &Core,
    pod: &Pod,
    wanted: RequiredImage<'_>,
) -> Result<Image, NoImage> {
    let name = wanted.image.unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err(refused(
            "InvalidImageName",
            "the container names no image".into(),
        ));
    }
    let spec = v1::ImageSpec {
        image: with_tag(&name),
        user_specified_image: name.clone(),
        ..Default::default()
    };
    let say = |kind, reason, message: String| {
        core.events
            .container(pod, wanted.container, kind, reason, message);
    };
    let images = core.runtime.client.clone().images;
    let present = inspect(images, &spec).await.map_err(|error| {
        let message = format!("Failed to inspect image {name:?}: {}", error.message());
        say(Kind::Warning, "InspectFailed", message.clone());
        refused("ImageInspectError", message)
    })?;
    let policy = wanted.policy(&name);
    let may_use = match &present {
        Some(image) if policy != "Always" => may_use(core, pod, &spec, image).await,
        _ => false,
    };
    match (policy, present) {
        (_, Some(image)) if may_use => {
            let message = format!(
                "Container image {name:?} already present on machine and can be accessed by the pod"
            );
            say(Kind::Normal, "Pulled", message);
            Ok(found(spec, image))
        }
        // The same message for a present image that the pod may not use: pods cannot find out which images exist.
        ("Never", _) => {
            let message =
                format!("Container image {name:?} is not present with pull policy of Never");
            say(Kind::Warning, "ErrImageNeverPull", message.clone());
            Err(refused("ErrImageNeverPull", message))
        }
        (_, present) => {
            let present = present.map(|image| image.id);
            pull(core, pod, wanted, &name, spec, present).await
        }
    }
}

/// Whether a pod may use a present image without a pull.
async fn may_use(core: &Core, pod: &Pod, spec: &v1::ImageSpec, image: &v1::Image) -> bool {
    let verdict = core.pull_records.verdict(&spec.image, &image.id);
    if let Verdict::With(_) = verdict {
        let credentials = credentials(core, pod, &spec.user_specified_image).await;
        let own: Vec<_> = credentials.into_iter().filter_map(|c| c.secret).collect();
        return verdict.allows(&own);
    }
    verdict == Verdict::Free
}

fn found(spec: v1::ImageSpec, image: v1::Image) -> Image {
    let user = ImageUser {
        uid: image.uid.map(|uid| uid.value),
        name: image.username,
    };
    Image {
        spec: v1::ImageSpec {
            image: image.id,
            ..spec
        },
        user,
    }
}

/// The runtime's status of an image; `None` if it has no such image.
pub(crate) async fn inspect(
    mut images: ImageClient,
    spec: &v1::ImageSpec,
) -> Result<Option<v1::Image>, tonic::Status> {
    let request = v1::ImageStatusRequest {
        image: Some(spec.clone()),
        verbose: false,
    };
    Ok(images.image_status(request).await?.into_inner().image)
}

async fn pull(
    core: &Core,
    pod: &Pod,
    wanted: RequiredImage<'_>,
    name: &str,
    spec: v1::ImageSpec,
    present: Option<String>,
) -> Result<Image, NoImage> {
    let say = |kind, reason, message: String| {
        core.events
            .container(pod, wanted.container, kind, reason, message);
    };
    let asked = Instant::now();
    say(Kind::Normal, "Pulling", format!("Pulling image {name:?}"));
    let pulls = core.pulls.lock().clone();
    let turn = pulls.turn().await;
    let begun = Instant::now();
    let mut last = tonic::Status::unknown(match &turn {
        Ok(_) => "no credentials to try",
        Err(why) => why,
    });
    let credentials = match &turn {
        Ok(_) => credentials(core, pod, name).await,
        Err(_) => Vec::new(),
    };
    // Not before: without a call no image can come.
    let pulling = core
        .pull_records
        .begin(&spec.image, present.as_deref(), core.now())
        .map_err(|error| {
            let why =
                format!("Failed to record image pull intent for container image {name:?}: {error}");
            refused("ErrImagePull", why)
        })?;
    let _turn = turn.unwrap_or_default();
    let mut call = Some(PullCall { pulling, _turn });
    for Credential { auth, secret } in credentials {
        let Some(this) = call.take() else { break };
        let request = v1::PullImageRequest {
            image: Some(spec.clone()),
            auth,
            sandbox_config: None,
        };
        match this.run(core, request, secret).await {
            Ok(image) => {
                core.metrics.lives.pulled(image.size, begun.elapsed());
                let (took, waited) = (rounded(begun.elapsed()), rounded(asked.elapsed()));
                say(
                    Kind::Normal,
                    "Pulled",
                    format!(
                        "Successfully pulled image {name:?} in {took} ({waited} including waiting). \
                         Image size: {} bytes.",
                        image.size
                    ),
                );
                return Ok(found(spec, image));
            }
            Err(Failure::Inspect(message)) => {
                say(Kind::Warning, "InspectFailed", message.clone());
                return Err(refused("ImageInspectError", message));
            }
            Err(Failure::Unanswered(error)) => last = error,
            Err(Failure::Pull(again, error)) => (call, last) = (Some(again), error),
        }
    }
    if let Some(call) = call {
        call.pulling.failed();
    }
    let failed = failed_pull(name, &last);
    say(Kind::Warning, "Failed", failed.waiting.message.clone());
    say(Kind::Warning, "Failed", "Error: ErrImagePull".into());
    Err(failed)
}

/// The waiting reasons after a failed pull: first ErrImagePull, then ImagePullBackOff.
fn failed_pull(name: &str, error: &tonic::Status) -> NoImage {
    let message = format!("Failed to pull image {name:?}: {}", error.message());
    let reason = match error.code() {
        tonic::Code::InvalidArgument => "InvalidImageName",
        _ => "ErrImagePull",
    };
    let then = Waiting {
        reason: "ImagePullBackOff".into(),
        message: format!("Back-off pulling image {name:?}: ErrImagePull: {message}"),
    };
    NoImage {
        waiting: Waiting {
            reason: reason.into(),
            message,
        },
        then: Some(then),
    }
}

fn rounded(duration: Duration) -> String {
    match duration.as_millis() {
        millis @ 0..1000 => format!("{millis}ms"),
        millis => format!("{:.3}s", millis as f64 / 1000.0),
    }
}

/// Credentials for a pull.
#[derive(Default)]
struct Credential {
    auth: Option<v1::AuthConfig>,
    /// The secret that contains the credentials.
    secret: Option<PullSecret>,
}

/// The credentials to try, in order; one empty credential if no secret matches.
async fn credentials(core: &Core, pod: &Pod, image: &str) -> Vec<Credential> {
    let names: Vec<String> = spec::spec(pod)
        .image_pull_secrets
        .iter()
        .flatten()
        .map(|reference| reference.name.clone())
        .filter(|name| !name.is_empty())
        .collect();
    let needs: Vec<Need> = names
        .iter()
        .map(|name| Need::Secret {
            name: name.clone(),
            optional: true,
        })
        .collect();
    let gathered = core
        .sources
        .gather(pod, &needs, core.now())
        .await
        .unwrap_or_default();
    let secrets = gathered.objects.secrets;
    let missing: Vec<&str> = names
        .iter()
        .filter(|n| !secrets.contains_key(*n))
        .map(String::as_str)
        .collect();
    if !missing.is_empty() {
        core.events.warning(
            pod,
            "FailedToRetrieveImagePullSecret",
            format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            ),
        );
    }
    let mut found: Vec<Credential> = secrets
        .values()
        .flat_map(|secret| {
            let fitting = matching(secret, image).into_iter();
            fitting.map(move |auth| Credential {
                secret: Some(pull_secret(secret, &auth)),
                auth: Some(auth),
            })
        })
        .collect();
    if found.is_empty() {
        found.push(Credential::default());
    }
    found
}

fn pull_secret(secret: &Secret, auth: &v1::AuthConfig) -> PullSecret {
    let meta = secret.metadata.clone();
    PullSecret {
        uid: meta.uid.unwrap_or_default(),
        namespace: meta.namespace.unwrap_or_default(),
        name: meta.name.unwrap_or_default(),
        credential_hash: pull_records::credential_hash(auth),
    }
}

/// The credentials of one secret for an image's registry.
fn matching(secret: &Secret, image: &str) -> Vec<v1::AuthConfig> {
    let data = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let parsed = match (data(".dockerconfigjson"), data(".dockercfg")) {
        (Some(ByteString(bytes)), _) => {
            serde_json::from_slice::<serde_json::Value>(bytes).map(|config| config["auths"].clone())
        }
        (_, Some(ByteString(bytes))) => serde_json::from_slice(bytes),
        _ => return vec![],
    };
    let Ok(serde_json::Value::Object(auths)) = parsed else {
        return vec![];
    };
    let registry = registry_of(image);
    let mut fitting: Vec<(String, v1::AuthConfig)> = auths
        .into_iter()
        .filter(|(server, _)| fits(server, registry, image))
        .map(|(server, auth)| (server.clone(), auth_config(&server, &auth)))
        .collect();
    // The most specific entry first.
    fitting.sort_by_key(|(server, _)| std::cmp::Reverse(server.len()));
    fitting.into_iter().map(|(_, auth)| auth).collect()
}

fn registry_of(image: &str) -> &str {
    match image.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => "docker.io",
    }
}

fn fits(server: &str, registry: &str, image: &str) -> bool {
    let server = server
        .trim_start_matches("https://")
        .trim_start_matches("http://");
    let server = server
        .trim_end_matches('/')
        .trim_end_matches("/v1")
        .trim_end_matches("/v2");
    let (host, path) = server.split_once('/').unwrap_or((server, ""));
    let host = if host == "index.docker.io" {
        "docker.io"
    } else {
        host
    };
    let same_host = host == registry
        || host.strip_prefix("*.").is_some_and(|tail| {
            registry
                .split_once('.')
                .is_some_and(|(_, rest)| rest == tail)
        });
    same_host && (path.is_empty() || image.starts_with(&format!("{registry}/{path}")))
}

fn auth_config(server: &str, auth: &serde_json::Value) -> v1::AuthConfig {
    let text = |key: &str| auth[key].as_str().unwrap_or_default().to_owned();
    let decoded = BASE64
        .decode(text("auth"))
        .ok()
        .and_then(|b| String::from_utf8(b).ok());
    let pair = decoded.as_deref().and_then(|pair| pair.split_once(':'));
    let (user, password) = pair.unwrap_or_default();
    let or = |own: String, other: &str| {
        if own.is_empty() {
            other.to_owned()
        } else {
            own
        }
    };
    v1::AuthConfig {
        username: or(text("username"), user),
        password: or(text("password"), password),
        identity_token: text("identitytoken"),
        registry_token: text("registrytoken"),
        server_address: server.to_owned(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_tag_means_latest() {
        let cases = [
            ("nginx", "nginx:latest"),
            ("nginx:1", "nginx:1"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("a@sha256:0", "a@sha256:0"),
        ];
        for (name, expected) in cases {
            assert_eq!(with_tag(name), expected);
        }
    }

    #[test]
    fn credentials_fit_their_registry_only() {
        let config = serde_json::json!({"auths": {
            "registry.example:5000": {"auth": BASE64.encode("ada:pw")},
            "https://index.docker.io/v1/": {"username": "u", "password": "p"},
            "*.corp.example": {"auth": BASE64.encode("c:d")}}});
        let secret: Secret = serde_json::from_value(serde_json::json!({"data":
            {".dockerconfigjson": BASE64.encode(config.to_string())}}))
        .unwrap();
        let user = |image: &str| {
            matching(&secret, image)
                .first()
                .map(|auth| auth.username.clone())
        };
        assert_eq!(user("registry.example:5000/x/y:1").as_deref(), Some("ada"));
        assert_eq!(user("library/nginx").as_deref(), Some("u"));
        assert_eq!(user("eu.corp.example/z").as_deref(), Some("c"));
        assert_eq!(user("other.example/z"), None);
    }
}
