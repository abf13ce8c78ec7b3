//! Metrics of authentication and authorization by result.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// Upstream's buckets, in seconds: 1 ms, doubled fourteen times.
const DURATIONS: [f64; 15] = [
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
/// Upstream's buckets for the remaining lifetime of client certificates, in seconds.
const EXPIRY: [f64; 14] = [
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];
/// Users counted by name; all others are counted together.
const NAMED: [&str; 3] = ["admin", "client", "kube_proxy"];
const OTHER: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Username {
    username: &'static str,
}

/// The result of an authentication.
#[derive(Debug, Clone, Copy)]
pub enum AuthenticationResult {
    Success,
    /// No credentials were presented.
    Failure,
    /// The credentials are invalid.
    Error,
}

/// The decision of an authorizer.
#[derive(Debug, Clone, Copy)]
pub enum Decided {
    Allow,
    Deny,
    NoOpinion,
}

/// The metrics of one result, looked up once and used by every request.
#[derive(Clone)]
struct Counts {
    attempts: Counter,
    durations: Histogram,
}

type Durations = Family<Outcome, Histogram, fn() -> Histogram>;

fn durations_by_outcome() -> Durations {
    Family::new_with_constructor(|| Histogram::new(DURATIONS))
}

fn counts(
    attempts: &Family<Outcome, Counter>,
    durations: &Durations,
    result: &'static str,
) -> Counts {
    let outcome = Outcome { result };
    Counts {
        attempts: attempts.get_or_create(&outcome).clone(),
        durations: durations.get_or_create(&outcome).clone(),
    }
}

pub struct Access {
    authentication: [Counts; 3],
    authorization: [Counts; 3],
    named: [Counter; 3],
    other: Counter,
    expiry: Histogram,
}

impl Access {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let attempts = Family::<Outcome, Counter>::default();
        let durations = durations_by_outcome();
        let authentication =
            ["success", "failure", "error"].map(|result| counts(&attempts, &durations, result));
        registry.register(
            "authentication_attempts",
            "Attempts to authenticate",
            attempts,
        );
        registry.register(
            "authentication_duration_seconds",
            "Duration of authentication in seconds",
            durations,
        );
        let attempts = Family::<Outcome, Counter>::default();
        let durations = durations_by_outcome();
        let authorization =
            ["allowed", "denied", "no-opinion"].map(|result| counts(&attempts, &durations, result));
        registry.register(
            "authorization_attempts",
            "Decisions of authorizers",
            attempts,
        );
        registry.register(
            "authorization_duration_seconds",
            "Duration of authorization in seconds",
            durations,
        );
        let users = Family::<Username, Counter>::default();
        let user = |username| users.get_or_create(&Username { username }).clone();
        let (named, other) = (NAMED.map(user), user(OTHER));
        registry.register(
            "authenticated_user_requests",
            "Requests of authenticated users",
            users,
        );
        let expiry = Histogram::new(EXPIRY);
        let about = "Remaining validity of client certificates in seconds";
        registry.register(
            "apiserver_client_certificate_expiration_seconds",
            about,
            expiry.clone(),
        );
        Self {
            authentication,
            authorization,
            named,
            other,
            expiry,
        }
    }

    /// Counts an authentication; `user` is the authenticated name.
    pub fn authenticated(&self, result: AuthenticationResult, user: &str, took: Duration) {
        let counts = &self.authentication[result as usize];
        counts.attempts.inc();
        counts.durations.observe(took.as_secs_f64());
        if matches!(result, AuthenticationResult::Success) {
            let named = NAMED.iter().position(|name| *name == user);
            named.map_or(&self.other, |at| &self.named[at]).inc();
        }
    }

    pub fn authorized(&self, result: Decided, took: Duration) {
        let counts = &self.authorization[result as usize];
        counts.attempts.inc();
        counts.durations.observe(took.as_secs_f64());
    }

    /// Records the remaining lifetime of a client certificate, in seconds.
    pub fn certificate(&self, left: f64) {
        self.expiry.observe(left);
    }
}
