//! The fields of OpenAPI v3 messages.

use super::{Form, Message};

pub(super) static DOCUMENT: Message = Message::Fields {
    fields: &[
        ("openapi", 1, Form::Text),
        ("info", 2, Form::Message(&INFO)),
        ("paths", 4, Form::Named(1, &PATH)),
        ("components", 5, Form::Message(&COMPONENTS)),
    ],
    extensions: 9,
};

static INFO: Message = Message::Fields {
    fields: &[
        ("title", 1, Form::Text),
        ("description", 2, Form::Text),
        ("version", 6, Form::Text),
    ],
    extensions: 7,
};

static PATH: Message = Message::Fields {
    fields: &[
        ("get", 4, Form::Message(&OPERATION)),
        ("put", 5, Form::Message(&OPERATION)),
        ("post", 6, Form::Message(&OPERATION)),
        ("delete", 7, Form::Message(&OPERATION)),
        ("options", 8, Form::Message(&OPERATION)),
        ("head", 9, Form::Message(&OPERATION)),
        ("patch", 10, Form::Message(&OPERATION)),
        ("parameters", 13, Form::Messages(&PARAMETER_ITEM)),
    ],
    extensions: 14,
};

static OPERATION: Message = Message::Fields {
    fields: &[
        ("tags", 1, Form::Texts),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("parameters", 6, Form::Messages(&PARAMETER_ITEM)),
        ("requestBody", 7, Form::Message(&BODY_ITEM)),
        ("responses", 8, Form::Named(2, &RESPONSE_ITEM)),
        ("deprecated", 10, Form::Flag),
    ],
    extensions: 13,
};

static PARAMETER_ITEM: Message = Message::Choice(|_| (1, &PARAMETER));

static PARAMETER: Message = Message::Fields {
    fields: &[
        ("name", 1, Form::Text),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 10, Form::Message(&SCHEMA_ITEM)),
    ],
    extensions: 14,
};

static BODY_ITEM: Message = Message::Choice(|_| (1, &BODY));

static BODY: Message = Message::Fields {
    fields: &[
        ("description", 1, Form::Text),
        ("content", 2, Form::Named(1, &MEDIA)),
        ("required", 3, Form::Flag),
    ],
    extensions: 4,
};

static RESPONSE_ITEM: Message = Message::Choice(|_| (1, &RESPONSE));

static RESPONSE: Message = Message::Fields {
    fields: &[
        ("description", 1, Form::Text),
        ("content", 3, Form::Named(1, &MEDIA)),
    ],
    extensions: 5,
};

static MEDIA: Message = Message::Fields {
    fields: &[("schema", 1, Form::Message(&SCHEMA_ITEM))],
    extensions: 5,
};

static COMPONENTS: Message = Message::Fields {
    fields: &[
        ("schemas", 1, Form::Named(1, &SCHEMA_ITEM)),
        ("securitySchemes", 7, Form::Named(1, &SECURITY_ITEM)),
    ],
    extensions: 10,
};

static SECURITY_ITEM: Message = Message::Choice(|_| (1, &SECURITY));

static SECURITY: Message = Message::Fields {
    fields: &[
        ("type", 1, Form::Text),
        ("description", 2, Form::Text),
        ("name", 3, Form::Text),
        ("in", 4, Form::Text),
    ],
    extensions: 9,
};

static SCHEMA_ITEM: Message = Message::Choice(|object| {
    if object.contains_key("$ref") {
        (2, &REFERENCE)
    } else {
        (1, &SCHEMA)
    }
});

static REFERENCE: Message = Message::Fields {
    fields: &[("$ref", 1, Form::Text), ("description", 3, Form::Text)],
    extensions: 4,
};

static ITEMS: Message = Message::Choice(|_| (1, &SCHEMA_ITEM));

static SCHEMA: Message = Message::Fields {
    fields: &[
        ("nullable", 1, Form::Flag),
        ("example", 7, Form::Any),
        ("title", 9, Form::Text),
        ("multipleOf", 10, Form::Double),
        ("maximum", 11, Form::Double),
        ("exclusiveMaximum", 12, Form::Flag),
        ("minimum", 13, Form::Double),
        ("exclusiveMinimum", 14, Form::Flag),
        ("maxLength", 15, Form::Integer),
        ("minLength", 16, Form::Integer),
        ("pattern", 17, Form::Text),
        ("maxItems", 18, Form::Integer),
        ("minItems", 19, Form::Integer),
        ("uniqueItems", 20, Form::Flag),
        ("maxProperties", 21, Form::Integer),
        ("minProperties", 22, Form::Integer),
        ("required", 23, Form::Texts),
        ("enum", 24, Form::Anys),
        ("type", 25, Form::Text),
        ("allOf", 26, Form::Messages(&SCHEMA_ITEM)),
        ("oneOf", 27, Form::Messages(&SCHEMA_ITEM)),
        ("anyOf", 28, Form::Messages(&SCHEMA_ITEM)),
        ("not", 29, Form::Message(&SCHEMA)),
        ("items", 30, Form::Message(&ITEMS)),
        ("properties", 31, Form::Named(1, &SCHEMA_ITEM)),
        (
            "additionalProperties",
            32,
            Form::MessageOrFlag(&SCHEMA_ITEM),
        ),
        ("default", 33, Form::Scalar),
        ("description", 34, Form::Text),
        ("format", 35, Form::Text),
    ],
    extensions: 36,
};
