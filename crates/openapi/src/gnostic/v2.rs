//! The fields of OpenAPI v2 messages.

use super::{Form, Message};

pub(super) static DOCUMENT: Message = Message::Fields {
    fields: &[
        ("swagger", 1, Form::Text),
        ("info", 2, Form::Message(&INFO)),
        ("paths", 8, Form::Named(2, &PATH)),
        ("definitions", 9, Form::Named(1, &SCHEMA)),
        ("parameters", 10, Form::Named(1, &PARAMETER)),
        ("security", 12, Form::Requirements),
        ("securityDefinitions", 13, Form::Named(1, &SECURITY_ITEM)),
    ],
    extensions: 16,
};

static INFO: Message = Message::Fields {
    fields: &[
        ("title", 1, Form::Text),
        ("version", 2, Form::Text),
        ("description", 3, Form::Text),
    ],
    extensions: 7,
};

static PATH: Message = Message::Fields {
    fields: &[
        ("get", 2, Form::Message(&OPERATION)),
        ("put", 3, Form::Message(&OPERATION)),
        ("post", 4, Form::Message(&OPERATION)),
        ("delete", 5, Form::Message(&OPERATION)),
        ("options", 6, Form::Message(&OPERATION)),
        ("head", 7, Form::Message(&OPERATION)),
        ("patch", 8, Form::Message(&OPERATION)),
        ("parameters", 9, Form::Messages(&PARAMETER_ITEM)),
    ],
    extensions: 10,
};

static OPERATION: Message = Message::Fields {
    fields: &[
        ("tags", 1, Form::Texts),
        ("summary", 2, Form::Text),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("produces", 6, Form::Texts),
        ("consumes", 7, Form::Texts),
        ("parameters", 8, Form::Messages(&PARAMETER_ITEM)),
        ("responses", 9, Form::Named(1, &RESPONSE_VALUE)),
        ("schemes", 10, Form::Texts),
        ("deprecated", 11, Form::Flag),
    ],
    extensions: 13,
};

static RESPONSE: Message = Message::Fields {
    fields: &[
        ("description", 1, Form::Text),
        ("schema", 2, Form::Message(&ITEMS)),
    ],
    extensions: 5,
};

static BODY: Message = Message::Fields {
    fields: &[
        ("description", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 5, Form::Message(&SCHEMA)),
    ],
    extensions: 6,
};

static QUERY: Message = Message::Fields {
    fields: &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 6, Form::Text),
        ("format", 7, Form::Text),
        ("uniqueItems", 20, Form::Flag),
    ],
    extensions: 23,
};

static IN_PATH: Message = Message::Fields {
    fields: &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 5, Form::Text),
        ("format", 6, Form::Text),
        ("uniqueItems", 19, Form::Flag),
    ],
    extensions: 22,
};

static SCHEMA: Message = Message::Fields {
    fields: &[
        ("$ref", 1, Form::Text),
        ("format", 2, Form::Text),
        ("title", 3, Form::Text),
        ("description", 4, Form::Text),
        ("default", 5, Form::Any),
        ("multipleOf", 6, Form::Double),
        ("maximum", 7, Form::Double),
        ("exclusiveMaximum", 8, Form::Flag),
        ("minimum", 9, Form::Double),
        ("exclusiveMinimum", 10, Form::Flag),
        ("maxLength", 11, Form::Integer),
        ("minLength", 12, Form::Integer),
        ("pattern", 13, Form::Text),
        ("maxItems", 14, Form::Integer),
        ("minItems", 15, Form::Integer),
        ("uniqueItems", 16, Form::Flag),
        ("maxProperties", 17, Form::Integer),
        ("minProperties", 18, Form::Integer),
        ("required", 19, Form::Texts),
        ("enum", 20, Form::Anys),
        ("additionalProperties", 21, Form::MessageOrFlag(&SCHEMA)),
        ("type", 22, Form::OneOrMore),
        ("items", 23, Form::Message(&ITEMS)),
        ("allOf", 24, Form::Messages(&SCHEMA)),
        ("properties", 25, Form::Named(1, &SCHEMA)),
        ("example", 30, Form::Any),
    ],
    extensions: 31,
};

static RESPONSE_VALUE: Message = Message::Choice(|_| (1, &RESPONSE));

/// A schema inside a message of its own.
static ITEMS: Message = Message::Choice(|_| (1, &SCHEMA));

static PARAMETER_ITEM: Message = Message::Choice(|object| {
    if object.contains_key("$ref") {
        (2, &REFERENCE)
    } else {
        (1, &PARAMETER)
    }
});

static PARAMETER: Message = Message::Choice(|object| match object.get("in") {
    Some(place) if place == "body" => (1, &BODY),
    _ => (2, &NO_BODY),
});

static NO_BODY: Message = Message::Choice(|object| match object.get("in") {
    Some(place) if place == "path" => (4, &IN_PATH),
    _ => (3, &QUERY),
});

static REFERENCE: Message = Message::Fields {
    fields: &[("$ref", 1, Form::Text)],
    extensions: 2,
};

static SECURITY_ITEM: Message = Message::Choice(|_| (2, &API_KEY));

static API_KEY: Message = Message::Fields {
    fields: &[
        ("type", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("description", 4, Form::Text),
    ],
    extensions: 5,
};
