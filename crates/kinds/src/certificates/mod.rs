//! The kinds of certificates.k8s.io.

pub mod certificate_signing_request;
