//! The versions of a definition. Upstream's internal type moves what all versions share to the top
//! level, and errors name that path.

use super::schema::{self, Rules, shown_schema};
use super::structural;
use crate::check;
use crate::shown::{GoField, GoType, shown};
use crate::tree::{is_empty, is_set, list, same, text, truth};
use machinery::field::{Error, Errors, Path};
use machinery::{Value, format};

/// Maximum number of selectable fields.
const SELECTABLE_MAX: usize = 8;

/// A spec, and which parts all of its versions share.
pub(super) struct Versions<'a> {
    pub all: &'a [Value],
    schema: bool,
    subresources: bool,
    columns: bool,
    selectable: bool,
}

impl<'a> Versions<'a> {
    pub(super) fn from_spec(spec: &'a Value) -> Self {
        let all = list(&spec["versions"]);
        let shared = |name: &str| {
            let first = all.first().map_or(&Value::Null, |v| &v[name]);
            !all.is_empty()
                && all
                    .iter()
                    .all(|v| same(&v[name], first) && is_set(&v[name]) == is_set(first))
        };
        Self {
            all,
            schema: shared("schema"),
            subresources: shared("subresources"),
            columns: shared("additionalPrinterColumns"),
            selectable: shared("selectableFields"),
        }
    }

    fn first(&self) -> &'a Value {
        self.all.first().unwrap_or(&Value::Null)
    }

    /// A schema that all versions share is reported at the top level.
    pub(super) fn check_schemas_there(&self, path: &Path, errors: &mut Errors) {
        if self.schema && is_set(&self.first()["schema"]["openAPIV3Schema"]) {
            return;
        }
        for (i, version) in self.all.iter().enumerate() {
            if self.schema || !is_set(&version["schema"]["openAPIV3Schema"]) {
                let at = path.child("versions");
                let at = at.index(i);
                let at = at.child("schema.openAPIV3Schema");
                errors.push(Error::required(&at, ""));
            }
        }
    }

    /// `lenient`: versions that may have too many selectable fields.
    pub(super) fn check(&self, rules: Rules, lenient: &[&str], path: &Path, errors: &mut Errors) {
        for (i, version) in self.all.iter().enumerate() {
            let at = path.child("versions");
            let at = at.index(i);
            let name = text(&version["name"]);
            let complaints = format::dns1035_label(name);
            if !complaints.is_empty() {
                errors.push(Error::invalid(
                    &at.child("name"),
                    name,
                    complaints.join(","),
                ));
            }
            self.check_version(version, rules, lenient, &at, errors);
        }
        let unique = self.all.iter().enumerate().all(|(i, v)| {
            !self.all[..i]
                .iter()
                .any(|other| text(&other["name"]) == text(&v["name"]))
        });
        let at = path.child("versions");
        if !unique {
            let detail = "must contain unique version names";
            errors.push(Error::invalid(&at, self.printed(), detail));
        }
        if self.all.iter().filter(|v| truth(&v["storage"])).count() != 1 {
            let detail = "must have exactly one version marked as storage version";
            errors.push(Error::invalid(&at, self.printed(), detail));
        }
        // Upstream's internal type also has the first version's name in the deprecated field
        // `version`.
        let first = text(&self.first()["name"]);
        let complaints = format::dns1035_label(first);
        if !first.is_empty() && !complaints.is_empty() {
            errors.push(Error::invalid(
                &path.child("version"),
                first,
                complaints.join(","),
            ));
        }
    }

    fn check_version(
        &self,
        version: &Value,
        rules: Rules,
        lenient: &[&str],
        path: &Path,
        errors: &mut Errors,
    ) {
        let warning = &version["deprecationWarning"];
        if is_set(warning) {
            let at = path.child("deprecationWarning");
            let complaints = deprecation_warning(truth(&version["deprecated"]), text(warning));
            check::form(complaints, text(warning), &at, errors);
        }
        if !self.schema {
            let has_status = is_set(&version["subresources"]["status"]);
            let given = &version["schema"]["openAPIV3Schema"];
            schema::check(given, has_status, rules, &path.child("schema"), errors);
        }
        if !self.subresources {
            check_subresources(
                &version["subresources"],
                &path.child("subresources"),
                errors,
            );
        }
        if !self.columns {
            check_columns(version, path, errors);
        }
        if !self.selectable && !list(&version["selectableFields"]).is_empty() {
            let at = path.child("selectableFields");
            let schema = &version["schema"]["openAPIV3Schema"];
            if self.schema || !is_set(schema) {
                let detail =
                    "may only be set when `version.schema.openAPIV3Schema` is not included";
                errors.push(Error::invalid(&at, "", detail));
            } else {
                let lenient = lenient.contains(&text(&version["name"]));
                check_selectable(version, schema, lenient, &at, errors);
            }
        }
    }

    /// Validates the parts that all versions share.
    pub(super) fn check_shared(
        &self,
        rules: Rules,
        lenient: bool,
        path: &Path,
        errors: &mut Errors,
    ) {
        let first = self.first();
        let schema = &first["schema"]["openAPIV3Schema"];
        if self.schema {
            let has_status = self
                .all
                .iter()
                .any(|v| is_set(&v["subresources"]["status"]));
            schema::check(schema, has_status, rules, &path.child("validation"), errors);
        }
        if self.subresources {
            check_subresources(&first["subresources"], &path.child("subresources"), errors);
        }
        if self.columns {
            check_columns(first, path, errors);
        }
        if self.selectable && !list(&first["selectableFields"]).is_empty() {
            let at = path.child("selectableFields");
            if self.schema && is_set(&first["schema"]) {
                check_selectable(first, schema, lenient, &at, errors);
            } else {
                let detail = "may only be set when validations.schema is included";
                errors.push(Error::invalid(&at, "", detail));
            }
        }
    }

    /// The versions as Kubernetes prints them: without the shared parts.
    fn printed(&self) -> Value {
        let each = |version: &Value| {
            let mut out = shown(version, VERSION);
            let schema = &version["schema"];
            if !self.schema && is_set(schema) {
                let whole = match &schema["openAPIV3Schema"] {
                    Value::Null => Value::Null,
                    other => shown_schema(other),
                };
                out["Schema"] = machinery::json::json!({"OpenAPIV3Schema": whole});
            }
            for (shared, go) in [
                (self.subresources, "Subresources"),
                (self.columns, "AdditionalPrinterColumns"),
                (self.selectable, "SelectableFields"),
            ] {
                if shared {
                    out[go] = Value::Null;
                }
            }
            out
        };
        if self.all.is_empty() {
            return Value::Null;
        }
        self.all.iter().map(each).collect()
    }
}

const VERSION: &[GoField] = &[
    GoField("name", "Name", GoType::Text),
    GoField("served", "Served", GoType::Bool),
    GoField("storage", "Storage", GoType::Bool),
    GoField("deprecated", "Deprecated", GoType::Bool),
    GoField("deprecationWarning", "DeprecationWarning", GoType::Plain),
    GoField("", "Schema", GoType::Plain),
    GoField(
        "subresources",
        "Subresources",
        GoType::Pointer(&[
            GoField("status", "Status", GoType::Plain),
            GoField(
                "scale",
                "Scale",
                GoType::Pointer(&[
                    GoField("specReplicasPath", "SpecReplicasPath", GoType::Text),
                    GoField("statusReplicasPath", "StatusReplicasPath", GoType::Text),
                    GoField("labelSelectorPath", "LabelSelectorPath", GoType::Plain),
                ]),
            ),
        ]),
    ),
    GoField(
        "additionalPrinterColumns",
        "AdditionalPrinterColumns",
        GoType::List(&[
            GoField("name", "Name", GoType::Text),
            GoField("type", "Type", GoType::Text),
            GoField("format", "Format", GoType::Text),
            GoField("description", "Description", GoType::Text),
            GoField("priority", "Priority", GoType::Int),
            GoField("jsonPath", "JSONPath", GoType::Text),
        ]),
    ),
    GoField(
        "selectableFields",
        "SelectableFields",
        GoType::List(&[GoField("jsonPath", "JSONPath", GoType::Text)]),
    ),
];

fn deprecation_warning(deprecated: bool, warning: &str) -> Vec<String> {
    if !deprecated {
        return vec!["can only be set for deprecated versions".to_owned()];
    }
    let mut found = Vec::new();
    if warning.len() > 256 {
        found.push("must be <= 256 characters long".to_owned());
    }
    if warning.is_empty() {
        found.push("must not be an empty string".to_owned());
    }
    let unprintable = |c: char| c.is_control() || (c.is_whitespace() && c != ' ');
    if let Some((i, _)) = warning.char_indices().find(|(_, c)| unprintable(*c)) {
        found.push(format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {i}"
        ));
    }
    found
}

/// A path must start with a dot.
fn check_path(value: &str, path: &Path, errors: &mut Errors) -> bool {
    if value.starts_with('.') {
        return true;
    }
    let detail = "must be a simple json path starting with .";
    errors.push(Error::invalid(path, value, detail));
    false
}

fn check_subresources(subresources: &Value, path: &Path, errors: &mut Errors) {
    let scale = &subresources["scale"];
    if !is_set(scale) {
        return;
    }
    let at = path.child("scale");
    for (name, root) in [
        ("specReplicasPath", ".spec"),
        ("statusReplicasPath", ".status"),
    ] {
        let (value, at) = (text(&scale[name]), at.child(name));
        if value.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if check_path(value, &at, errors) && !value.starts_with(&format!("{root}.")) {
            let detail = format!("should be a json path under {root}");
            errors.push(Error::invalid(&at, value, detail));
        }
    }
    let selector = text(&scale["labelSelectorPath"]);
    let at = path.child("scale.labelSelectorPath");
    if !selector.is_empty()
        && check_path(selector, &at, errors)
        && !selector.starts_with(".spec.")
        && !selector.starts_with(".status.")
    {
        let detail = "should be a json path under either .spec or .status";
        errors.push(Error::invalid(&at, selector, detail));
    }
}

fn check_columns(version: &Value, path: &Path, errors: &mut Errors) {
    const TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
    const FORMATS: &[&str] = &[
        "byte",
        "date",
        "date-time",
        "double",
        "float",
        "int32",
        "int64",
        "password",
    ];
    for (i, column) in list(&version["additionalPrinterColumns"])
        .iter()
        .enumerate()
    {
        let at = path.child("additionalPrinterColumns");
        let at = at.index(i);
        check::required(&column["name"], &at.child("name"), errors);
        let detail = format!("must be one of {}", TYPES.join(","));
        match text(&column["type"]) {
            "" => errors.push(Error::required(&at.child("type"), detail)),
            kind if TYPES.contains(&kind) => {}
            kind => errors.push(Error::invalid(&at.child("type"), kind, detail)),
        }
        let format = text(&column["format"]);
        if !format.is_empty() && !FORMATS.contains(&format) {
            let detail = format!("must be one of {}", FORMATS.join(","));
            errors.push(Error::invalid(&at.child("format"), format, detail));
        }
        let at = at.child("JSONPath");
        match text(&column["jsonPath"]) {
            "" => errors.push(Error::required(&at, "")),
            value => {
                check_path(value, &at, errors);
            }
        }
    }
}

fn check_selectable(
    version: &Value,
    schema: &Value,
    lenient: bool,
    path: &Path,
    errors: &mut Errors,
) {
    let mut seen: Vec<Vec<String>> = Vec::new();
    for (i, field) in list(&version["selectableFields"]).iter().enumerate() {
        let at = path.index(i);
        let (value, at) = (text(&field["jsonPath"]), at.child("jsonPath"));
        if value.is_empty() {
            errors.push(Error::required(&at, ""));
            continue;
        }
        let (parts, found) = match structural::find(value, schema, false) {
            Ok(found) => found,
            Err(why) => {
                let detail = format!("is an invalid path: {why}");
                errors.push(Error::invalid(&at, value, detail));
                continue;
            }
        };
        if parts.first().is_some_and(|p| p == "metadata") {
            let detail = "must not point to fields in metadata";
            errors.push(Error::invalid(&at, value, detail));
        }
        if !matches!(text(&found["type"]), "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(Error::invalid(&at, value, detail));
        }
        if seen.contains(&parts) {
            errors.push(Error::duplicate(&at, value));
        } else {
            seen.push(parts);
        }
    }
    if seen.len() > SELECTABLE_MAX && !lenient {
        errors.push(Error::too_many(path, seen.len(), SELECTABLE_MAX));
    }
}

/// Versions that already had too many selectable fields, unchanged.
pub(super) fn crowded<'a>(spec: &'a Value, was: &Value) -> Vec<&'a str> {
    let fields = |v: &Value| v["selectableFields"].clone();
    let versions = list(&spec["versions"]).iter();
    versions
        .filter(|version| {
            let old = list(&was["versions"])
                .iter()
                .find(|v| v["name"] == version["name"]);
            old.is_some_and(|old| {
                !is_empty(&fields(old))
                    && list(&fields(old)).len() > SELECTABLE_MAX
                    && same(&fields(old), &fields(version))
            })
        })
        .map(|version| text(&version["name"]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lines;
    use machinery::json::json;

    fn errors_of(versions: Value) -> Vec<String> {
        let spec = json!({"versions": versions});
        let (versions, path) = (Versions::from_spec(&spec), Path::new("spec"));
        let mut errors = Vec::new();
        versions.check_schemas_there(&path, &mut errors);
        versions.check(Rules::ALL, &[], &path, &mut errors);
        versions.check_shared(Rules::ALL, false, &path, &mut errors);
        lines(errors)
    }

    fn version(name: &str, extra: Value) -> Value {
        let mut version = json!({"name": name, "served": true, "storage": name == "v1",
            "schema": {"openAPIV3Schema": {"type": "object"}}});
        if let (Value::Object(version), Value::Object(extra)) = (&mut version, extra) {
            version.extend(extra);
        }
        version
    }

    #[test]
    fn errors_of_a_single_version_have_the_paths_of_v1beta1() {
        let none: [&str; 0] = [];
        assert_eq!(errors_of(json!([version("v1", json!({}))])), none);
        let bad = json!({"schema": {"openAPIV3Schema": {"type": "string"}}});
        assert_eq!(
            errors_of(json!([version("v1", bad.clone())])),
            [
                "spec.validation.openAPIV3Schema.type: Invalid value: \"string\": must be object at the root"
            ]
        );
        assert_eq!(
            errors_of(json!([version("v1", bad), version("v2", json!({}))])),
            [
                "spec.versions[0].schema.openAPIV3Schema.type: Invalid value: \"string\": must be object at the root"
            ]
        );
    }

    #[test]
    fn exactly_one_version_is_stored() {
        let found = errors_of(json!([version("v2", json!({}))]));
        assert_eq!(
            found,
            [
                "spec.versions: Invalid value: [{\"Name\":\"v2\",\"Served\":true,\"Storage\":false,\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}]: must have exactly one version marked as storage version"
            ]
        );
    }

    #[test]
    fn columns_scale_and_selectable_fields_have_paths() {
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {"a": {"type": "string"}}}}}});
        for (extra, line) in [
            (
                json!({"additionalPrinterColumns": [{"name": "A", "type": "x", "jsonPath": ".a"}]}),
                "spec.additionalPrinterColumns[0].type: Invalid value: \"x\": must be one of boolean,date,integer,number,string",
            ),
            (
                json!({"additionalPrinterColumns": [{"name": "A", "type": "string", "jsonPath": "a"}]}),
                "spec.additionalPrinterColumns[0].JSONPath: Invalid value: \"a\": must be a simple json path starting with .",
            ),
            (
                json!({"subresources": {"scale": {"specReplicasPath": ".x", "statusReplicasPath": ".status.r"}}}),
                "spec.subresources.scale.specReplicasPath: Invalid value: \".x\": should be a json path under .spec",
            ),
            (
                json!({"schema": schema, "selectableFields": [{"jsonPath": ".spec.a"}, {"jsonPath": ".spec.a"}]}),
                "spec.selectableFields[1].jsonPath: Duplicate value: \".spec.a\"",
            ),
            (
                json!({"schema": schema, "selectableFields": [{"jsonPath": ".spec"}]}),
                "spec.selectableFields[0].jsonPath: Invalid value: \".spec\": must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
            ),
        ] {
            assert_eq!(errors_of(json!([version("v1", extra)])), [line]);
        }
    }
}
