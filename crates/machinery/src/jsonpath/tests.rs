//! Templates on a small tree, with client-go's results.

use crate::json::json;
use crate::{Value, text};

use super::*;

fn shown(found: &Found<'_, Value>) -> String {
    match found {
        Found::Part(value @ (Value::Object(_) | Value::Array(_))) => text::json(value),
        Found::Part(value) => text::plain(value),
        Found::Text(text) => text.clone(),
        Found::Int(i) => i.to_string(),
        Found::Float(f) => text::float(*f),
        Found::Bool(b) => b.to_string(),
    }
}

fn render(template: Template, tree: &Value) -> String {
    match template.find(tree) {
        Err(why) => format!("error: {why}"),
        Ok(found) => found
            .iter()
            .map(|part| part.iter().map(shown).collect::<Vec<_>>().join(" "))
            .collect(),
    }
}

fn tree() -> Value {
    json!({"kind": "List", "a.b": "dotted", "nothing": null, "empty": [], "bad": [{"n": 1.5}],
        "items": [
            {"name": "a", "n": 1, "ok": true, "labels": {"x.y": "z"}, "tags": ["p", "q"]},
            {"name": "b", "n": 5, "ok": false, "tags": ["r"]},
            {"name": "c", "n": 9, "ok": true, "tags": []}]})
}

#[test]
fn json_paths_evaluate_as_in_kubernetes() {
    for (template, expected) in [
        ("{.kind}", "List"),
        ("kind", "kind"),
        ("<{.kind}>", "<List>"),
        ("{@.kind}{$.kind}", "ListList"),
        ("{.items[0].name}", "a"),
        ("{.items[-1].name}", "c"),
        ("{.items[*].name}", "a b c"),
        ("{.items.*.n}", "1 5 9"),
        ("{.items[0].labels.x\\.y}", "z"),
        ("{.items[0].labels['x\\.y']}", "z"),
        ("{.items[0].labels['x.y']}", ""),
        ("{['kind']}", "List"),
        ("{['kind', 'a\\.b']}", "List dotted"),
        ("{.items[0,2].name}", "a c"),
        ("{.items[0:2].name}", "a b"),
        ("{.items[:2].name}", "a b"),
        ("{.items[1:].name}", "b c"),
        ("{.items[::2].name}", "a c"),
        ("{.items[-2:-1].name}", "b"),
        ("{.items[1:1].name}", ""),
        ("{..name}", "a b c"),
        (
            "{.items[*].tags[0]}",
            "error: array index out of bounds: index 0, length 0",
        ),
        (
            "{.items[3].name}",
            "error: array index out of bounds: index 3, length 3",
        ),
        (
            "{.items[-4].name}",
            "error: array index out of bounds: index -1, length 3",
        ),
        (
            "{.items[2:1].name}",
            "error: starting index 2 is greater than ending index 1",
        ),
        ("{.items[::0].name}", "error: step must be > 0"),
        ("{.kind[0]}", "error: string is not array or slice"),
        ("{.nothing[0]}", ""),
        ("{.nothing}", "<nil>"),
        ("{.missing.more}", ""),
        ("{.items[?(@.n>1)].name}", "b c"),
        ("{.items[?(@.n<=5)].name}", "a b"),
        ("{.items[?(@.n!=5)].name}", "a c"),
        ("{.items[?(@.name==\"b\")].n}", "5"),
        ("{.items[?(@.name=='b')].n}", "5"),
        ("{.items[?(@.ok==true)].name}", "a c"),
        ("{.items[?(@.labels)].name}", "a"),
        ("{.items[?(@.tags[1])].name}", "a b c"),
        ("{.items[?(@.name=='(a)')].n}", ""),
        (
            "{.items[?(@.n==1.0)].name}",
            "error: incompatible types for comparison",
        ),
        (
            "{.items[?(@.ok>true)].name}",
            "error: invalid type for comparison",
        ),
        (
            "{.items[?(@.n=1)].name}",
            "error: unrecognized filter operator =",
        ),
        (
            "{.items[?(@.tags[*]=='r')].n}",
            "error: can only compare one element at a time",
        ),
        ("{.bad[?(@.n>1.0)].n}", "1.5"),
        (
            "{.kind[?(@.n)]}",
            "error: what is no array or slice cannot be filtered",
        ),
        ("{range .items[*]}{.name}={.n};{end}!", "a=1;b=5;c=9;!"),
        (
            "{range .items[*]}{range .tags[*]}{@},{end};{end}",
            "p,q,;r,;;",
        ),
        ("{range .empty[*]}{.name}{end}!", "!"),
        ("{\"a\\tb\\u00e9\"}{'c'}", "a\tb\u{e9}c"),
        ("{5}{1.5}{true}", "51.5true"),
        ("{end}", "error: not in range, nothing to end"),
        ("{nope}", "error: unrecognized identifier nope"),
    ] {
        let template = Template::parse(template).unwrap_or_else(|why| panic!("{template}: {why}"));
        let shown_as = format!("{template:?}");
        assert_eq!(render(template, &tree()), expected, "{shown_as}");
    }
}

#[test]
fn a_field_may_have_to_be_there() {
    let template = Template::path(".items[*].labels").unwrap();
    assert_eq!(
        render(template.clone().needs_all(), &tree()),
        "{\"x.y\":\"z\"}"
    );
    let template = Template::path(".items[*].none").unwrap();
    assert_eq!(
        render(template.needs_all(), &tree()),
        "error: none is not found"
    );
}

#[test]
fn invalid_json_paths_are_refused() {
    for (template, why) in [
        ("{.a", "unclosed action"),
        ("{.a[0", "unterminated array"),
        ("{.a[x]}", "invalid array index x"),
        ("{.a[1:2:3:4]}", "invalid array index 1:2:3:4"),
        ("{.a[\"b\"]}", "invalid array index \"b\""),
        (
            "{.a[99999999999999999999]}",
            "array index 99999999999999999999 is not a number",
        ),
        ("{.a[?(@.b==1]}", "unterminated filter"),
        ("{.a[?(@.b==1)}", "unclosed array expect ]"),
        ("{...b}{....c}", "invalid multiple recursive descent"),
        ("{..*}", "unrecognized character in action: U+002A '*'"),
        ("{\"a}", "unterminated quoted string"),
        ("{\"\\q\"}", "unquote string \"\\q\" error invalid syntax"),
        ("{-}", "cannot parse number -"),
    ] {
        let refused = Template::parse(template).unwrap_err();
        assert_eq!(refused.to_string(), why, "{template}");
    }
}
