//! Authorization checks in expressions: `authorizer.group('').resource('pods').check('create')`.
//!
//! The API server provides an [`Authorizer`]; a check is built step by step as plain data and
//! decided at the end.

use std::{fmt, sync::Arc};

use machinery::format as validation;

use super::{Row, convert::string, library::Library};
use crate::value::{Error, Result, Value};

const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";

pub(super) const ROWS: &[Row] = &[
    (
        "path",
        path,
        &[(
            ".authorizer_path",
            "kubernetes.authorization.Authorizer, string -> kubernetes.authorization.PathCheck",
        )],
    ),
    (
        "group",
        |args| {
            with(args, Stage::Authorizer, Stage::Group, |check, text| {
                check.group = text
            })
        },
        &[(
            ".authorizer_group",
            "kubernetes.authorization.Authorizer, string -> kubernetes.authorization.GroupCheck",
        )],
    ),
    (
        "serviceAccount",
        service_account,
        &[(
            ".authorizer_serviceaccount",
            "kubernetes.authorization.Authorizer, string, string -> kubernetes.authorization.Authorizer",
        )],
    ),
    (
        "resource",
        resource,
        &[(
            ".groupcheck_resource",
            "kubernetes.authorization.GroupCheck, string -> kubernetes.authorization.ResourceCheck",
        )],
    ),
    (
        "subresource",
        |args| {
            with(args, Stage::Resource, Stage::Resource, |check, text| {
                check.subresource = text
            })
        },
        &[(
            ".resourcecheck_subresource",
            "kubernetes.authorization.ResourceCheck, string -> kubernetes.authorization.ResourceCheck",
        )],
    ),
    (
        "namespace",
        |args| {
            with(args, Stage::Resource, Stage::Resource, |check, text| {
                check.namespace = text
            })
        },
        &[(
            ".resourcecheck_namespace",
            "kubernetes.authorization.ResourceCheck, string -> kubernetes.authorization.ResourceCheck",
        )],
    ),
    (
        "name",
        |args| {
            with(args, Stage::Resource, Stage::Resource, |check, text| {
                check.name = text
            })
        },
        &[(
            ".resourcecheck_name",
            "kubernetes.authorization.ResourceCheck, string -> kubernetes.authorization.ResourceCheck",
        )],
    ),
    (
        "fieldSelector",
        |args| {
            with(args, Stage::Resource, Stage::Resource, |check, text| {
                check.field_selector = Some(text)
            })
        },
        &[(
            ".authorizer_fieldselector",
            "kubernetes.authorization.ResourceCheck, string -> kubernetes.authorization.ResourceCheck",
        )],
    ),
    (
        "labelSelector",
        |args| {
            with(args, Stage::Resource, Stage::Resource, |check, text| {
                check.label_selector = Some(text)
            })
        },
        &[(
            ".authorizer_labelselector",
            "kubernetes.authorization.ResourceCheck, string -> kubernetes.authorization.ResourceCheck",
        )],
    ),
    (
        "check",
        check,
        &[
            (
                ".pathcheck_check",
                "kubernetes.authorization.PathCheck, string -> kubernetes.authorization.Decision",
            ),
            (
                ".resourcecheck_check",
                "kubernetes.authorization.ResourceCheck, string -> kubernetes.authorization.Decision",
            ),
        ],
    ),
    (
        "errored",
        |args| Ok(Value::Bool(decision(args)?.error.is_some())),
        &[(
            ".decision_errored",
            "kubernetes.authorization.Decision -> bool",
        )],
    ),
    (
        "error",
        |args| {
            Ok(Value::text(
                decision(args)?.error.clone().unwrap_or_default(),
            ))
        },
        &[(
            ".decision_error",
            "kubernetes.authorization.Decision -> string",
        )],
    ),
    (
        "allowed",
        |args| Ok(Value::Bool(decision(args)?.allowed)),
        &[(
            ".decision_allowed",
            "kubernetes.authorization.Decision -> bool",
        )],
    ),
    (
        "reason",
        |args| Ok(Value::text(decision(args)?.reason.clone())),
        &[(
            ".decision_reason",
            "kubernetes.authorization.Decision -> string",
        )],
    ),
];

/// Decides checks of expressions.
pub trait Authorizer: fmt::Debug + Send + Sync {
    /// Decides a complete check; `check.service_account` is set if it is for another user than the
    /// request's.
    fn decide(&self, check: &Check, verb: &str) -> Decision;
}

#[derive(Debug, Clone)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
    pub error: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
}

/// A check, as far as it is built.
#[derive(Debug, Clone)]
pub struct Check {
    authorizer: Arc<dyn Authorizer>,
    stage: Stage,
    /// Namespace and name of the service account to check.
    pub service_account: Option<(String, String)>,
    pub path: String,
    pub group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub field_selector: Option<String>,
    pub label_selector: Option<String>,
}

impl Check {
    /// The value of the variable `authorizer`.
    pub fn authorizer(authorizer: Arc<dyn Authorizer>) -> Self {
        Self {
            authorizer,
            stage: Stage::Authorizer,
            service_account: None,
            path: String::new(),
            group: String::new(),
            resource: String::new(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            field_selector: None,
            label_selector: None,
        }
    }

    /// The value of `authorizer.requestResource`: a check of the request's own resource.
    pub fn for_resource(mut self) -> Self {
        self.stage = Stage::Resource;
        self
    }

    pub fn is_path(&self) -> bool {
        self.stage == Stage::Path
    }

    pub(super) fn go_type(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => "library.authorizerVal",
            Stage::Path => "library.pathCheckVal",
            Stage::Group => "library.groupCheckVal",
            Stage::Resource => "library.resourceCheckVal",
        }
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self.stage {
            Stage::Authorizer => AUTHORIZER,
            Stage::Path => "kubernetes.authorization.PathCheck",
            Stage::Group => "kubernetes.authorization.GroupCheck",
            Stage::Resource => "kubernetes.authorization.ResourceCheck",
        }
    }
}

/// A copy of the check, if it is at the function's stage.
fn take(args: &[Value<'_>], stage: Stage) -> Result<Check> {
    match args.first() {
        Some(Value::Library(Library::Check(check))) if check.stage == stage => {
            Ok((**check).clone())
        }
        _ => Err(Error::no_such_overload()),
    }
}

fn value<'a>(check: Check) -> Value<'a> {
    Value::Library(Library::Check(Arc::new(check)))
}

fn with<'a>(
    args: &[Value<'a>],
    from: Stage,
    to: Stage,
    set: impl Fn(&mut Check, String),
) -> Result<Value<'a>> {
    let mut check = take(args, from)?;
    set(&mut check, string(args, 1)?.to_string());
    check.stage = to;
    Ok(value(check))
}

fn path<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    if string(args, 1)?.trim().is_empty() {
        return Err(Error::new("path must not be empty"));
    }
    with(args, Stage::Authorizer, Stage::Path, |check, text| {
        check.path = text
    })
}

fn resource<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    if string(args, 1)?.trim().is_empty() {
        return Err(Error::new("resource must not be empty"));
    }
    with(args, Stage::Group, Stage::Resource, |check, text| {
        check.resource = text
    })
}

fn service_account<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let mut check = take(args, Stage::Authorizer)?;
    let (namespace, name) = (string(args, 1)?, string(args, 2)?);
    if !validation::dns1123_subdomain(name).is_empty() {
        return Err(Error::new("Invalid service account name"));
    }
    if !validation::dns1123_label(namespace).is_empty() {
        return Err(Error::new("Invalid service account namespace"));
    }
    check.service_account = Some((namespace.to_string(), name.to_string()));
    Ok(value(check))
}

fn check<'a>(args: &[Value<'a>]) -> Result<Value<'a>> {
    let check = match args.first() {
        Some(Value::Library(Library::Check(check)))
            if matches!(check.stage, Stage::Path | Stage::Resource) =>
        {
            check
        }
        _ => return Err(Error::no_such_overload()),
    };
    let decision = check.authorizer.decide(check, string(args, 1)?);
    Ok(Value::Library(Library::Decision(Arc::new(decision))))
}

fn decision<'v>(args: &'v [Value<'_>]) -> Result<&'v Decision> {
    match args {
        [Value::Library(Library::Decision(decision))] => Ok(decision),
        _ => Err(Error::no_such_overload()),
    }
}
