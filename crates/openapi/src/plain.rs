//! Non-resource paths: discovery, the version, and service account issuer discovery.

use machinery::json::json;
use machinery::{Value, openapi::Dialect};

use super::{
    operation::{Answer, Operation, path_item},
    paths::{self, MEDIA},
};

pub(super) const INFO: &str = "io.k8s.apimachinery.pkg.version.Info";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The paths of their documents below `/openapi/v3`, apart from groups.
pub(super) const PLACES: [&str; 5] = [
    ".well-known/openid-configuration",
    "api",
    "apis",
    "openid/v1/jwks",
    "version",
];

/// The path item of one document.
pub(super) fn path(dialect: Dialect, place: &str) -> Option<(String, Value)> {
    let discovery = |id: String, tag: String, description: &str, kind: &str| Operation {
        id,
        tag,
        description: description.to_owned(),
        consumes: MEDIA,
        produces: MEDIA.to_vec(),
        answer: Answer::Of(format!("{META}.{kind}")),
        ..Operation::default()
    };
    let versions = "get available API versions";
    let mut operation = match place.split('/').collect::<Vec<_>>().as_slice() {
        ["api"] => discovery(
            paths::id("get", "", "", "APIVersions"),
            paths::tag("", ""),
            versions,
            "APIVersions",
        ),
        ["apis"] => discovery(
            "getAPIVersions".to_owned(),
            "apis".to_owned(),
            versions,
            "APIGroupList",
        ),
        ["apis", group] => discovery(
            paths::id("get", group, "", "APIGroup"),
            paths::tag(group, ""),
            "get information of a group",
            "APIGroup",
        ),
        ["api", version] => resources("", version),
        ["apis", group, version] => resources(group, version),
        ["version"] => Operation {
            id: "getCodeVersion".to_owned(),
            tag: "version".to_owned(),
            description: "get the version information for this server".to_owned(),
            consumes: &MEDIA[..1],
            produces: MEDIA[..1].to_vec(),
            answer: Answer::Of(INFO.to_owned()),
            ..Operation::default()
        },
        [".well-known", _] => Operation {
            id: "getServiceAccountIssuerOpenIDConfiguration".to_owned(),
            tag: "WellKnown".to_owned(),
            description: "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'".to_owned(),
            produces: MEDIA[..1].to_vec(),
            ..Operation::default()
        },
        ["openid", ..] => Operation {
            id: "getServiceAccountIssuerOpenIDKeyset".to_owned(),
            tag: "openid".to_owned(),
            description: "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)".to_owned(),
            produces: vec!["application/jwk-set+json"],
            ..Operation::default()
        },
        _ => return None,
    };
    operation.method = "get";
    Some((format!("/{place}/"), path_item(dialect, vec![operation])))
}

fn resources(group: &str, version: &str) -> Operation {
    Operation {
        id: paths::id("get", group, version, "APIResources"),
        tag: paths::tag(group, version),
        description: "get available resources".to_owned(),
        consumes: MEDIA,
        produces: MEDIA.to_vec(),
        answer: Answer::Of(format!("{META}.APIResourceList")),
        ..Operation::default()
    }
}

/// Definitions that no kind references and that the schema table does not have.
pub(super) fn definition(dialect: Dialect, name: &str) -> Option<Value> {
    let text = || match dialect {
        Dialect::V2 => json!({"type": "string"}),
        Dialect::V3 => json!({"type": "string", "default": ""}),
    };
    match name {
        paths::PATCH => Some(json!({"type": "object"})),
        paths::WATCH_EVENT => {
            let raw = super::operation::reference(dialect, RAW);
            let mut object = match dialect {
                Dialect::V2 => raw,
                Dialect::V3 => json!({"allOf": [raw]}),
            };
            object["description"] = "The current object, the last state of a deleted object, or a Status with an error.".into();
            let mut kind = text();
            kind["description"] =
                "Type of the event: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR.".into();
            Some(json!({"type": "object", "required": ["type", "object"],
                "properties": {"object": object, "type": kind}}))
        }
        RAW => Some(json!({"type": "object"})),
        INFO => {
            let optional = [
                "emulationMajor",
                "emulationMinor",
                "minCompatibilityMajor",
                "minCompatibilityMinor",
            ];
            let required = [
                "major",
                "minor",
                "gitVersion",
                "gitCommit",
                "gitTreeState",
                "buildDate",
                "goVersion",
                "compiler",
                "platform",
            ];
            let mut out = json!({"type": "object", "required": required, "properties": {}});
            for name in optional {
                out["properties"][name] = json!({"type": "string"});
            }
            for name in required {
                out["properties"][name] = text();
            }
            Some(out)
        }
        _ => None,
    }
}

pub(super) const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
