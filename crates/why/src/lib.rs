//! `mainstay why`: reads an object and related ones from the API and explains in a few lines why it
//! is in its state, and what would help. Each kind has a file: a function that reads the relevant
//! objects, and a pure one that evaluates them.

#![forbid(unsafe_code)]

mod access;
mod answer;
mod claim;
mod connection;
mod events;
mod ingress;
mod namespace;
mod node;
mod placement;
mod pod;
mod question;
mod service;
mod workload;

use client::kube;

pub use answer::Answer;
pub use question::Question;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The question is invalid.
    #[error("{0}")]
    Question(String),
    /// The API request failed.
    #[error("{}", message(.0))]
    Api(#[from] kube::Error),
}

/// The server's message, if any.
fn message(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => format!("{} ({})", status.message, status.reason),
        other => other.to_string(),
    }
}

/// An object that does not exist is not found in a namespace: the user may have meant another one.
fn explain_absence(error: Error, kind: question::Kind, object: &question::Name) -> Error {
    let Error::Api(kube::Error::Api(status)) = &error else {
        return error;
    };
    let named = status.details.as_ref().map(|details| details.name.as_str());
    if status.code != 404 || named != Some(&object.name) {
        return error;
    }
    let place = match kind.is_namespaced() {
        true => format!(" in namespace {}", object.namespace),
        false => String::new(),
    };
    Error::Question(format!("{}{place}", status.message))
}

/// The answer or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// Answers a question with what the client may read.
pub async fn answer(client: &kube::Client, question: &Question) -> Result<Answer> {
    match question {
        Question::Object(kind, object) => {
            let answer = kind.answer(client, object).await;
            answer.map_err(|error| explain_absence(error, *kind, object))
        }
        Question::Connection(asked) => connection::answer(client, asked).await,
        Question::Access(asked) => access::answer(client, asked).await,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_absent_object_is_named_with_its_namespace() {
        for (resource, word, expected) in [
            ("pods", "pod", "pods \"nix\" not found in namespace tour"),
            ("nodes", "node", "nodes \"nix\" not found"),
        ] {
            let words = [format!("{word}/nix")];
            let question = Question::parse(&words, "tour", &[]).unwrap();
            let Question::Object(kind, object) = question else {
                panic!("{word} is no object");
            };
            let status = json!({"status": "Failure", "code": 404, "reason": "NotFound",
                "message": format!("{resource} \"nix\" not found"), "details": {"name": "nix"}});
            let status = Box::new(serde_json::from_value(status).unwrap());
            let error = Error::Api(kube::Error::Api(status));
            let error = explain_absence(error, kind, &object);
            assert_eq!(error.to_string(), expected);
            assert!(std::error::Error::source(&error).is_none());
        }
    }
}
