//! Validation of a pod log's options.

use machinery::{
    Status,
    field::{Error, Errors, Path},
    text, time,
};

use request::Query;

/// Rejects invalid options, before the pod is read.
pub(super) fn check(query: &Query, pod: &str) -> Result<(), Status> {
    let number = |key: &str| query.get(key).map(text::parse_int).transpose();
    let number = |key: &str| number(key).map_err(Status::bad_request);
    let [tail, limit, seconds] = [
        number("tailLines")?,
        number("limitBytes")?,
        number("sinceSeconds")?,
    ];
    let since = query.get("sinceTime");
    if let Some(since) = since {
        time::parse(since).map_err(Status::bad_request)?;
    }
    let mut errors = Errors::new();
    let mut at_least = |key: &str, least: i64, given: Option<i64>, why: &str| {
        if let Some(given) = given.filter(|given| *given < least) {
            errors.push(Error::invalid(&Path::new(key), given, why));
        }
    };
    at_least("tailLines", 0, tail, "must be greater than or equal to 0");
    at_least("limitBytes", 1, limit, "must be greater than 0");
    if since.is_none() {
        at_least("sinceSeconds", 1, seconds, "must be greater than 0");
    } else if seconds.is_some() {
        let why = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.push(Error::forbidden(&Path::new("[]"), why));
    }
    if query.get("stream").is_some() {
        let why = "may not be specified";
        errors.push(Error::forbidden(&Path::new("stream"), why));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("", "PodLogOptions", pod, &errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_log_options_are_refused() {
        for (query, code, message) in [
            ("tailLines=0&limitBytes=1&sinceSeconds=1&follow=x", 0, ""),
            (
                "tailLines=x",
                400,
                "strconv.ParseInt: parsing \"x\": invalid syntax",
            ),
            (
                "tailLines=-1",
                422,
                "PodLogOptions \"p\" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0",
            ),
            (
                "limitBytes=0",
                422,
                "PodLogOptions \"p\" is invalid: limitBytes: Invalid value: 0: must be greater than 0",
            ),
            (
                "sinceSeconds=0",
                422,
                "PodLogOptions \"p\" is invalid: sinceSeconds: Invalid value: 0: must be greater than 0",
            ),
            (
                "sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z",
                422,
                "PodLogOptions \"p\" is invalid: []: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified",
            ),
            (
                "stream=Stdout",
                422,
                "PodLogOptions \"p\" is invalid: stream: Forbidden: may not be specified",
            ),
        ] {
            let checked = check(&Query::parse(query), "p");
            let (was, said) = checked
                .err()
                .map_or((0, String::new()), |s| (s.code, s.message));
            assert_eq!((was, said.as_str()), (code, message), "{query}");
        }
    }
}
