//! The template engine: a template, a zero byte and the values, rendered within bounds.
#![no_main]

use go_template::{NoCluster, Options, Source, Value, read_yaml, render};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0).map(String::from_utf8_lossy);
    let text = parts.next().unwrap_or_default();
    let values = parts.next().unwrap_or_default();
    let values = read_yaml(&values).unwrap_or_else(|_| Value::map());
    let release: Value =
        [("Name", Value::from("fuzzed")), ("Revision", Value::Int(1))].into_iter().collect();
    let root: Value = [("Values", values), ("Release", release)].into_iter().collect();
    let options = Options {
        strict: bytes.len().is_multiple_of(2),
        max_output_bytes: 1 << 18,
        max_steps: 20_000,
        max_depth: 100,
    };
    let sources = [Source { name: "app/templates/t.yaml", text: &text, root, render: true }];
    if let Ok(files) = render(&sources, &NoCluster, &options) {
        assert!(files.values().all(|file| file.len() <= options.max_output_bytes));
    }
});
