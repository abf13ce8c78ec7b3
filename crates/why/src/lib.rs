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

/// The answer or why there is none.
pub type Result<T> = std::result::Result<T, Error>;

/// Answers a question with what the client may read.
pub async fn answer(client: &kube::Client, question: &Question) -> Result<Answer> {
    match question {
        Question::Object(kind, object) => kind.answer(client, object).await,
        Question::Connection(asked) => connection::answer(client, asked).await,
        Question::Access(asked) => access::answer(client, asked).await,
    }
}
