//! projected: several sources in one directory, with service account tokens.
//!
//! Trust bundles and pod certificates are rejected: nothing issues them yet.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ServiceAccountTokenProjection, Volume, VolumeProjection};

use super::{
    downward_api,
    keys::{self, KeysOf},
    make_tmpfs, write_payload,
};
use crate::{
    Error, Need, Plugin, Request, Result, TokenSpec, ownership,
    payload::{File, Payload, check_path},
};

pub(super) struct Projected;

impl Plugin for Projected {
    fn name(&self) -> &'static str {
        "kubernetes.io/projected"
    }

    fn claims(&self, volume: &Volume) -> bool {
        volume.projected.is_some()
    }

    fn needs(&self, volume: &Volume) -> Vec<Need> {
        sources(volume).iter().flat_map(source_needs).collect()
    }

    fn shows_pod(&self, volume: &Volume) -> bool {
        sources(volume)
            .iter()
            .any(|source| source.downward_api.is_some())
    }

    fn set_up(&self, request: &Request) -> Result<PathBuf> {
        let default_mode = request
            .volume
            .projected
            .as_ref()
            .and_then(|p| p.default_mode)
            .unwrap_or(0o644);
        let mut payload = Payload::new();
        for source in sources(request.volume) {
            payload.extend(source_payload(request, source, default_mode)?);
        }
        make_tmpfs(request)?;
        write_payload(request, &payload)?;
        Ok(request.dir.to_owned())
    }
}

fn sources(volume: &Volume) -> &[VolumeProjection] {
    volume
        .projected
        .as_ref()
        .and_then(|p| p.sources.as_deref())
        .unwrap_or_default()
}

fn token_spec(token: &ServiceAccountTokenProjection) -> TokenSpec {
    TokenSpec {
        audience: token.audience.clone().unwrap_or_default(),
        expiration_seconds: token.expiration_seconds.unwrap_or(3600),
    }
}

/// The ConfigMap or Secret of a source.
fn keys_source(source: &VolumeProjection, default_mode: i32) -> Option<(KeysOf, keys::Source<'_>)> {
    let (kind, name, items, optional) = match (&source.config_map, &source.secret) {
        (Some(map), _) => (KeysOf::ConfigMap, &map.name, &map.items, map.optional),
        (None, Some(secret)) => (KeysOf::Secret, &secret.name, &secret.items, secret.optional),
        (None, None) => return None,
    };
    let source = keys::Source {
        name,
        items: items.as_deref(),
        default_mode,
        optional: optional == Some(true),
    };
    Some((kind, source))
}

fn source_needs(source: &VolumeProjection) -> Vec<Need> {
    let mut needs = Vec::new();
    if let Some((kind, keys)) = keys_source(source, 0) {
        needs.push(kind.need(&keys));
    }
    if let Some(token) = &source.service_account_token {
        needs.push(Need::Token(token_spec(token)));
    }
    needs
}

fn source_payload(request: &Request, source: &VolumeProjection, mode: i32) -> Result<Payload> {
    if let Some((kind, keys)) = keys_source(source, mode) {
        return kind.payload(request.objects, &keys);
    }
    if let Some(downward) = &source.downward_api {
        return downward_api::payload(request, downward.items.as_deref().unwrap_or_default(), mode);
    }
    if let Some(token) = &source.service_account_token {
        return token_payload(request, token, mode);
    }
    let kind = if source.cluster_trust_bundle.is_some() {
        "projected clusterTrustBundle"
    } else {
        "projected podCertificate"
    };
    Err(Error::Unsupported {
        volume: request.volume.name.clone(),
        kind: kind.to_owned(),
    })
}

/// A token is readable only by the pod's common user or group, if there is one.
fn token_payload(
    request: &Request,
    token: &ServiceAccountTokenProjection,
    mode: i32,
) -> Result<Payload> {
    check_path(&token.path)?;
    let spec = token_spec(token);
    let text = request
        .objects
        .tokens
        .get(&spec)
        .ok_or_else(|| Error::Missing {
            kind: "service account token for audience",
            name: spec.audience.clone(),
        })?;
    let owner = ownership::common_user(request.pod);
    let private = owner.is_some() || ownership::fs_group(request.pod).is_some();
    let mode = if private { 0o600 } else { mode as u32 };
    let file = File {
        data: text.clone().into_bytes(),
        mode,
        owner,
    };
    Ok(Payload::from([(token.path.clone(), file)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Objects, plugin_for, testing::set_up};

    #[test]
    fn the_default_service_account_volume_has_token_ca_and_namespace() {
        let root = tempfile::tempdir().unwrap();
        let volume = serde_json::json!({"name": "kube-api-access", "projected": {"sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]}});
        let parsed: Volume = serde_json::from_value(volume.clone()).unwrap();
        let spec = TokenSpec {
            audience: String::new(),
            expiration_seconds: 3607,
        };
        assert_eq!(
            plugin_for(&parsed).unwrap().needs(&parsed),
            [
                Need::Token(spec.clone()),
                Need::ConfigMap {
                    name: "kube-root-ca.crt".into(),
                    optional: false
                }
            ]
        );
        let map = serde_json::json!({"data": {"ca.crt": "PEM"}});
        let objects = Objects {
            config_maps: [(
                "kube-root-ca.crt".into(),
                serde_json::from_value(map).unwrap(),
            )]
            .into(),
            tokens: [(spec, "jwt".into())].into(),
            ..Default::default()
        };
        let pod = serde_json::json!({"metadata": {"namespace": "ns"}});
        let pod = serde_json::from_value(pod).unwrap();
        set_up(volume, pod, objects, root.path()).unwrap();
        for (file, text) in [("token", "jwt"), ("ca.crt", "PEM"), ("namespace", "ns")] {
            assert_eq!(
                std::fs::read_to_string(root.path().join(file)).unwrap(),
                text
            );
        }
    }

    #[test]
    fn a_trust_bundle_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let volume = serde_json::json!({"name": "v", "projected": {"sources": [
            {"clusterTrustBundle": {"path": "p"}}]}});
        let error = set_up(volume, Default::default(), Objects::default(), root.path());
        assert!(
            error
                .err()
                .unwrap()
                .to_string()
                .contains("clusterTrustBundle")
        );
    }
}
