//! Reviews: answered at once and never stored.

pub mod access;

use crate::builtin::Builtin;
use crate::{Answers, Scope, ServerSide};
use access::About;

const QUESTION: Builtin = Builtin {
    scope: Scope::Cluster,
    verbs: &["create"],
    is_virtual: true,
    ..Builtin::EMPTY
};

const fn answered_by(answers: Answers) -> ServerSide {
    ServerSide {
        answers,
        ..ServerSide::NONE
    }
}

pub const TOKEN_REVIEW: Builtin = Builtin {
    group: "authentication.k8s.io",
    kind: "TokenReview",
    plural: "tokenreviews",
    schema: "authentication/v1.TokenReview",
    server_side: answered_by(Answers::Token),
    ..QUESTION
};

pub const SELF_SUBJECT_REVIEW: Builtin = Builtin {
    group: "authentication.k8s.io",
    kind: "SelfSubjectReview",
    plural: "selfsubjectreviews",
    schema: "authentication/v1.SelfSubjectReview",
    server_side: answered_by(Answers::Requester),
    ..QUESTION
};

pub const LOCAL_SUBJECT_ACCESS_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "LocalSubjectAccessReview",
    plural: "localsubjectaccessreviews",
    scope: Scope::Namespaced,
    schema: "authorization/v1.LocalSubjectAccessReview",
    server_side: answered_by(Answers::Access(About::AnyUserInNamespace)),
    ..QUESTION
};

pub const SELF_SUBJECT_ACCESS_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "SelfSubjectAccessReview",
    plural: "selfsubjectaccessreviews",
    schema: "authorization/v1.SelfSubjectAccessReview",
    server_side: answered_by(Answers::Access(About::Requester)),
    ..QUESTION
};

pub const SELF_SUBJECT_RULES_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "SelfSubjectRulesReview",
    plural: "selfsubjectrulesreviews",
    schema: "authorization/v1.SelfSubjectRulesReview",
    server_side: answered_by(Answers::Rules),
    ..QUESTION
};

pub const SUBJECT_ACCESS_REVIEW: Builtin = Builtin {
    group: "authorization.k8s.io",
    kind: "SubjectAccessReview",
    plural: "subjectaccessreviews",
    schema: "authorization/v1.SubjectAccessReview",
    server_side: answered_by(Answers::Access(About::AnyUser)),
    ..QUESTION
};
