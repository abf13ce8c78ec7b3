//! The exit status of a command in the error channel: a `Status` in JSON since protocol v4, plain
//! text of failures before.

use serde_json::{Value, json};

/// The failure of a command whose connection ended first.
pub const CONNECTION_ENDED: &str = "the connection ended before the command did";

/// The exit status of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitStatus {
    /// It exited with this code; 0 is success.
    Code(i32),
    /// It could not be run or its end was not observed.
    Failed(String),
}

impl ExitStatus {
    /// The content of the error channel since v4.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let status = match self {
            Self::Code(0) => json!({ "metadata": {}, "status": "Success" }),
            Self::Code(code) => json!({
                "metadata": {},
                "status": "Failure",
                "message": self.message(),
                "reason": "NonZeroExitCode",
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Self::Failed(_) => json!({
                "metadata": {},
                "status": "Failure",
                "message": format!("Internal error occurred: {}", self.message()),
                "reason": "InternalError",
                "details": { "causes": [{ "message": self.message() }] },
                "code": 500,
            }),
        };
        status.to_string().into_bytes()
    }

    /// The content of the error channel before v4; empty for success.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        if *self == Self::Code(0) {
            Vec::new()
        } else {
            self.message().into_bytes()
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Code(code) => {
                format!("command terminated with non-zero exit code: exit status {code}")
            }
            Self::Failed(message) => format!("error executing command in container: {message}"),
        }
    }

    /// Parses the error channel since v4. An empty one is not success: the connection was cut
    /// before the command ended.
    pub(crate) fn from_json(json: &[u8]) -> Self {
        let status: Value = match serde_json::from_slice(json) {
            Ok(status) => status,
            Err(_) if json.is_empty() => {
                return Self::Failed(CONNECTION_ENDED.to_owned());
            }
            Err(_) => return Self::Failed(String::from_utf8_lossy(json).into_owned()),
        };
        if status["status"] == "Success" {
            return Self::Code(0);
        }
        let causes = status["details"]["causes"].as_array();
        let code = causes
            .into_iter()
            .flatten()
            .find(|cause| cause["reason"] == "ExitCode");
        match code
            .and_then(|cause| cause["message"].as_str())
            .map(str::parse)
        {
            Some(Ok(code)) if status["reason"] == "NonZeroExitCode" => Self::Code(code),
            _ => Self::Failed(
                status["message"]
                    .as_str()
                    .unwrap_or("unknown failure")
                    .to_owned(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_by_the_client_as_the_server_wrote_it() {
        for status in [
            ExitStatus::Code(0),
            ExitStatus::Code(3),
            ExitStatus::Code(137),
        ] {
            assert_eq!(ExitStatus::from_json(&status.to_json()), status);
        }
        let failed = ExitStatus::Failed("no such container".to_owned());
        let ExitStatus::Failed(message) = ExitStatus::from_json(&failed.to_json()) else {
            panic!()
        };
        let expected = "Internal error occurred: error executing command in container: \
                        no such container";
        assert_eq!(message, expected);
        assert!(matches!(ExitStatus::from_json(b""), ExitStatus::Failed(_)));
        assert!(ExitStatus::Code(0).to_text().is_empty());
    }
}
