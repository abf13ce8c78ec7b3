//! Which objects a client wants to see: label and field selectors, answered from headers.

use machinery::{Status, fields, labels};

use crate::{Resource, Stored, pipeline::Request, query::Query};

/// The selectors of a request.
#[derive(Debug, Clone)]
pub(crate) struct Selection {
    labels: labels::Selector,
    fields: fields::Selector,
}

/// The sentence about a field that cannot be selected by.
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
    /// Reads what a request selects; refuses fields that the kind does not offer.
    pub(crate) fn of(resource: &Resource, request: &Request) -> Result<Self, Status> {
        let mut selection = Self::parse(resource, &request.query)?;
        // A watch's path can name one object, and only that one has been authorized.
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
            // A kind that says what it offers does not offer what it does not have.
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

    /// Whether every object is wanted.
    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name that is wanted, if the selectors say so.
    pub(crate) fn name(&self) -> Option<&str> {
        self.fields.exact("metadata.name")
    }

    /// Whether this object is wanted.
    pub(crate) fn matches(&self, object: &Stored) -> bool {
        (self.labels.is_empty() || self.labels.matches(|key| object.label(key)))
            && (self.fields.is_empty() || self.fields.matches(|field| object.field(field)))
    }
}
