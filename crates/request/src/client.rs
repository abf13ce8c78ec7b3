//! A client of the API inside the server, for components that maintain objects (default roles,
//! priority levels).

use async_trait::async_trait;
use http::{Method, StatusCode};
use machinery::{Object, Value};

/// Sends requests through the whole pipeline, as one user.
#[async_trait]
pub trait Client: Send + Sync {
    /// Sends an object and returns the response's status and JSON object. PATCH is a server-side
    /// apply.
    async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Object>,
    ) -> Result<(StatusCode, Object), String>;

    /// Writes. A conflict or a missing object is no error: the concurrent change will be seen and
    /// reconciled.
    async fn write(&self, method: Method, path: &str, body: Option<Object>) -> Result<(), String> {
        let (status, answer) = self.ask(method, path, body).await?;
        match status {
            StatusCode::CONFLICT | StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => {
                let message = answer.get("message").and_then(Value::as_str);
                Err(format!("{path}: {}", message.unwrap_or_default()))
            }
        }
    }
}
