//! CEL expressions from outside: parsed, checked, estimated and evaluated within a
//! budget.
#![no_main]

use kcel::{Env, Type, Unknown, Value, Variables};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let env = Env::new()
        .variable("s", Type::String)
        .variable("i", Type::Int)
        .variable("l", Type::list(Type::String))
        .variable("d", Type::Dyn);
    let Ok(program) = env.compile_any(text) else { return };
    let _ = program.estimate(&Unknown);
    let data = serde_json::json!({"a": [1, 2.5, "x", null, true], "b": {"c": "d"}});
    let variables = Variables(vec![
        ("s", Value::borrowed("hello")),
        ("i", Value::Int(7)),
        ("l", Value::list(vec![Value::borrowed("a"), Value::borrowed("b")])),
        ("d", Value::json(&data)),
    ]);
    let mut budget = kcel::limits::PER_CALL;
    if let Ok(value) = program.eval(&variables, &mut budget) {
        let _ = value.to_string();
    }
});
