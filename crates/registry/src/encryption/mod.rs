//! Encryption at rest: values of the resources in an `EncryptionConfiguration` are encrypted on disk. Objects in memory
//! are not. The first provider encrypts; all providers can decrypt.

mod ciphers;
mod config;

use std::{borrow::Cow, path::Path};

use bytes::Bytes;
use parking_lot::Mutex;
use rand::{RngCore, SeedableRng, rngs::StdRng};

use ciphers::Cipher;
use config::{EncryptionConfiguration, Keys, ProviderConfiguration, split};

/// The prefix of every encrypted value.
const ENCRYPTED: &[u8] = b"k8s:enc:";
const ROOT: &str = "/registry/";

/// Encrypts and decrypts values as the configuration says.
pub struct Encryption {
    rules: Vec<Rule>,
    /// Generates nonces; seeded by the operating system at startup.
    random: Mutex<StdRng>,
}

struct Rule {
    /// Plural and group; each may be `*`.
    resources: Vec<(String, String)>,
    providers: Vec<Provider>,
}

enum Provider {
    Identity,
    /// Keys, each with the prefix of its values. The first key encrypts.
    Keys(Vec<(Vec<u8>, Cipher)>),
}

impl std::fmt::Debug for Encryption {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Encryption")
    }
}

impl Encryption {
    /// Reads and validates the file.
    pub fn load(path: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        Self::parse(&text).map_err(failed)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config = EncryptionConfiguration::read(text)?;
        let rules = config.resources.iter().map(|one| {
            let names = one.resources.iter().map(|name| split(name));
            let providers = one.providers.iter().map(Provider::new);
            Ok(Rule {
                resources: names
                    .map(|(plural, group)| (plural.to_owned(), group.to_owned()))
                    .collect(),
                providers: providers.collect::<Result<_, String>>()?,
            })
        });
        let random = StdRng::try_from_os_rng().map_err(|error| error.to_string())?;
        Ok(Self {
            rules: rules.collect::<Result<_, String>>()?,
            random: Mutex::new(random),
        })
    }

    /// The providers for a key of the store; `None` if no rule matches its resource.
    fn providers(&self, key: &[u8]) -> Option<&[Provider]> {
        let key = std::str::from_utf8(key).ok()?;
        let mut parts = key.strip_prefix(ROOT)?.splitn(3, '/');
        let (group, plural) = (parts.next()?, parts.next()?);
        let group = if group == "core" { "" } else { group };
        let is_meant =
            |(p, g): &(String, String)| (g == "*" || g == group) && (p == "*" || p == plural);
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.resources.iter().any(is_meant))?;
        Some(&rule.providers)
    }

    /// The bytes to write to disk: encrypted, or unchanged if the resource is not encrypted.
    pub fn seal<'a>(&self, key: &[u8], value: &'a Bytes) -> Cow<'a, Bytes> {
        let first = self.providers(key).and_then(<[_]>::first);
        let Some(Provider::Keys(keys)) = first else {
            return Cow::Borrowed(value);
        };
        let Some((prefix, cipher)) = keys.first() else {
            return Cow::Borrowed(value);
        };
        let mut out = prefix.clone();
        let random = |nonce: &mut [u8]| self.random.lock().fill_bytes(nonce);
        cipher
            .seal(&mut out, key, value, random)
            // Ciphers only fail for messages of gigabytes; requests are much smaller.
            .expect("a value is smaller than what a cipher can encrypt");
        Cow::Owned(out.into())
    }

    /// Decrypts a value from disk.
    pub fn open(&self, key: &[u8], stored: Bytes) -> Result<Bytes, String> {
        let Some(providers) = self.providers(key) else {
            return plain(stored);
        };
        let mut why = "no matching prefix found".to_owned();
        for provider in providers {
            match provider {
                Provider::Identity if stored.starts_with(ENCRYPTED) => {}
                Provider::Identity => return Ok(stored),
                Provider::Keys(keys) => {
                    for (prefix, cipher) in keys {
                        let Some(sealed) = stored.strip_prefix(prefix.as_slice()) else {
                            continue;
                        };
                        match cipher.open(key, sealed) {
                            Ok(value) => return Ok(value.into()),
                            Err(error) => why = error,
                        }
                    }
                }
            }
        }
        Err(why)
    }
}

/// Checks that a value of a resource without providers is not encrypted.
pub(crate) fn plain(stored: Bytes) -> Result<Bytes, String> {
    match stored.starts_with(ENCRYPTED) {
        true => {
            Err("the value is encrypted, but its resource has no encryption provider".to_owned())
        }
        false => Ok(stored),
    }
}

impl Provider {
    fn new(config: &ProviderConfiguration) -> Result<Self, String> {
        let of = |keys: &Keys, name: &str, cipher: fn(&[u8]) -> Option<Cipher>| {
            let keys = keys.keys.iter().map(|key| {
                let prefix = format!("k8s:enc:{name}:v1:{}:", key.name);
                let cipher = key.secret().and_then(|secret| cipher(&secret));
                let cipher =
                    cipher.ok_or_else(|| format!("{key:?} is not a valid key for {name}"))?;
                Ok((prefix.into_bytes(), cipher))
            });
            keys.collect::<Result<Vec<_>, String>>().map(Provider::Keys)
        };
        match config {
            ProviderConfiguration {
                aesgcm: Some(keys), ..
            } => of(keys, "aesgcm", Cipher::gcm),
            ProviderConfiguration {
                aescbc: Some(keys), ..
            } => of(keys, "aescbc", Cipher::cbc),
            ProviderConfiguration {
                secretbox: Some(keys),
                ..
            } => of(keys, "secretbox", Cipher::secretbox),
            _ => Ok(Self::Identity),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::{Engine, prelude::BASE64_STANDARD};

    fn encryption(providers: &str) -> Encryption {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets, '*.example.com']\n  providers: [{providers}]\n"
        );
        Encryption::parse(&text).unwrap()
    }

    fn keys(kind: &str, names: &[(&str, u8)]) -> String {
        let keys = names.iter().map(|(name, byte)| {
            let secret = BASE64_STANDARD.encode([*byte; 32]);
            format!("{{name: {name}, secret: '{secret}'}}")
        });
        format!(
            "{{{kind}: {{keys: [{}]}}}}",
            keys.collect::<Vec<_>>().join(", ")
        )
    }

    const SECRET: &[u8] = b"/registry/core/secrets/default/a";

    #[test]
    fn only_the_resources_of_the_file_are_encrypted() {
        let one = encryption(&keys("aesgcm", &[("a", 1)]));
        let value = Bytes::from_static(b"{\"data\":1}");
        for (key, is_encrypted) in [
            (SECRET, true),
            (b"/registry/example.com/things/a".as_slice(), true),
            (b"/registry/core/configmaps/default/a", false),
            (b"/registry/apps/secrets/default/a", false),
            (b"/other", false),
        ] {
            let sealed = one.seal(key, &value).into_owned();
            assert_eq!(sealed.starts_with(b"k8s:enc:aesgcm:v1:a:"), is_encrypted);
            assert_eq!(one.open(key, sealed).unwrap(), value);
        }
        assert_ne!(
            one.seal(SECRET, &value),
            one.seal(SECRET, &value),
            "nonces differ"
        );
    }

    #[test]
    fn keys_and_providers_can_be_changed() {
        let value = Bytes::from_static(b"{}");
        let old = encryption(&keys("aescbc", &[("a", 1)]));
        let sealed = old.seal(SECRET, &value).into_owned();
        let both = encryption(&keys("aescbc", &[("b", 2), ("a", 1)]));
        assert_eq!(both.open(SECRET, sealed.clone()).unwrap(), value);
        assert!(
            both.seal(SECRET, &value)
                .starts_with(b"k8s:enc:aescbc:v1:b:")
        );
        let other = [keys("secretbox", &[("s", 3)]), keys("aescbc", &[("a", 1)])].join(", ");
        assert_eq!(
            encryption(&other).open(SECRET, sealed.clone()).unwrap(),
            value
        );
        let gone = encryption(&keys("secretbox", &[("s", 3)]));
        assert_eq!(
            gone.open(SECRET, sealed.clone()).unwrap_err(),
            "no matching prefix found"
        );
        let back = ["{identity: {}}".to_owned(), keys("aescbc", &[("a", 1)])].join(", ");
        let back = encryption(&back);
        assert_eq!(back.open(SECRET, sealed.clone()).unwrap(), value);
        assert_eq!(back.seal(SECRET, &value).into_owned(), value);
        let wrong = encryption(&keys("aesgcm", &[("a", 1)]));
        assert!(wrong.open(SECRET, sealed.clone()).is_err());
        assert!(plain(sealed).is_err(), "no configuration at all");
    }

    #[test]
    fn plain_values_are_read_only_where_the_file_says_so() {
        let value = Bytes::from_static(b"{}");
        let strict = encryption(&keys("aesgcm", &[("a", 1)]));
        assert_eq!(
            strict.open(SECRET, value.clone()).unwrap_err(),
            "no matching prefix found"
        );
        let mild = format!("{}, {{identity: {{}}}}", keys("aesgcm", &[("a", 1)]));
        assert_eq!(
            encryption(&mild).open(SECRET, value.clone()).unwrap(),
            value
        );
    }
}
