//! The language by examples: values, errors, messages of the checker, and cost.

use std::{collections::HashMap, sync::Arc};

use cel::{
    Decl, DeclKind, Env, Field, ListSemantics, PER_CALL_LIMIT, Program, Type, Value, compile,
    cost::estimate::estimate,
};
use machinery::json;

fn env() -> Env {
    Env::new().variable("object", Type::Dyn)
}

fn object() -> json::Value {
    json::json!({
        "metadata": {"name": "web", "labels": {"app": "web", "tier": "front"}},
        "spec": {"replicas": 3, "ratio": 0.5, "names": ["a", "b", "c"], "empty": [], "none": null}
    })
}

/// The result of an expression as text: a value's display, or `error: message`.
fn evaluated(text: &str) -> String {
    let env = env();
    let checked = match compile(&env, text) {
        Ok(checked) => checked,
        Err(issues) => return format!("issue: {}", issues.issues[0].message),
    };
    let program = match Program::new(&env, &checked) {
        Ok(program) => program,
        Err(error) => return format!("error: {}", error.message),
    };
    let object = object();
    let variables = [Value::from_json(&object, None).expect("plain JSON")];
    let evaluation = program.evaluate(&variables, PER_CALL_LIMIT);
    match evaluation.result {
        Ok(value) => match value.to_json() {
            Ok(json) => json.to_string(),
            Err(_) => value.display(),
        },
        Err(error) => format!("error: {}", error.message),
    }
}

#[track_caller]
fn assert_table(table: &[(&str, &str)]) {
    let failures: Vec<String> = table
        .iter()
        .map(|(text, wanted)| (text, wanted, evaluated(text)))
        .filter(|(_, wanted, found)| *wanted != found)
        .map(|(text, wanted, found)| format!("{text}\n    wanted {wanted}\n    found  {found}"))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn operators_and_literals() {
    assert_table(&[
        ("1 + 2 * 3", "7"),
        ("-(1 - 3)", "2"),
        ("7 / 2", "3"),
        ("-7 % 3", "-1"),
        ("0x1F", "31"),
        ("1u + 2u", "3"),
        ("1.5 * 2.0", "3.0"),
        ("1 / 0", "error: division by zero"),
        ("1 % 0", "error: modulus by zero"),
        ("9223372036854775807 + 1", "error: integer overflow"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("'a' + \"b\"", "\"ab\""),
        ("r'\\n'", "\"\\\\n\""),
        ("'\\u00e9\\x41\\101'", "\"éAA\""),
        ("'''a'b'''", "\"a'b\""),
        ("b'abc' == b\"abc\"", "true"),
        (
            "1 == 1.0",
            "issue: found no matching overload for '_==_' applied to '(int, double)'",
        ),
        ("dyn(1) == 1.0", "true"),
        ("dyn(1) == 1u", "true"),
        ("1 < 1.5 && 2u > 1", "true"),
        ("true ? 1 : 2", "1"),
        ("1 in [1, 2]", "true"),
        ("'app' in object.metadata.labels", "true"),
        ("[1, 2] + [3]", "[1,2,3]"),
        ("{'a': 1}.a", "1"),
        ("{'a': 1}['b']", "error: no such key: b"),
        ("[1][1]", "error: index out of bounds: 1"),
        ("type(1) == int", "true"),
        ("type([]) == list && type({}) == map", "true"),
        ("null == null", "true"),
        ("// a comment\n1", "1"),
    ]);
}

#[test]
fn keys_of_maps() {
    assert_table(&[
        // Numbers of different types are different keys, and integers find integers.
        ("{dyn(1): 'a', dyn(1u): 'b', dyn(1.0): 'c'}.size()", "3"),
        ("{dyn(1): 'a', dyn(1u): 'b'}[1u]", "\"b\""),
        ("{dyn(1): 'a'}[1.0]", "\"a\""),
        ("dyn(1) in {1.0: 'a'}", "false"),
        ("dyn(1) in {1u: 'a'}", "true"),
        ("{dyn(1.0): 'a'} == {dyn(1): 'a'}", "true"),
        ("{dyn(1): 'a'} == {dyn(1.0): 'a'}", "false"),
        ("0.0 / 0.0 in {0.0 / 0.0: 1}", "false"),
        ("-0.0 in {0.0: 1}", "true"),
        (
            "[1, 2].transformMapEntry(i, v, i == 0 ? {dyn(1): i} : {dyn(1.0): i})",
            "error: insert failed: key 1 already exists",
        ),
        // New lists and maps are only equal to themselves.
        ("[1] in {[1]: 2}", "false"),
        ("{[1]: 2} == {[1]: 2}", "false"),
        ("{[1]: 2, [1]: 3}.size()", "2"),
        ("[[1]].exists(x, x in {x: 2})", "true"),
        ("[{'a': 1}].all(x, {x: 2} == {x: 2})", "true"),
        ("object.spec.names in {object.spec.names: 1}", "false"),
        (
            "{[1]: 2}[[1]]",
            "error: invalid qualifier type: *types.baseList",
        ),
        ("optional.none() in {optional.none(): 2}", "true"),
        ("optional.of(1) in {optional.of(1): 2}", "false"),
        ("ip('1.1.1.1') in {ip('1.1.1.1'): 1}", "true"),
        ("quantity('1') in {quantity('1'): 1}", "false"),
        (
            "timestamp('2026-01-01T00:00:00Z') in {timestamp('2026-01-01T01:00:00+01:00'): 1}",
            "false",
        ),
    ]);
}

#[test]
fn optionals_inside_of_optionals() {
    assert_table(&[
        // What a conditional leads to is converted to Go's types and back.
        ("optional.of(1).optMap(x, optional.of(x)).value()", "1"),
        (
            "optional.of(1).optMap(x, optional.none()).hasValue()",
            "true",
        ),
        (
            "optional.of(1).optMap(x, optional.none()).value() == null",
            "true",
        ),
        (
            "optional.of(1).optMap(x, optional.of(x)) == optional.of(optional.of(1))",
            "false",
        ),
        ("optional.of(optional.of(1)).value().value()", "1"),
        (
            "optional.of(1).optMap(x, [optional.of(x)]).value()[0].value()",
            "1",
        ),
        ("optional.of(1).optMap(x, type(x)).value()", "\"int\""),
        ("optional.of(1).optMap(x, quantity('1')).hasValue()", "true"),
        (
            "optional.of(1).optMap(x, quantity('1')).value()",
            "error: unsupported conversion to ref.Val: (*resource.Quantity)1",
        ),
        (
            "optional.of(1).optMap(x, quantity('1')) == optional.of(1).optMap(x, quantity('1'))",
            "error: unsupported conversion to ref.Val: (*resource.Quantity)1",
        ),
        (
            "optional.of(1).optMap(x, ip('1.1.1.1')).orValue(ip('::1'))",
            "error: unsupported conversion to ref.Val: (netip.Addr)1.1.1.1",
        ),
        (
            "optional.of(quantity('1')).value().isGreaterThan(quantity('0'))",
            "true",
        ),
        (
            "optional.of(quantity('1')).optMap(q, q.isGreaterThan(quantity('0'))).value()",
            "true",
        ),
    ]);
}

#[test]
fn errors_lose_against_a_side_that_decides() {
    assert_table(&[
        ("true || 1 / 0 == 1", "true"),
        ("1 / 0 == 1 || true", "true"),
        ("1 / 0 == 1 && false", "false"),
        ("1 / 0 == 1 && true", "error: division by zero"),
        ("[1, 0].exists(x, 4 / x == 4)", "true"),
        ("[0, 1].exists(x, 4 / x == 4)", "true"),
        ("[0, 2].exists(x, 4 / x == 4)", "error: division by zero"),
        ("[0, 1].all(x, 4 / x == 5)", "false"),
    ]);
}

#[test]
fn fields_of_objects() {
    assert_table(&[
        ("object.metadata.name", "\"web\""),
        ("object.spec.replicas + 1", "4"),
        ("object.spec.ratio", "0.5"),
        ("has(object.spec.replicas)", "true"),
        ("has(object.spec.missing)", "false"),
        ("has(object.missing.field)", "error: no such key: missing"),
        ("object.missing", "error: no such key: missing"),
        ("object.spec.none == null", "true"),
        ("size(object.spec.names)", "3"),
        ("object.spec.names[1]", "\"b\""),
        ("object.?spec.?missing.orValue('x')", "\"x\""),
        ("object.?spec.?replicas.orValue(0)", "3"),
        ("object.?spec.names[?5].hasValue()", "false"),
        ("object.metadata.labels.exists(k, k == 'tier')", "true"),
        ("object.metadata.name.size()", "3"),
    ]);
}

#[test]
fn macros() {
    assert_table(&[
        ("[1, 2, 3].all(x, x > 0)", "true"),
        ("[1, 2, 3].exists(x, x > 2)", "true"),
        ("[1, 2, 3].exists_one(x, x > 2)", "true"),
        ("[1, 2, 3].filter(x, x % 2 == 1)", "[1,3]"),
        ("[1, 2, 3].map(x, x * x)", "[1,4,9]"),
        ("[1, 2, 3].map(x, x > 1, x * x)", "[4,9]"),
        ("{'a': 1, 'b': 2}.map(k, k)", "[\"a\",\"b\"]"),
        ("[[1], [2, 3]].map(l, l.map(x, x + 1))", "[[2],[3,4]]"),
        ("[1, 2].all(i, v, i < v)", "true"),
        ("{'a': 1}.exists(k, v, k == 'a' && v == 1)", "true"),
        ("[5, 6].transformList(i, v, i + v)", "[5,7]"),
        ("[5, 6].transformList(i, v, v > 5, v)", "[6]"),
        (
            "{'a': 1, 'b': 2}.transformMap(k, v, v * 10)",
            "{\"a\":10,\"b\":20}",
        ),
        (
            "{'a': 'x'}.transformMapEntry(k, v, {v: k})",
            "{\"x\":\"a\"}",
        ),
        (
            "{'a': 'x', 'b': 'x'}.transformMapEntry(k, v, {v: k})",
            "error: insert failed: key x already exists",
        ),
        ("optional.of(2).optMap(x, x * 2).value()", "4"),
        ("optional.none().optMap(x, x).hasValue()", "false"),
        (
            "optional.of(2).optFlatMap(x, optional.of(x + 1)).value()",
            "3",
        ),
        (
            "[1, 2].all(1, true)",
            "issue: argument must be a simple name",
        ),
        ("has(1)", "issue: invalid argument to has() macro"),
        ("[?optional.of(1), ?optional.none(), 2]", "[1,2]"),
        ("{?'a': optional.none(), 'b': 1}", "{\"b\":1}"),
    ]);
}

#[test]
fn strings_and_regular_expressions() {
    assert_table(&[
        (
            "'hello'.contains('ell') && 'hello'.startsWith('he') && 'hello'.endsWith('lo')",
            "true",
        ),
        ("'abc'.matches('^a.c$')", "true"),
        ("'abc'.matches('[')", "issue: invalid matches argument"),
        ("'tacocat'.charAt(3)", "\"o\""),
        ("'tacocat'.charAt(30)", "error: index out of range: 30"),
        ("'hello mellow'.indexOf('ello')", "1"),
        ("'hello mellow'.indexOf('ello', 2)", "7"),
        ("'hello mellow'.lastIndexOf('ello')", "7"),
        ("'TacoCÆt'.lowerAscii()", "\"tacocÆt\""),
        ("'hello hello'.replace('he', 'we', 1)", "\"wello hello\""),
        ("'a,b,c'.split(',')", "[\"a\",\"b\",\"c\"]"),
        ("'a,b,c'.split(',', 2)", "[\"a\",\"b,c\"]"),
        ("'tacocat'.substring(4)", "\"cat\""),
        ("'tacocat'.substring(0, 4)", "\"taco\""),
        (
            "'tacocat'.substring(5, 1)",
            "error: invalid substring range. start: 5, end: 1",
        ),
        ("'  x '.trim()", "\"x\""),
        ("['a', 'b'].join('-')", "\"a-b\""),
        ("'abc 123 def 45'.find('[0-9]+')", "\"123\""),
        ("'1 2 3'.findAll('[0-9]', 2)", "[\"1\",\"2\"]"),
        (
            "'%s is %d and %.2f %x'.format(['a', 3, 1.5, 255])",
            "\"a is 3 and 1.50 ff\"",
        ),
        (
            "'%d'.format(['a'])",
            "issue: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("string(1.5) + string(true) + string(3u)", "\"1.5true3\""),
        ("int('12') + int(3.9)", "15"),
        (
            "int('x')",
            "error: type conversion error from 'string' to 'int'",
        ),
    ]);
}

#[test]
fn lists_and_sets() {
    assert_table(&[
        ("[1, 2, 3].isSorted() && ![2, 1].isSorted()", "true"),
        ("[1, 2, 3].sum()", "6"),
        ("[1, 3, 2].max()", "3"),
        ("[2, 1].min()", "1"),
        // The checker resolves these for integers where the elements are not known.
        ("object.spec.names.min()", "\"a\""),
        (
            "object.spec.names.distinct().min()",
            "error: no such overload: min(list)",
        ),
        (
            "object.spec.names.reverse().isSorted()",
            "error: no such overload: isSorted(list)",
        ),
        ("dyn([2, 1]).reverse().max()", "2"),
        ("['b', 'a'].distinct().min()", "\"a\""),
        ("[1][?1].hasValue()", "false"),
        ("['a', 'b', 'a'].indexOf('a')", "0"),
        ("['a', 'b', 'a'].lastIndexOf('a')", "2"),
        ("[1, 2, 3].slice(1, 3)", "[2,3]"),
        ("[[1], [2]].flatten()", "[1,2]"),
        ("[3, 1, 2].sort()", "[1,2,3]"),
        (
            "[2.5, 0.0 / 0.0, 1.5].sort().map(x, string(x))",
            "[\"1.5\",\"2.5\",\"NaN\"]",
        ),
        ("[1, 1, 2].distinct()", "[1,2]"),
        ("lists.range(3)", "[0,1,2]"),
        ("[1, 2].reverse()", "[2,1]"),
        ("sets.contains([1, 2], [2])", "true"),
        ("sets.equivalent([1, 2], [2, 1, 1])", "true"),
        ("sets.intersects([1], [2])", "false"),
        ("[1, 2].first().value() + [1, 2].last().value()", "3"),
    ]);
}

#[test]
fn kubernetes_libraries() {
    assert_table(&[
        ("quantity('1500m').isGreaterThan(quantity('1'))", "true"),
        ("quantity('50k').asInteger()", "50000"),
        (
            "quantity('1Gi').add(quantity('1Gi')) == quantity('2Gi')",
            "true",
        ),
        ("isQuantity('1x')", "false"),
        ("sign(quantity('-1'))", "-1"),
        ("semver('1.2.3').isLessThan(semver('1.10.0'))", "true"),
        ("isSemver('v1.2') || !isSemver('v1.2', true)", "false"),
        ("semver('1.0.0-rc.1').compareTo(semver('1.0.0'))", "-1"),
        ("ip('192.168.0.1').family()", "4"),
        ("isIP('::ffff:1.2.3.4')", "false"),
        ("ip('::1').isLoopback()", "true"),
        ("cidr('10.0.0.0/8').containsIP('10.2.3.4')", "true"),
        ("cidr('10.0.0.0/8').containsCIDR('10.0.0.0/7')", "false"),
        ("string(cidr('10.1.2.3/8').masked())", "\"10.0.0.0/8\""),
        ("cidr('10.0.0.0/8').prefixLength()", "8"),
        (
            "url('https://user@host:80/a/b?x=1&x=2#f').getHost()",
            "\"host:80\"",
        ),
        ("url('https://[::1]:80/').getHostname()", "\"::1\""),
        ("url('https://h/a b').getEscapedPath()", "\"/a%20b\""),
        ("url('https://h/?x=1&x=2').getQuery()['x']", "[\"1\",\"2\"]"),
        ("isURL('../x')", "false"),
        ("format.dns1123Label().validate('ok').hasValue()", "false"),
        (
            "format.dns1123Label().validate('NOT ok').hasValue()",
            "true",
        ),
        ("format.named('nothing').hasValue()", "false"),
        (
            "format.uuid().validate('x').value()",
            "[\"does not match the UUID format\"]",
        ),
    ]);
}

#[test]
fn times() {
    assert_table(&[
        ("duration('1h30m').getMinutes()", "90"),
        ("duration('1.5s').getMilliseconds()", "1500"),
        ("string(duration('90s'))", "\"90s\""),
        ("duration('1x')", "issue: invalid duration argument"),
        ("timestamp('2026-11-16T12:34:56Z').getFullYear()", "2026"),
        ("timestamp('2026-11-16T12:34:56Z').getMonth()", "10"),
        ("timestamp('2026-11-16T23:34:56Z').getHours('+02:00')", "1"),
        (
            "timestamp('2026-11-16T12:00:00Z') - timestamp('2026-11-16T11:00:00Z') == duration('1h')",
            "true",
        ),
        (
            "timestamp('2026-11-16T12:00:00Z') + duration('1h') > timestamp('2026-11-16T12:30:00Z')",
            "true",
        ),
        (
            "timestamp('2026-11-16 12:00:00Z')",
            "issue: invalid timestamp argument",
        ),
        (
            "string(timestamp('2026-11-16T12:00:00+01:00'))",
            "\"2026-11-16T12:00:00+01:00\"",
        ),
    ]);
}

#[test]
fn mistakes_are_shown_with_their_place() {
    let shown = |text: &str| compile(&env(), text).expect_err(text).to_string();
    assert_eq!(
        shown("missing == 1"),
        "ERROR: <input>:1:1: undeclared reference to 'missing' (in container '')\n | missing == 1\n | ^"
    );
    assert_eq!(
        shown("1 + 'a'"),
        "ERROR: <input>:1:3: found no matching overload for '_+_' applied to '(int, string)'\n | 1 + 'a'\n | ..^"
    );
    assert_eq!(
        shown("'a'.foo(1)"),
        "ERROR: <input>:1:8: undeclared reference to 'foo' (in container '')\n | 'a'.foo(1)\n | .......^"
    );
    assert_eq!(
        shown("[1, 'a']"),
        "ERROR: <input>:1:5: expected type 'int' but found 'string'\n | [1, 'a']\n | ....^"
    );
    assert_eq!(
        shown("1.all(x, true)"),
        "ERROR: <input>:1:1: expression of type 'int' cannot be range of a comprehension (must be list, map, or dynamic)\n | 1.all(x, true)\n | ^"
    );
    assert!(
        shown("1 +").starts_with(
            "ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '('"
        ),
        "{}",
        shown("1 +")
    );
}

/// `self` with a bounded list of bounded strings.
fn declared() -> Env {
    let text = Arc::new(Decl::new(DeclKind::String, 10));
    let list = DeclKind::List {
        element: text.clone(),
        semantics: ListSemantics::Set,
    };
    let field = |json: &str, decl: Decl| Field {
        json: json.into(),
        decl: Arc::new(decl),
    };
    let fields = HashMap::from([
        ("names".into(), field("names", Decl::new(list, 5))),
        (
            "x__dash__y".into(),
            field("x-y", Decl::new(DeclKind::Int, u64::MAX)),
        ),
        (
            "at".into(),
            field("at", Decl::new(DeclKind::Timestamp, u64::MAX)),
        ),
    ]);
    let object = DeclKind::Object {
        name: "selfType1".into(),
        fields,
    };
    Env::new().declared("self", Arc::new(Decl::new(object, u64::MAX)))
}

#[test]
fn schemas_type_fields_and_give_lists_their_semantics() {
    let env = declared();
    let value = json::json!({"names": ["a", "b"], "x-y": 2, "at": "2026-11-16T00:00:00Z"});
    for (text, wanted) in [
        ("self.x__dash__y == 2", "true"),
        ("self.names == ['b', 'a']", "true"),
        ("self.names + ['a', 'c']", "[\"a\",\"b\",\"c\"]"),
        ("self.at.getFullYear()", "2026"),
        ("has(self.names)", "true"),
    ] {
        let checked = compile(&env, text).unwrap_or_else(|issues| panic!("{text}: {issues}"));
        let program = Program::new(&env, &checked).expect("planned");
        let decl = env
            .find("self")
            .and_then(|v| v.decl.clone())
            .expect("declared");
        let variables = [Value::from_json(&value, Some(&decl)).expect("typed")];
        let result = program.evaluate(&variables, PER_CALL_LIMIT).result;
        let result = result.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(
            result.to_json().expect("JSON").to_string(),
            wanted,
            "{text}"
        );
    }
    let issues = compile(&env, "self.missing").expect_err("no such field");
    assert_eq!(issues.issues[0].message, "undefined field 'missing'");
}

#[test]
fn cost_is_estimated_by_declared_sizes_and_counted() {
    let env = declared();
    for (text, max) in [
        ("self.x__dash__y > 1", 3),
        ("self.names.all(n, n == 'abcdefghij')", 28),
        ("self.names.exists(n, n.contains('ab'))", 33),
        ("size(self.names) < 3", 4),
    ] {
        let checked = compile(&env, text).unwrap_or_else(|issues| panic!("{text}: {issues}"));
        assert_eq!(estimate(&env, &checked).max, max, "{text}");
    }
    let env = Env::new();
    let checked = compile(&env, "[1, 2, 3].all(x, [1, 2, 3].all(y, x + y > 0))").expect("valid");
    let program = Program::new(&env, &checked).expect("planned");
    let full = program.evaluate(&[], PER_CALL_LIMIT);
    assert!(matches!(full.result, Ok(Value::Bool(true))));
    let stopped = program.evaluate(&[], full.cost - 1);
    let error = stopped.result.expect_err("over the limit");
    assert_eq!(
        error.message,
        "operation cancelled: actual cost limit exceeded"
    );
    assert!(error.fatal);
}

#[test]
fn no_text_panics() {
    let pieces = [
        "(", ")", "[", "]", "{", "}", ".", "?", ":", "1", "'a", "x", "&&", "||", "!", "-", "has(",
        ".all(", "in", "\\", "é", "\u{0}", "0x", "1e", "b'", "r\"", "'''", "`", ".?", "[?",
    ];
    let mut seed: u64 = 7;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
        }
        if let Ok(checked) = compile(&env(), &text) {
            let env = env();
            let program = Program::new(&env, &checked).expect("planned");
            let _ = program.evaluate(&[Value::Null], 1000);
        }
    }
    let deep = "(".repeat(5000);
    assert!(compile(&env(), &deep).is_err());
    let chain = format!("1{}", "+1".repeat(5000));
    let issues = compile(&env(), &chain).expect_err("too deep");
    assert_eq!(
        issues.issues[0].message,
        "expression recursion limit exceeded: 250"
    );
    let nots = format!("{}true", "!".repeat(5000));
    assert!(compile(&env(), &nots).is_ok());
}
