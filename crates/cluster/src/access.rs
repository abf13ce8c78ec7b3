//! Optional authentication, authorization and encryption: configuration files and webhooks that flags name.

use std::time::Duration;

use apiserver::{
    AccessOptions, Encryption,
    authn::TokenWebhook,
    authz::{self, AccessWebhook},
};

use jiff::SignedDuration;

use crate::{Error, options::Options, settings::Settings};

/// The default API version of TokenReviews and SubjectAccessReviews that webhooks receive, as upstream.
const REVIEW_VERSION: &str = "v1beta1";

/// The authentication and authorization options from the flags.
pub(crate) fn options(options: &Options) -> Result<AccessOptions, Error> {
    let version = |given: &Option<String>| {
        let given = given.as_deref().unwrap_or(REVIEW_VERSION);
        given.to_owned()
    };
    let token_webhook = match &options.authentication_token_webhook_config_file {
        None => None,
        Some(file) => Some(TokenWebhook {
            config_file: file.clone(),
            version: version(&options.authentication_token_webhook_version),
            cache_ttl: time(
                "authentication-token-webhook-cache-ttl",
                options.authentication_token_webhook_cache_ttl.as_deref(),
                "2m",
            )?,
        }),
    };
    let webhook = match &options.authorization_webhook_config_file {
        None => None,
        Some(file) => Some(AccessWebhook {
            config_file: file.clone(),
            version: version(&options.authorization_webhook_version),
            authorized_ttl: time(
                "authorization-webhook-cache-authorized-ttl",
                options
                    .authorization_webhook_cache_authorized_ttl
                    .as_deref(),
                "5m",
            )?,
            unauthorized_ttl: time(
                "authorization-webhook-cache-unauthorized-ttl",
                options
                    .authorization_webhook_cache_unauthorized_ttl
                    .as_deref(),
                "30s",
            )?,
        }),
    };
    Ok(AccessOptions {
        authentication_config: options.authentication_config.clone(),
        token_webhook,
        authorization: authz::Options {
            config: options.authorization_config.clone(),
            webhook,
        },
    })
}

/// Reads the configuration of encryption at rest, if there is one.
pub(crate) fn encryption(settings: &Settings) -> Result<Option<Encryption>, Error> {
    let file = settings.encryption_provider_config.as_deref();
    file.map(Encryption::load)
        .transpose()
        .map_err(|why| Error::Option("encryption-provider-config", why))
}

fn time(flag: &'static str, given: Option<&str>, otherwise: &str) -> Result<Duration, Error> {
    let text = given.unwrap_or(otherwise);
    let parsed: Option<SignedDuration> = text.parse().ok();
    let parsed = parsed.and_then(|time| Duration::try_from(time).ok());
    parsed.ok_or_else(|| Error::Option(flag, format!("{text:?} is not a duration such as 30s")))
}
