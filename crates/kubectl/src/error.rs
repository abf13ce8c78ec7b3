//! Errors, printed as kubectl does.

use std::process::ExitCode;

use machinery::Status;

use crate::output::escape_terminal;

/// An error response of the server.
#[derive(Debug)]
pub(crate) struct ServerError(pub Status);

impl ServerError {
    /// `error when creating "web.yaml": …`
    fn add_source(&mut self, verb: &str, source: &str) {
        let message = &self.0.message;
        self.0.message = format!("error when {verb} {source:?}: {message}");
    }
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Status {
            reason, message, ..
        } = &self.0;
        match reason.as_str() {
            "" => write!(f, "Error from server: {message}"),
            "Unauthorized" => write!(f, "error: You must be logged in to the server ({message})"),
            "Invalid" => write!(f, "{}", invalid(&self.0)),
            reason => write!(f, "Error from server ({reason}): {message}"),
        }
    }
}

/// The invalid fields, deduplicated.
fn invalid(status: &Status) -> String {
    let Some(details) = &status.details else {
        return match status.message.as_str() {
            "" => "The request is invalid".to_owned(),
            message => format!("The request is invalid: {message}"),
        };
    };
    let what = match (details.kind.as_str(), details.name.as_str()) {
        ("", "") if details.causes.is_empty() => {
            return format!("The request is invalid: {}", status.message);
        }
        ("", "") => "The request is invalid".to_owned(),
        (kind, name) => format!("The {kind} {name:?} is invalid"),
    };
    let mut lines: Vec<String> = Vec::new();
    for cause in &details.causes {
        let line = format!("{}: {}", cause.field, cause.message);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.as_slice() {
        [] => what,
        [one] => format!("{what}: {one}"),
        many => {
            let many: Vec<String> = many.iter().map(|line| format!("* {line}")).collect();
            format!("{what}: \n{}", many.join("\n"))
        }
    }
}

impl std::error::Error for ServerError {}

/// Adds the file of an error.
pub(crate) fn with_source(mut error: anyhow::Error, verb: &str, source: &str) -> anyhow::Error {
    if source.is_empty() {
        return error;
    }
    if let Some(server) = error.downcast_mut::<ServerError>() {
        server.add_source(verb, source);
        return error;
    }
    error.context(format!("error when {verb} {source:?}"))
}

/// Exits with this code; everything has been printed.
#[derive(Debug)]
pub(crate) struct Exit(pub u8);

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "command terminated with exit code {}", self.0)
    }
}

impl std::error::Error for Exit {}

/// Exits with this code without further output.
#[derive(Debug)]
pub(crate) struct Quiet(pub u8);

impl std::fmt::Display for Quiet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit status {}", self.0)
    }
}

impl std::error::Error for Quiet {}

/// A message that is complete: it is printed without `error: `.
#[derive(Debug)]
pub(crate) struct Plain(pub String);

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Plain {}

/// Several errors, one per line.
#[derive(Debug)]
pub(crate) struct ErrorList(pub Vec<anyhow::Error>);

impl std::fmt::Display for ErrorList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.0.iter().map(|error| format!("{error:#}")).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ErrorList {}

impl ErrorList {
    /// All of them in one line, as Go joins them: each text once, in brackets if there are several.
    pub(crate) fn in_one_line(&self) -> String {
        let mut texts: Vec<String> = Vec::new();
        for error in &self.0 {
            let text = message(error);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.len() {
            1 => texts.remove(0),
            _ => format!("[{}]", texts.join(", ")),
        }
    }
}

/// No error, the single one, or all of them.
pub(crate) fn aggregate(mut errors: Vec<anyhow::Error>) -> anyhow::Result<()> {
    match errors.len() {
        0 => Ok(()),
        1 => Err(errors.remove(0)),
        _ => Err(ErrorList(errors).into()),
    }
}

/// A command's result together with errors about files that it left out. Beside other errors they
/// are one, as Go joins them.
pub(crate) fn join(
    result: anyhow::Result<()>,
    mut left_out: Vec<anyhow::Error>,
) -> anyhow::Result<()> {
    let Err(error) = result else {
        return aggregate(left_out);
    };
    if left_out.is_empty() || error.is::<Quiet>() || error.is::<Exit>() {
        return Err(error);
    }
    let joined = match left_out.len() {
        1 => left_out.remove(0),
        _ => {
            let texts: Vec<String> = left_out.iter().map(list_line).collect();
            anyhow::anyhow!("[{}]", texts.join(", "))
        }
    };
    let mut errors = match error.downcast::<ErrorList>() {
        Ok(ErrorList(errors)) => errors,
        Err(error) => vec![error],
    };
    errors.push(joined);
    Err(ErrorList(errors).into())
}

/// Why a file could not be read, in Go's words.
pub(crate) fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        std::io::ErrorKind::NotADirectory => "not a directory".to_owned(),
        _ => without_number(&error.to_string()),
    }
}

/// `Address already in use (os error 98)`, as Go writes it.
fn without_number(error: &str) -> String {
    let Some((text, _)) = error.split_once(" (os error ") else {
        return error.to_owned();
    };
    stdx::os_error::uncapitalized(text)
}

/// A usage error.
pub(crate) fn usage(command: &str, message: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{message}\nSee 'kubectl {command} -h' for help and examples")
}

/// A kind as Go's typed clients name it: `*v1.ConfigMap`.
pub(crate) fn go_type(object: &serde_json::Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let version = version.rsplit('/').next().unwrap_or_default();
    format!("*{version}.{}", object["kind"].as_str().unwrap_or_default())
}

/// Whether the server said that there is no such object.
pub(crate) fn is_not_found(error: &anyhow::Error) -> bool {
    code_is(error, 404)
}

/// Whether the server returned this code.
pub(crate) fn code_is(error: &anyhow::Error, code: u16) -> bool {
    error
        .downcast_ref::<ServerError>()
        .is_some_and(|ServerError(status)| status.code == code)
}

/// The server's message without the prefix `Error from server`.
pub(crate) fn message(error: &anyhow::Error) -> String {
    match error.downcast_ref::<ServerError>() {
        Some(ServerError(status)) => status.message.clone(),
        None => match error.downcast_ref::<ErrorList>() {
            Some(errors) => errors.in_one_line(),
            None => error.to_string(),
        },
    }
}

/// Prints the error and returns its exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(Quiet(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    if let Some(exit) = error.downcast_ref::<Exit>() {
        eprintln!("{exit}");
        return ExitCode::from(exit.0);
    }
    if let Some(ErrorList(errors)) = error.downcast_ref() {
        let lines = errors.iter().map(list_line);
        lines.for_each(|line| eprintln!("{}", escape_terminal(&line)));
        return ExitCode::FAILURE;
    }
    let text = escape_terminal(&line(error));
    eprintln!("{}", text.strip_suffix('\n').unwrap_or(&text));
    ExitCode::FAILURE
}

/// One of several errors as printed: messages of ours have no prefix.
fn list_line(error: &anyhow::Error) -> String {
    if let Some(errors) = error.downcast_ref::<ErrorList>() {
        return errors.in_one_line();
    }
    match error.downcast_ref::<ServerError>() {
        Some(error) => error.to_string(),
        None => format!("{error:#}"),
    }
}

/// The error as printed.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let is_complete =
        error.downcast_ref::<ServerError>().is_some() || error.downcast_ref::<Plain>().is_some();
    let text = format!("{error:#}");
    match is_complete || text.starts_with("error: ") {
        true => text,
        false => format!("error: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(status: serde_json::Value) -> anyhow::Error {
        ServerError(serde_json::from_value(status).unwrap()).into()
    }

    #[test]
    fn a_status_is_printed_as_by_upstreams_kubectl() {
        for (given, expected) in [
            (
                json!({"reason": "NotFound", "message": "pods \"a\" not found", "code": 404}),
                "Error from server (NotFound): pods \"a\" not found",
            ),
            (
                json!({"reason": "Unauthorized", "message": "Unauthorized", "code": 401}),
                "error: You must be logged in to the server (Unauthorized)",
            ),
            (
                json!({"reason": "Invalid", "message": "…", "details": {"kind": "Pod", "name": "a", "causes": [
                    {"field": "spec.x", "message": "Required value"}]}}),
                "The Pod \"a\" is invalid: spec.x: Required value",
            ),
            (
                json!({"reason": "Invalid", "message": "…", "details": {"kind": "Pod", "name": "a", "causes": [
                    {"field": "b", "message": "1"}, {"field": "c", "message": "2"}, {"field": "b", "message": "1"}]}}),
                "The Pod \"a\" is invalid: \n* b: 1\n* c: 2",
            ),
        ] {
            assert_eq!(line(&status(given)), expected);
        }
        let error =
            status(json!({"reason": "AlreadyExists", "message": "pods \"a\" already exists"}));
        assert_eq!(
            line(&with_source(error, "creating", "a.yaml")),
            "Error from server (AlreadyExists): error when creating \"a.yaml\": pods \"a\" already exists"
        );
        assert_eq!(line(&anyhow::anyhow!("x")), "error: x");
    }

    #[test]
    fn a_list_within_a_list_is_one_line_and_repeats_nothing() {
        let errors = |texts: &[&str]| -> anyhow::Error {
            let errors = texts.iter().map(|text| anyhow::anyhow!("{text}"));
            ErrorList(errors.collect()).into()
        };
        for (texts, expected) in [
            (&["a"][..], "a"),
            (&["a", "b"], "[a, b]"),
            (&["a", "b", "a"], "[a, b]"),
            (&["a", "a"], "a"),
        ] {
            assert_eq!(message(&errors(texts)), expected);
            assert_eq!(list_line(&errors(texts)), expected);
        }
    }

    #[test]
    fn files_that_were_left_out_are_reported_after_the_other_errors() {
        let errors = |names: &[&str]| -> Vec<anyhow::Error> {
            names.iter().map(|name| anyhow::anyhow!("{name}")).collect()
        };
        let failed = || Err(ErrorList(errors(&["x", "y"])).into());
        for (result, left_out, expected) in [
            (Ok(()), errors(&[]), None),
            (Ok(()), errors(&["a"]), Some("a")),
            (Ok(()), errors(&["a", "b"]), Some("a\nb")),
            (failed(), errors(&[]), Some("x\ny")),
            (failed(), errors(&["a"]), Some("x\ny\na")),
            (
                Err(anyhow::anyhow!("x")),
                errors(&["a", "b"]),
                Some("x\n[a, b]"),
            ),
            (Err(Quiet(1).into()), errors(&["a"]), Some("exit status 1")),
        ] {
            let said = join(result, left_out).err().map(|error| error.to_string());
            assert_eq!(said.as_deref(), expected);
        }
    }
}
