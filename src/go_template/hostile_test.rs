//! Templates that would take all time, memory or stack.

use crate::{NoCluster, Options, Source, Value, render};

/// A definition that renders itself through `tpl`.
const NESTED_TPL: &str = concat!(
    r#"{{ define "r" }}{{ tpl "{{ include \"r\" . }}" . }}{{ end }}"#,
    r#"{{ include "r" . }}"#,
);

fn error_of(template: &str) -> String {
    let options = Options {
        max_output_bytes: 1 << 20,
        max_steps: 200_000,
        max_depth: 500,
        ..Options::default()
    };
    let name = "app/templates/t.yaml";
    let sources = [Source { name, text: template, root: Value::map(), render: true }];
    match render(&sources, &NoCluster, &options) {
        Ok(_) => "rendered".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn bounds_end_a_rendering_with_the_place() {
    let deep = format!("{}1{}", "(".repeat(500), ")".repeat(500));
    let blocks = format!("{}{}", "{{ if true }}".repeat(500), "{{ end }}".repeat(500));
    let table = [
        ("{{ range 1000000000 }}x{{ end }}", "takes more than 200000 steps"),
        ("{{ range until 1000000000 }}x{{ end }}", "a value would be larger than"),
        ("{{ repeat 1000000000 \"x\" }}", "a value would be larger than"),
        ("{{ indent 1000000000 \"x\" }}", "a value would be larger than"),
        ("{{ randAlphaNum 1000000000 }}", "a value would be larger than"),
        ("{{ printf \"%1000000000d\" 1 }}", "rendered"),
        ("{{ seq 1 1000000000 }}", "a value would be larger than"),
        ("{{ define \"r\" }}{{ template \"r\" }}{{ end }}{{ template \"r\" }}", "deeper than 500"),
        (
            "{{ define \"r\" }}{{ include \"r\" . }}{{ end }}{{ include \"r\" . }}",
            "deeper than 500",
        ),
        (NESTED_TPL, "500"),
        ("{{ $d := dict }}{{ $_ := set $d \"d\" $d }}{{ $d }}", "contains itself"),
        ("{{ $d := dict }}{{ $_ := set $d \"d\" $d }}{{ mustToJson $d }}", "cycle"),
        ("{{ $d := dict }}{{ $_ := set $d \"d\" $d }}{{ deepCopy $d }}", "contains itself"),
        ("{{ $s := \"x\" }}{{ range until 60 }}{{ $s = print $s $s }}{{ end }}", "larger than"),
        (
            "{{ $d := list 1 }}{{ range until 60 }}{{ $d = list $d $d }}{{ end }}{{ $d }}",
            "takes more than",
        ),
        (deep.as_str(), "rendered"),
        (blocks.as_str(), "max expression depth exceeded"),
    ];
    for (template, expected) in table {
        let error = error_of(template);
        let head: String = template.chars().take(60).collect();
        assert!(error.contains(expected), "{head}: {error}");
        if expected != "rendered" && expected != "500" {
            assert!(error.contains("app/templates/t.yaml:1"), "{head}: {error}");
        }
    }
    let toml = format!("{{{{ fail (fromToml \"{}a = 1\").Error }}}}", "a.".repeat(12_000));
    assert!(error_of(&toml).contains("nested too deep"));
    let parens = format!("{{{{ {deep} }}}}");
    assert!(error_of(&parens).contains("max expression depth exceeded"));
}

#[test]
fn values_that_are_nested_deeper_than_the_stack_are_dropped() {
    let list = "{{ $d := list }}{{ range until 300000 }}{{ $d = list $d }}{{ end }}ok";
    let map = concat!(
        "{{ $d := dict }}{{ range until 300000 }}{{ $d = dict \"a\" $d }}{{ end }}",
        "{{ $_ := set $d \"b\" (list $d.a) }}ok",
    );
    for template in [list, map] {
        let name = "app/templates/t.yaml";
        let sources = [Source { name, text: template, root: Value::map(), render: true }];
        let files = render(&sources, &NoCluster, &Options::default()).unwrap();
        assert_eq!(files[name], "ok");
    }
}
