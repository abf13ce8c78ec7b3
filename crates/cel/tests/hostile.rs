//! Expressions that were written to hurt: each is answered quickly, with little stack and memory.

use std::{
    thread,
    time::{Duration, Instant},
};

use cel::{Env, PER_CALL_LIMIT, Program, Type, Value, compile};

/// Runs on a stack as small as that of a worker thread, and says how long it took.
fn on_small_stack<T: Send>(work: impl FnOnce() -> T + Send) -> (T, Duration) {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(2 << 20);
        let started = Instant::now();
        let handle = thread.spawn_scoped(scope, work).unwrap();
        let answer = handle.join().unwrap();
        (answer, started.elapsed())
    })
}

/// What is wrong with an expression, or `compiles`.
fn compiled(text: &str) -> String {
    match compile(&Env::new().variable("self", Type::Dyn), text) {
        Ok(checked) => {
            drop(Program::new(
                &Env::new().variable("self", Type::Dyn),
                &checked,
            ));
            "compiles".to_owned()
        }
        Err(issues) => issues.issues[0].message.clone(),
    }
}

/// What an expression comes to as JSON, or its error.
fn evaluated(text: &str) -> String {
    let env = Env::new().variable("self", Type::Dyn);
    let checked = match compile(&env, text) {
        Ok(checked) => checked,
        Err(issues) => return issues.issues[0].message.clone(),
    };
    let program = Program::new(&env, &checked);
    let object = machinery::json::json!({"l": [1, 2, 3, 4, 5, 6, 7, 8], "s": "abcdefgh"});
    let values = [Value::from_json(&object, None).unwrap()];
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
        let (answer, took) = on_small_stack(|| compiled(&text));
        assert_eq!(answer, wanted, "{}", &text[..40]);
        assert!(took < Duration::from_secs(5), "{took:?}: {}", &text[..40]);
    }
}

#[test]
fn types_neither_nest_without_end_nor_double() {
    let wrapped = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    // Each level puts a list into one that is bound to a variable.
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
        let (answer, took) = on_small_stack(|| compiled(&text));
        assert_eq!(answer, wanted, "{text}");
        assert!(took < Duration::from_secs(5), "{took:?}: {text}");
    }
}
