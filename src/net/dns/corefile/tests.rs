//! Corefiles as Caddy's parser reads them, and errors with their line.

use super::*;

fn source(text: &str) -> Source<'_> {
    Source { key: "a", text }
}

fn shown(directives: &[Directive]) -> Vec<String> {
    let one = |d: &Directive| {
        let line = |l: &Line| l.iter().map(|w| w.text.as_str()).collect::<Vec<_>>().join(" ");
        let block: Vec<String> = d.block.iter().map(line).collect();
        format!("{}:{} {} [{}]", d.line, d.name, d.args.join("|"), block.join("; "))
    };
    directives.iter().map(one).collect()
}

#[test]
fn an_override_is_a_list_of_plugins() {
    let text = "# comment\nlog\n\nforward . 1.1.1.1 \\\n  8.8.8.8 { # why\n  max_fails 3\n  }\ntemplate \
                IN A {\n  answer \"{{ .Name }} 60 \\\"A\\\" 1.2.3.4\"\n}\nhosts a#b";
    let got = parse_override(source(text)).unwrap();
    assert_eq!(
        shown(&got),
        [
            "2:log  []",
            "4:forward .|1.1.1.1|8.8.8.8 [max_fails 3]",
            "8:template IN|A [answer {{ .Name }} 60 \"A\" 1.2.3.4]",
            "11:hosts a#b []",
        ]
    );
    assert_eq!(parse_override(source(" \n# nothing\n")).unwrap(), []);
}

#[test]
fn servers_have_zones_and_plugins() {
    let text = "example.org:53, example.com {\n  log\n}\na.b,\nc.d\n{\n  forward . 1.1.1.1\n}\n";
    let got = parse_servers(source(text)).unwrap();
    let zones: Vec<Vec<&str>> =
        got.iter().map(|b| b.zones.iter().map(|z| z.text.as_str()).collect()).collect();
    assert_eq!(zones, [vec!["example.org:53", "example.com"], vec!["a.b", "c.d"]]);
    assert_eq!(shown(&got[1].directives), ["7:forward .|1.1.1.1 []"]);
}

#[test]
fn errors_name_the_line() {
    let servers = |text| parse_servers(source(text)).unwrap_err().to_string();
    let overrides = |text| parse_override(source(text)).unwrap_err().to_string();
    for (got, want) in [
        (servers("\nexample.org\nlog"), "a, line 2: a server block needs `{`"),
        (servers("x {\nlog\n"), "a, line 1: the server block is not closed"),
        (servers("x {\nhosts {\nlog\n"), "a, line 2: the block of the plugin is not closed"),
        (servers("{\nlog\n}"), "a, line 1: a server block without a zone"),
        (overrides("log\n}"), "a, line 2: unexpected `}`"),
        (overrides("log {\n a {\n }\n}"), "a, line 2: unexpected `{`"),
        (overrides("log\n{\n}"), "a, line 2: a `{` without the name of a plugin"),
        (overrides("log \"x\n\n"), "a, line 1: the quote is not closed"),
        (overrides("log\nforward . {$DNS}"), "a, line 2: {$DNS}: environment variables"),
        (overrides(&"a ".repeat(60_000)), "a, line 1: more than 50000 words"),
        (overrides(&"a".repeat(300_000)), "a, line 1: the text is longer than 256 KiB"),
    ] {
        assert!(got.starts_with(want), "{got}, not {want}");
    }
}
