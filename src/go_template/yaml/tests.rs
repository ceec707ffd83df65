//! Reading and writing of YAML.

use crate::budget::Budget;
use crate::value::Value;
use crate::yaml::{read, to_yaml};

fn text(value: &Value) -> String {
    let mut budget = Budget::new(1 << 20, 1 << 20, 10);
    let value = to_yaml(value, &mut budget).unwrap();
    String::from_utf8(value.string_bytes().unwrap().to_vec()).unwrap()
}

/// Scalars as sigs.k8s.io/yaml writes them.
#[test]
fn strings_are_quoted_as_in_go() {
    let table = [
        ("a", "a"),
        ("", "\"\""),
        ("yes", "\"yes\""),
        ("1e3", "\"1e3\""),
        ("0x1", "\"0x1\""),
        ("2020-01-01", "\"2020-01-01\""),
        ("1:30", "\"1:30\""),
        ("null", "\"null\""),
        ("- a", "'- a'"),
        ("a: b", "'a: b'"),
        ("a #b", "'a #b'"),
        ("it's", "it's"),
        ("'a", "'''a'"),
        ("a\nb", "|-\n  a\n  b"),
        ("a\nb\n", "|\n  a\n  b"),
        ("a\n\n", "|+\n  a\n"),
        (" a\nb", "|2-\n   a\n  b"),
        ("a\tb", "\"a\\tb\""),
        ("{{x}}", "'{{x}}'"),
        ("*", "'*'"),
        ("1.2.3", "1.2.3"),
        ("é", "é"),
    ];
    for (input, expected) in table {
        assert_eq!(text(&Value::from(input)), expected, "{input:?}");
    }
}

#[test]
fn collections_are_written_and_read() {
    let source = "a:\n- b: 1\n  c: [x, y]\n- d\ne: {}\nf: []\ng: ~\nh: on\ni: 1.5\n";
    let value = read(source).unwrap();
    let expected =
        "a:\n- b: 1\n  c:\n  - x\n  - \"y\"\n- d\ne: {}\nf: []\ng: null\nh: true\ni: 1.5";
    let expected = expected.replace("\"y\"", "true");
    assert_eq!(text(&value), expected);
    let merged = read("x: &a {p: 1}\ny:\n  <<: *a\n  q: 2\n").unwrap();
    assert_eq!(text(&merged), "\"true\":\n  p: 1\n  q: 2\nx:\n  p: 1");
}
