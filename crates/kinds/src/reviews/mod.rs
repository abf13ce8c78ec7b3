//! Reviews: answered at once and never stored.

pub mod access;

use crate::Scope;
use crate::builtin::Builtin;

const QUESTION: Builtin = Builtin {
    scope: Scope::Cluster,
    verbs: &["create"],
    is_virtual: true,
    ..Builtin::EMPTY
};

pub const TOKEN_REVIEW: Builtin = Builtin {
    group: "authentication.k8s.io",
    kind: "TokenReview",
    plural: "tokenreviews",
    schema: "authentication/v1.TokenReview",
    ..QUESTION
};

pub const SELF_SUBJECT_REVIEW: Builtin = Builtin {
    group: "authentication.k8s.io",
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    schema: "authentication/v1.SelfSubjectReview",
    ..QUESTION
};

pub const LOCAL_SUBJECT_ACCESS_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "LocalSubjectAccessReview",
    plural: "localsubjectaccessreviews",
    scope: Scope::Namespaced,
    schema: "authorization/v1.LocalSubjectAccessReview",
    ..QUESTION
};

pub const SELF_SUBJECT_ACCESS_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    schema: "authorization/v1.SelfSubjectAccessReview",
    ..QUESTION
};

pub const SELF_SUBJECT_RULES_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "SelfSubjectRulesReview",
    plural: "selfsubjectrulesreviews",
    schema: "authorization/v1.SelfSubjectRulesReview",
    ..QUESTION
};

pub const SUBJECT_ACCESS_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    schema: "authorization/v1.SubjectAccessReview",
    ..QUESTION
};
