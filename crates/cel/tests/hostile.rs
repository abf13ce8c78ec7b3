//! Malicious expressions: each is handled with little stack and memory.

use std::thread;

use cel::{Env, PER_CALL_LIMIT, Program, Type, Value, compile};

/// Runs on a stack as small as a worker thread's.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(2 << 20);
        let handle = thread.spawn_scoped(scope, work).expect("a thread");
        handle.join().expect("no panic")
    })
}

/// The compilation error of an expression, or `compiles`.
fn compiled(text: &str) -> String {
    match compile(&Env::new().variable("self", Type::Dyn), text) {
        Ok(checked) => {
            let env = Env::new().variable("self", Type::Dyn);
            let _ = Program::new(&env, &checked);
            "compiles".to_owned()
        }
        Err(issues) => issues.issues[0].message.clone(),
    }
}

/// The result of an expression as JSON, or its error.
fn evaluated(text: &str) -> String {
    let env = Env::new().variable("self", Type::Dyn);
    let checked = match compile(&env, text) {
        Ok(checked) => checked,
        Err(issues) => return issues.issues[0].message.clone(),
    };
    let program = Program::new(&env, &checked).expect("planned");
    let object = machinery::json::json!({"l": [1, 2, 3, 4, 5, 6, 7, 8], "s": "abcdefgh"});
    let values = [Value::from_json(&object, None).expect("plain JSON")];
    match program.evaluate(&values, PER_CALL_LIMIT).result {
        Ok(value) => match value.to_json() {
            Ok(json) => json.to_string(),
            Err(error) => format!("error: {error}"),
        },
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn compiling_takes_little_time() {
    let opt_map = |times: usize| {
        let maps = ".optMap(x, x)".repeat(times);
        format!("optional.of(1){maps}.hasValue()")
    };
    let too_large = "expression size limit exceeded: 100000";
    for (text, wanted) in [
        (opt_map(2), "compiles"),
        (opt_map(12), "compiles"),
        (opt_map(40), too_large),
        (
            format!("[] == []{}", " && [] == []".repeat(7000)),
            "compiles",
        ),
        (format!("size([{}]) > 0", "[],".repeat(30_000)), "compiles"),
    ] {
        let answer = on_small_stack(|| compiled(&text));
        assert_eq!(answer, wanted, "{}", &text[..40]);
    }
}

#[test]
fn types_neither_nest_without_end_nor_double() {
    let wrapped = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    // Each level wraps a list bound to a variable.
    let bound = |times: usize| {
        let wrap = |inner: String, at: usize| format!("[{inner}].map(x{at}, {{x{at}: x{at}}})");
        (0..times).fold("1".to_owned(), wrap)
    };
    for (text, wanted) in [
        (wrapped(100), "compiles"),
        (wrapped(200), "expression recursion limit exceeded: 250"),
        (bound(4), "compiles"),
        (bound(30), "type nesting or size limit exceeded"),
    ] {
        let answer = on_small_stack(|| compiled(&text));
        assert_eq!(answer, wanted, "{text}");
    }
}

const EXCEEDED: &str = "error: operation cancelled: actual cost limit exceeded";

#[test]
fn values_neither_nest_without_end_nor_take_much_memory() {
    // `x` bound to itself, wrapped repeatedly.
    let folded = |start: &str, times: usize, step: &str| {
        let bind = |inner: String, _| format!("[{inner}].map(x, {step})[0]");
        (0..times).fold(start.to_owned(), bind)
    };
    let nested = |times: usize| folded("dyn(1)", times, "dyn([[[[[[x]]]]]])");
    let size = |text: String| format!("{text}.size()");
    for (text, wanted) in [
        (size(folded("self.l", 15, "x + x")), "262144"),
        (size(folded("self.l", 20, "x + x")), EXCEEDED),
        (size(folded("self.s", 10, "x + x")), "8192"),
        (size(folded("self.s", 30, "x + x")), EXCEEDED),
        (folded("dyn(1)", 30, "dyn([x, x])"), EXCEEDED),
        (format!("dyn({}) == dyn({})", folded("dyn(1)", 30, "dyn([x, x])"), folded("dyn(1)", 30, "dyn([x, x])")), EXCEEDED),
        (format!("'%s'.format([{}])", folded("dyn(1)", 30, "dyn([x, x])")), EXCEEDED),
        (format!("{}.flatten(40).size()", folded("[dyn(1)]", 30, "[dyn(x), dyn(x)]")), EXCEEDED),
        (format!("{} == 1", nested(20)), "false"),
        (format!("{} == 1", nested(30)), "error: value nesting limit exceeded: 150"),
        (folded("optional.of(1)", 3, "optional.of(x)"), "1"),
        ("lists.range(1000).map(x, 'a').join(self.s.replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')).size()".to_owned(), EXCEEDED),
        ("'%.3e %.4f %.1000e'.format([1.0, 1.5, 0.5]).size()".to_owned(), "1021"),
        ("'%.100000000e'.format([1.0])".to_owned(), EXCEEDED),
        ("'%.70000f'.format([0.5]).size()".to_owned(), "70002"),
        ("lists.range(3000).map(i, string(i)).transformMap(i, k, k).size()".to_owned(), "3000"),
        ("{1: 2, 3: 4}.transformMapEntry(k, v, k > 1, {v: k})".to_owned() + "[4]", "3"),
        ("[1, 2].transformMapEntry(i, v, {'a': v})".to_owned(), "error: insert failed: key a already exists"),
    ] {
        let answer = on_small_stack(|| evaluated(&text));
        assert_eq!(answer, wanted, "{text}");
    }
}

#[test]
fn the_deepest_expressions_fit_a_small_stack() {
    let all = |inner: String, at: usize| format!("[1].all(x{at}, {inner})");
    for text in [
        format!("1{} > 0", "+1".repeat(240)),
        format!("self{} == 1", ".a".repeat(240)),
        format!("{}1{} != []", "[".repeat(120), "]".repeat(120)),
        (0..60).fold("true".to_owned(), all),
        (0..110).fold("1".to_owned(), |inner, _| {
            format!("(true ? {inner} : 1) + 1")
        }),
        (0..60).fold("1".to_owned(), |inner, _| format!("dyn({{'a': {inner}}})")),
    ] {
        on_small_stack(|| evaluated(&text));
    }
}

#[test]
fn patterns_are_compiled_once_and_bounded() {
    let many = "lists.range(20000).all(i, !self.s.matches('^[a-z]{3,20}x$'))";
    let assembled = "lists.range(20000).all(i, !self.s.matches('^[a-z]{3,20}' + 'x$'))";
    let different = "lists.range(20000).all(i, !self.s.matches(string(i) + '[a-z]{500}x$'))";
    let large = r"self.s.matches(r'\pL{1000}') || self.s.size() > 100000";
    let mut heavy = r"!'a'.matches(r'b\pL{500}')".to_owned();
    heavy.push_str(&r" && !'a'.matches(r'b\pL{500}')".repeat(1000));
    for (text, wanted) in [
        (many, "true"),
        (assembled, "true"),
        (different, EXCEEDED),
        (large, "invalid matches argument"),
        (&heavy, EXCEEDED),
        (
            "'abcb'.findAll('b') == ['b', 'b'] && 'abc'.find('b') == 'b'",
            "true",
        ),
    ] {
        let answer = on_small_stack(|| evaluated(text));
        assert_eq!(answer, wanted, "{}", &text[..50]);
    }
}
