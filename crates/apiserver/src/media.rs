//! Media types: what a body is, and what the client wants back.

use http::{HeaderMap, header};
use machinery::Status;

/// What a request body is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Json,
    Yaml,
    Protobuf,
}

const BODIES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

impl Body {
    /// Reads Content-Type; without one it is JSON.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Self, Status> {
        match content_type(headers).as_str() {
            "" | "application/json" => Ok(Self::Json),
            "application/yaml" => Ok(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Ok(Self::Protobuf),
            _ => Err(Status::unsupported_media_type(BODIES)),
        }
    }
}

/// The media type of the body, in lower case, without parameters.
pub(crate) fn content_type(headers: &HeaderMap) -> String {
    let text = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    text.unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// What objects are turned into on their way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Shape {
    /// The objects themselves.
    #[default]
    Object,
    /// A Table of printed columns.
    Table,
    /// Metadata alone.
    Metadata,
}

/// How the answer is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Encoding {
    #[default]
    Json,
    Yaml,
    Protobuf,
}

/// What the client wants back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wanted {
    pub(crate) shape: Shape,
    pub(crate) encoding: Encoding,
}

/// One alternative of an Accept header.
struct Range<'a> {
    media: String,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default().to_ascii_lowercase();
        let parameters = parts.filter_map(|part| part.split_once('=')).collect();
        Self { media, parameters }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.parameters
            .iter()
            .find(|(mine, _)| *mine == key)
            .map(|(_, value)| value.trim_matches('"'))
    }

    /// How much the client likes it.
    fn thousandths(&self) -> u32 {
        let weight = self.get("q").and_then(|q| q.parse::<f32>().ok());
        (weight.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u32
    }

    fn wildcards(&self) -> usize {
        self.media.matches('*').count()
    }

    fn wanted(&self, protobuf: bool) -> Option<Wanted> {
        let encoding = match self.media.as_str() {
            "application/json" | "*/*" | "application/*" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            "application/vnd.kubernetes.protobuf" if protobuf => Encoding::Protobuf,
            _ => return None,
        };
        let shape = match (self.get("as"), self.get("g"), self.get("v")) {
            (None, ..) => Shape::Object,
            (Some("Table"), Some("meta.k8s.io"), Some("v1" | "v1beta1")) => Shape::Table,
            (
                Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                Some("meta.k8s.io"),
                Some("v1" | "v1beta1"),
            ) => Shape::Metadata,
            _ => return None,
        };
        // Tables and metadata alone are sent as text.
        let possible = encoding != Encoding::Protobuf || shape == Shape::Object;
        possible.then_some(Wanted { shape, encoding })
    }
}

const SERVED: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

/// Reads Accept: the alternative that the client likes best of those that can be served.
/// `protobuf` says whether the kind can.
pub(crate) fn wanted(headers: &HeaderMap, protobuf: bool) -> Result<Wanted, Status> {
    let values = headers.get_all(header::ACCEPT).into_iter();
    let mut ranges: Vec<Range<'_>> = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(','))
        .filter(|range| !range.trim().is_empty())
        .map(Range::parse)
        .collect();
    if ranges.is_empty() {
        return Ok(Wanted::default());
    }
    // Sorting keeps the client's order among equals.
    ranges.sort_by_key(|range| (std::cmp::Reverse(range.thousandths()), range.wildcards()));
    let best = ranges.iter().find_map(|range| range.wanted(protobuf));
    let served = if protobuf { SERVED } else { &SERVED[..2] };
    best.ok_or_else(|| Status::not_acceptable(served))
}

/// Refuses whoever wants nothing but a Table or metadata of what has neither.
pub(crate) fn as_object(headers: &HeaderMap, protobuf: bool) -> Result<(), Status> {
    match wanted(headers, protobuf)?.shape {
        Shape::Object => Ok(()),
        Shape::Table | Shape::Metadata => Err(Status::not_acceptable(SERVED)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(accept: &str) -> Option<(Shape, Encoding)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        wanted(&headers, false)
            .ok()
            .map(|wanted| (wanted.shape, wanted.encoding))
    }

    #[test]
    fn the_first_alternative_that_can_be_served_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(ask(table), Some((Shape::Table, Encoding::Json)));
        let typed = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(ask(typed), Some((Shape::Object, Encoding::Json)));
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(ask(partial), Some((Shape::Metadata, Encoding::Json)));
        assert_eq!(
            ask("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
            Some((Shape::Object, Encoding::Json))
        );
        assert_eq!(ask("*/*"), Some((Shape::Object, Encoding::Json)));
        assert_eq!(ask("text/html"), None);
        let weighed = "application/json;q=0.5, application/yaml;q=0.8, */*;q=0.8";
        assert_eq!(ask(weighed), Some((Shape::Object, Encoding::Yaml)));
        let browser = "text/html,application/xml;q=0.9,*/*;q=0.8";
        assert_eq!(ask(browser), Some((Shape::Object, Encoding::Json)));
        assert_eq!(wanted(&HeaderMap::new(), false).unwrap(), Wanted::default());
    }
}
