//! Label and field selectors of a request, evaluated on the stored objects' headers.

use machinery::{Status, fields, labels};

use crate::{Resource, Stored, pipeline::Request, query::Query};

/// The selectors of a request.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    labels: labels::Selector,
    fields: fields::Selector,
}

/// The message for an unsupported field selector.
fn unknown(resource: &Resource, field: &str) -> String {
    let field_text = machinery::text::quote(field);
    match resource.kind.names().kind.as_str() {
        "Job" => format!("field label {field_text} not supported for Job"),
        "ResourceSlice" => format!(
            "field label not supported for {}, Kind=ResourceSlice: {field}",
            resource.api_version
        ),
        _ if !resource.custom && resource.kind.selectable_names().is_empty() => format!(
            "{field_text} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ),
        _ => format!("field label not supported: {field}"),
    }
}

impl Selection {
    /// Parses the selectors of a request; rejects fields that the kind does not support.
    pub(crate) fn from_request(resource: &Resource, request: &Request) -> Result<Self, Status> {
        let mut selection = Self::parse(resource, &request.query)?;
        // The path of a watch may name one object, and only that one has been authorized.
        let name = request.info.resource.as_ref().map(|subject| &subject.name);
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            selection.fields.require("metadata.name", name);
        }
        Ok(selection)
    }

    fn parse(resource: &Resource, query: &Query) -> Result<Self, Status> {
        let labels = labels::Selector::parse(query.get("labelSelector").unwrap_or_default());
        let fields = fields::Selector::parse(query.get("fieldSelector").unwrap_or_default());
        let selection = Self {
            labels: labels.map_err(Status::bad_request)?,
            fields: fields.map_err(Status::bad_request)?,
        };
        let offered = resource.kind.selectable_names();
        let known = |field: &str| match field {
            "metadata.name" => true,
            // A cluster-scoped kind that lists its selectable fields does not support the
            // namespace.
            "metadata.namespace" => resource.namespaced() || offered.is_empty(),
            field => offered.contains(&field),
        };
        match selection
            .fields
            .terms()
            .iter()
            .find(|term| !known(&term.field))
        {
            Some(term) => Err(Status::bad_request(unknown(resource, &term.field))),
            None => Ok(selection),
        }
    }

    /// Whether every object is selected.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one selected name, if the selectors require one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.exact("metadata.name")
    }

    /// Whether this object is selected.
    pub(crate) fn matches(&self, object: &Stored) -> bool {
        (self.labels.is_empty() || self.labels.matches(|key| object.label(key)))
            && (self.fields.is_empty() || self.fields.matches(|field| object.field(field)))
    }
}
