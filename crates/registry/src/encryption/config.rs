//! The `EncryptionConfiguration` in the file of `--encryption-provider-config`: which keys encrypt and decrypt which
//! resources.

use std::collections::BTreeSet;

use base64::{Engine, prelude::BASE64_STANDARD};
use machinery::Value;
use machinery::field::{Error, Errors, Path};
use serde::Deserialize;

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const AES_KEYS: &[usize] = &[16, 24, 32];
const SECRETBOX_KEYS: &[usize] = &[32];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct EncryptionConfiguration {
    api_version: String,
    kind: String,
    pub(super) resources: Vec<ResourceConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ResourceConfiguration {
    pub(super) resources: Vec<String>,
    pub(super) providers: Vec<ProviderConfiguration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ProviderConfiguration {
    pub(super) aesgcm: Option<Keys>,
    pub(super) aescbc: Option<Keys>,
    pub(super) secretbox: Option<Keys>,
    pub(super) identity: Option<Empty>,
    kms: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Keys {
    pub(super) keys: Vec<Key>,
}

/// A named key. `Debug` omits the secret.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Key {
    pub(super) name: String,
    secret: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {:?}", self.name)
    }
}

impl Key {
    pub(super) fn secret(&self) -> Option<Vec<u8>> {
        BASE64_STANDARD.decode(&self.secret).ok()
    }
}

impl EncryptionConfiguration {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        // The parser's error messages quote the file, which contains secrets.
        let config: Self = machinery::yaml::from_str(text)
            .map_err(|_| "not a valid EncryptionConfiguration".to_owned())?;
        if config.kind != "EncryptionConfiguration" || config.api_version != API_VERSION {
            return Err(format!(
                "expected an EncryptionConfiguration of {API_VERSION}, not a {:?} of {:?}",
                config.kind, config.api_version
            ));
        }
        let errors = config.validate();
        match errors.is_empty() {
            true => Ok(config),
            false => Err(machinery::field::aggregate(&errors)),
        }
    }

    fn validate(&self) -> Errors {
        let (mut errors, root) = (Errors::new(), Path::new("resources"));
        if self.resources.is_empty() {
            errors.push(Error::required(&root, "at least one resources is required"));
        }
        for (i, one) in self.resources.iter().enumerate() {
            let path = root.index(i);
            check_resources(&one.resources, &path.child("resources"), &mut errors);
            let path = path.child("providers");
            if one.providers.is_empty() {
                let why = format!("at least one {path} is required");
                errors.push(Error::required(&path, why));
            }
            for (j, provider) in one.providers.iter().enumerate() {
                provider.validate(&path.index(j), &mut errors);
            }
        }
        errors
    }
}

/// Splits a name such as `deployments.apps` into resource and group.
pub(super) fn split(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

fn check_resources(resources: &[String], path: &Path, errors: &mut Errors) {
    if resources.is_empty() {
        let why = format!("at least one {path} is required");
        return errors.push(Error::required(path, why));
    }
    let shown = || resources.iter().map(String::as_str).collect::<Value>();
    let names: Vec<_> = resources.iter().map(|name| split(name)).collect();
    if names.iter().collect::<BTreeSet<_>>().len() < names.len() {
        let why = "the same resource cannot be specified multiple times";
        errors.push(Error::invalid(path, shown(), why));
    }
    let overlaps = |(i, one): (usize, &(&str, &str))| {
        let mut others = names.iter().enumerate().filter(|(j, _)| *j != i);
        *one == ("*", "*") && names.len() > 1
            || one.0 == "*" && others.any(|(_, other)| other.1 == one.1 && other != one)
    };
    if names.iter().enumerate().any(overlaps) {
        let why = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked";
        errors.push(Error::invalid(path, shown(), why));
    }
    for (i, name) in resources.iter().enumerate() {
        let why = match split(name) {
            _ if name.chars().any(char::is_uppercase) => {
                "resource name should not contain capital letters"
            }
            _ if name == "*" => {
                "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
            }
            (_, "events.k8s.io") => {
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file"
            }
            (_, "extensions") => {
                "'extensions' group has been removed and cannot be used for encryption"
            }
            (resource, "*") if resource != "*" => {
                "encrypting the same resource across groups is not supported"
            }
            _ => continue,
        };
        errors.push(Error::invalid(&path.index(i), name.as_str(), why));
    }
}

impl ProviderConfiguration {
    fn validate(&self, path: &Path, errors: &mut Errors) {
        let given = [
            self.aesgcm.is_some(),
            self.aescbc.is_some(),
            self.secretbox.is_some(),
            self.identity.is_some(),
            self.kms.is_some(),
        ];
        match given.iter().filter(|given| **given).count() {
            0 => {
                let why = "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity";
                errors.push(Error::invalid(path, Value::Null, why));
            }
            1 => {}
            _ => {
                let why = "more than one provider specified in a single element, should split into different list elements";
                errors.push(Error::invalid(path, Value::Null, why));
            }
        }
        if self.kms.is_some() {
            let why = "KMS providers are not supported";
            errors.push(Error::forbidden(&path.child("kms"), why));
        }
        for (name, keys, lengths) in [
            ("aesgcm", &self.aesgcm, AES_KEYS),
            ("aescbc", &self.aescbc, AES_KEYS),
            ("secretbox", &self.secretbox, SECRETBOX_KEYS),
        ] {
            if let Some(keys) = keys {
                let path = path.child(name);
                keys.validate(lengths, &path.child("keys"), errors);
            }
        }
    }
}

impl Keys {
    fn validate(&self, lengths: &[usize], path: &Path, errors: &mut Errors) {
        if self.keys.is_empty() {
            errors.push(Error::required(path, "at least one keys is required"));
        }
        for (i, key) in self.keys.iter().enumerate() {
            let path = path.index(i);
            if key.name.is_empty() {
                let why = "name is a mandatory field for a key";
                errors.push(Error::required(&path.child("name"), why));
            }
            let at = path.child("secret");
            match (key.secret.as_str(), key.secret()) {
                ("", _) => {
                    errors.push(Error::required(
                        &at,
                        "secret is a mandatory field for a key",
                    ));
                }
                (_, None) => {
                    let why = "secrets must be base64 encoded";
                    errors.push(Error::invalid(&at, "REDACTED", why));
                }
                (_, Some(secret)) if !lengths.contains(&secret.len()) => {
                    let lengths = lengths.iter().map(usize::to_string);
                    let why = format!(
                        "secret is not of the expected length, got {}, expected one of [{}]",
                        secret.len(),
                        lengths.collect::<Vec<_>>().join(" ")
                    );
                    errors.push(Error::invalid(&at, "REDACTED", why));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(resources: &str, providers: &str) -> String {
        let text = format!(
            "apiVersion: {API_VERSION}\nkind: EncryptionConfiguration\nresources:\n- resources: {resources}\n  providers: {providers}\n"
        );
        EncryptionConfiguration::read(&text)
            .err()
            .unwrap_or_default()
    }

    #[test]
    fn resources_providers_and_keys_have_their_forms() {
        let key = BASE64_STANDARD.encode([7; 32]);
        let good =
            format!("[{{aescbc: {{keys: [{{name: a, secret: {key}}}]}}}}, {{identity: {{}}}}]");
        assert_eq!(refused("[secrets, configmaps]", &good), "");
        assert_eq!(refused("['*.*']", &good), "");
        for (resources, providers, why) in [
            (
                "[]",
                good.as_str(),
                "resources[0].resources: Required value",
            ),
            (
                "[secrets, secrets]",
                &good,
                "cannot be specified multiple times",
            ),
            ("[secrets, '*.']", &good, "using overlapping resources"),
            ("[Secrets]", &good, "capital letters"),
            ("['*']", &good, "use '*.' to encrypt"),
            ("['pods.*']", &good, "across groups"),
            ("[secrets]", "[]", "resources[0].providers: Required value"),
            (
                "[secrets]",
                "[{}]",
                "does not contain any of the expected providers",
            ),
            (
                "[secrets]",
                "[{kms: {name: a}}]",
                "KMS providers are not supported",
            ),
            (
                "[secrets]",
                "[{aesgcm: {keys: [{name: a, secret: YQ==}]}}]",
                "secret is not of the expected length, got 1, expected one of [16 24 32]",
            ),
            (
                "[secrets]",
                "[{secretbox: {keys: [{name: a, secret: '-'}]}}]",
                "secrets must be base64 encoded",
            ),
        ] {
            let found = refused(resources, providers);
            assert!(found.contains(why), "{found}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_not_quoted() {
        let found = refused(
            "[secrets]",
            "[{aescbc: {keys: [{nom: a, secret: hunter2}]}}]",
        );
        assert!(!found.is_empty() && !found.contains("hunter2"), "{found}");
    }
}
