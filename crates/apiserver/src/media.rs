//! Media types: the encoding of request bodies, and content negotiation of responses.

use http::{HeaderMap, HeaderValue, header};
use machinery::Status;

use crate::Resource;

pub(crate) use request::Encoding;

/// The encoding of a request body.
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
    /// Parses Content-Type; the default is JSON.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Result<Self, Status> {
        match content_type(headers).as_str() {
            "" | "application/json" => Ok(Self::Json),
            "application/yaml" => Ok(Self::Yaml),
            "application/vnd.kubernetes.protobuf" => Ok(Self::Protobuf),
            _ => Err(Status::unsupported_media_type(BODIES)),
        }
    }
}

/// The media type of the body, in lower case, without parameters. Invalid values are returned
/// unchanged, and match no known type.
pub(crate) fn content_type(headers: &HeaderMap) -> String {
    let text = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let text = text.unwrap_or_default();
    let media = text.split(';').next().unwrap_or_default().trim();
    let media = if media.is_empty() { text } else { media };
    media.to_ascii_lowercase()
}

/// The shape of objects in responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ResponseShape {
    /// The objects themselves.
    #[default]
    Object,
    /// A Table of printed columns.
    Table,
    /// Only metadata: PartialObjectMetadata, or its list.
    Metadata { of_list: bool },
}

/// The negotiated form of the response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NegotiatedForm {
    pub(crate) shape: ResponseShape,
    pub(crate) encoding: Encoding,
    /// Whether a Table or metadata is requested in v1beta1.
    pub(crate) beta: bool,
}

impl NegotiatedForm {
    /// The apiVersion of Tables and PartialObjectMetadata.
    pub(crate) fn meta_version(self) -> &'static str {
        if self.beta {
            "meta.k8s.io/v1beta1"
        } else {
            "meta.k8s.io/v1"
        }
    }
}

/// One alternative of an Accept header.
struct Range<'a> {
    media: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Range<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters = parts.filter_map(|part| part.split_once('=')).collect();
        Self { media, parameters }
    }

    fn get(&self, key: &str) -> Option<&'a str> {
        self.parameters
            .iter()
            .find(|(mine, _)| *mine == key)
            .map(|(_, value)| value.trim_matches('"'))
    }

    /// Its quality weight, in thousandths.
    fn thousandths(&self) -> u32 {
        let weight = self.get("q").and_then(|q| q.parse::<f32>().ok());
        (weight.unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u32
    }

    fn wildcards(&self) -> usize {
        self.media.matches('*').count()
    }

    fn wanted(&self, protobuf: bool) -> Option<NegotiatedForm> {
        let shape = match (self.get("as"), self.get("g"), self.get("v")) {
            (None, None, None) => ResponseShape::Object,
            (Some(kind), Some("meta.k8s.io"), Some("v1" | "v1beta1")) => match kind {
                "Table" => ResponseShape::Table,
                "PartialObjectMetadata" => ResponseShape::Metadata { of_list: false },
                "PartialObjectMetadataList" => ResponseShape::Metadata { of_list: true },
                _ => return None,
            },
            _ => return None,
        };
        let encoding = match self.media {
            "application/json" | "*/*" | "application/*" | "*" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            // Metadata of every kind can be protobuf; a Table's cells are untyped, so a Table
            // cannot.
            "application/vnd.kubernetes.protobuf" => match shape {
                ResponseShape::Metadata { .. } => Encoding::Protobuf,
                ResponseShape::Object if protobuf => Encoding::Protobuf,
                _ => return None,
            },
            _ => return None,
        };
        let streams = self.get("stream").unwrap_or_default();
        let unknown = match streams {
            "" => false,
            "watch" => encoding == Encoding::Yaml,
            _ => true,
        };
        if unknown {
            return None;
        }
        let beta = shape != ResponseShape::Object && self.get("v") == Some("v1beta1");
        Some(NegotiatedForm {
            shape,
            encoding,
            beta,
        })
    }
}

const SERVED: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

const STREAMED: &str =
    ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

/// Negotiates by Accept: the client's preferred alternative that can be served. `protobuf` says
/// whether the kind can be encoded so. Upstream's router for built-in kinds knows media types by
/// exact name only; `many` adds the streaming types of lists and watches.
pub(crate) fn wanted(
    headers: &HeaderMap,
    protobuf: bool,
    many: bool,
) -> Result<NegotiatedForm, Status> {
    let mut all = headers.get_all(header::ACCEPT).into_iter();
    if let (Some(only), None) = (all.next(), all.next())
        && only == "application/json"
    {
        return Ok(NegotiatedForm::default());
    }
    let Some(ranges) = ranges(headers) else {
        return Ok(NegotiatedForm::default());
    };
    if protobuf {
        let streams = if many { STREAMED } else { "" };
        check_routed(&ranges, SERVED, streams)?;
    }
    let best = ranges.iter().find_map(|range| range.wanted(protobuf));
    best.ok_or_else(|| Status::not_acceptable(SERVED))
}

/// The encoding of a non-resource document; `routed` says whether upstream serves it by a router.
pub(crate) fn of_document(headers: &HeaderMap, routed: bool) -> Result<Encoding, Status> {
    let Some(ranges) = ranges(headers) else {
        return Ok(Encoding::Json);
    };
    if routed {
        check_routed(&ranges, SERVED, "")?;
    }
    plain(&ranges).ok_or_else(|| Status::not_acceptable(SERVED))
}

/// 406 unless the client accepts this media type, where nothing else is served.
pub(crate) fn takes(headers: &HeaderMap, served: &str) -> Result<(), Status> {
    match ranges(headers) {
        None => Ok(()),
        Some(ranges) => check_routed(&ranges, &[served], ""),
    }
}

/// The router requires one of its media types by name.
fn check_routed(ranges: &[Range<'_>], served: &[&str], streams: &str) -> Result<(), Status> {
    let routed = |range: &Range<'_>| range.media == "*/*" || served.contains(&range.media);
    if ranges.iter().any(routed) {
        return Ok(());
    }
    let served = served.join(", ");
    let more = format!("\n\nAvailable representations: {served}{streams}");
    Err(Status::refused_by_router(406, &more))
}

/// The alternatives of an Accept header, the best first; `None` when there is no such header.
fn ranges(headers: &HeaderMap) -> Option<Vec<Range<'_>>> {
    let values = headers.get_all(header::ACCEPT).into_iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let mut texts = texts.filter(|text| !text.is_empty()).peekable();
    texts.peek()?;
    let mut ranges: Vec<Range<'_>> = texts
        .flat_map(|text| text.split(','))
        .map(|range| Range::parse(range.trim()))
        .collect();
    // The sort is stable: equal weights keep the client's order.
    ranges.sort_by_key(|range| (std::cmp::Reverse(range.thousandths()), range.wildcards()));
    Some(ranges)
}

/// The encoding of an object that is neither Table nor metadata.
fn plain(ranges: &[Range<'_>]) -> Option<Encoding> {
    let mut wanted = ranges.iter().filter_map(|range| range.wanted(true));
    let plain = wanted.find(|wanted| wanted.shape == ResponseShape::Object)?;
    Some(plain.encoding)
}

/// The encoding of a Status for this Accept header; `None` if none of its types can be served: then
/// the Status is JSON for people.
pub(crate) fn of_status(accept: Option<&HeaderValue>) -> Option<Encoding> {
    let mut headers = HeaderMap::new();
    headers.extend(accept.map(|accept| (header::ACCEPT, accept.clone())));
    match ranges(&headers) {
        Some(ranges) => plain(&ranges),
        None => Some(Encoding::Json),
    }
}

/// Rejects list metadata for a single object, and the other way around.
pub(crate) fn check_list(
    wanted: NegotiatedForm,
    list: bool,
    resource: &Resource,
) -> Result<(), Status> {
    let ResponseShape::Metadata { of_list } = wanted.shape else {
        return Ok(());
    };
    if of_list == list {
        return Ok(());
    }
    let (asked, is) = if list {
        ("PartialObjectMetadata", "a list")
    } else {
        ("PartialObjectMetadataList", "not a list")
    };
    let suffix = if list { "List" } else { "" };
    let (package, kind) = match resource.custom {
        true => ("unstructured", "Unstructured"),
        false => (go_package(resource), resource.kind.names().kind.as_str()),
    };
    let go_type = format!("{package}.{kind}{suffix}");
    Err(Status::not_acceptable_as(format!(
        "you requested {asked}, but the requested object is {is} (*{go_type})"
    )))
}

/// Rejects a request for only a Table or metadata of an object that has neither.
pub(crate) fn as_object(headers: &HeaderMap, protobuf: bool) -> Result<(), Status> {
    match wanted(headers, protobuf, false)?.shape {
        ResponseShape::Object => Ok(()),
        ResponseShape::Table | ResponseShape::Metadata { .. } => {
            Err(Status::not_acceptable(SERVED))
        }
    }
}

/// The Go package in which upstream has the kind's types, for error messages.
pub(crate) fn go_package(resource: &Resource) -> &str {
    match resource.group.as_str() {
        "" | "events.k8s.io" => "core",
        group => group.split('.').next().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiated(accept: &str) -> Option<(ResponseShape, Encoding)> {
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, accept.parse().unwrap());
        wanted(&headers, false, false)
            .ok()
            .map(|wanted| (wanted.shape, wanted.encoding))
    }

    #[test]
    fn the_first_alternative_that_can_be_served_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(
            negotiated(table),
            Some((ResponseShape::Table, Encoding::Json))
        );
        let typed = "application/vnd.kubernetes.protobuf,application/json";
        assert_eq!(
            negotiated(typed),
            Some((ResponseShape::Object, Encoding::Json))
        );
        let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
        assert_eq!(
            negotiated(partial),
            Some((ResponseShape::Metadata { of_list: true }, Encoding::Json))
        );
        assert_eq!(
            negotiated("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"),
            Some((ResponseShape::Object, Encoding::Json))
        );
        assert_eq!(
            negotiated("*/*"),
            Some((ResponseShape::Object, Encoding::Json))
        );
        assert_eq!(negotiated("text/html"), None);
        let weighed = "application/json;q=0.5, application/yaml;q=0.8, */*;q=0.8";
        assert_eq!(
            negotiated(weighed),
            Some((ResponseShape::Object, Encoding::Yaml))
        );
        let browser = "text/html,application/xml;q=0.9,*/*;q=0.8";
        assert_eq!(
            negotiated(browser),
            Some((ResponseShape::Object, Encoding::Json))
        );
        assert_eq!(
            wanted(&HeaderMap::new(), false, false).unwrap(),
            NegotiatedForm::default()
        );
        let message = "application/vnd.kubernetes.protobuf;g=meta.k8s.io;v=v1;as=";
        assert_eq!(
            negotiated(&format!("{message}PartialObjectMetadata")),
            Some((
                ResponseShape::Metadata { of_list: false },
                Encoding::Protobuf
            ))
        );
        assert_eq!(negotiated(&format!("{message}Table")), None);
    }
}
