//! Compares with the answers of Helm's engine, recorded by `tests/helm-templates/record`.

use serde_json::Value as Json;

use crate::{Capabilities, Entries, NoCluster, Options, Source, Value, read_yaml, render};

const ANSWERS: &str = include_str!("../../tests/helm-templates/answers.txt");
const HELPERS: &str = include_str!("../../tests/helm-templates/helpers.tpl");
const VALUES: &str = include_str!("../../tests/helm-templates/values.yaml");
/// Answers that differ, each with its reason.
const DIFFERENCES: &str = include_str!("../../tests/helm-templates/differences.txt");

fn root() -> Value {
    let capabilities = Capabilities {
        kube_version: "v1.37.1".into(),
        kube_major: "1".into(),
        kube_minor: "37".into(),
        api_versions: vec!["v1".into(), "apps/v1".into()],
        helm_version: "v4.3.1".into(),
    };
    let chart = [
        ("Name", Value::from("app")),
        ("Version", Value::from("1.2.3")),
        ("AppVersion", Value::from("4.5")),
        ("IsRoot", Value::Bool(true)),
    ];
    let release = [
        ("Name", Value::from("rel")),
        ("Namespace", Value::from("ns")),
        ("Revision", Value::Int(1)),
        ("IsInstall", Value::Bool(true)),
        ("Service", Value::from("Helm")),
    ];
    let files = [
        ("config/a.txt", b"one\ntwo\n".to_vec()),
        ("config/b.json", br#"{"k": [1, "x"]}"#.to_vec()),
        ("bin.dat", vec![0, 255, 1]),
    ];
    let entries: Entries = [
        ("Chart", chart.into_iter().collect()),
        ("Release", release.into_iter().collect()),
        ("Files", Value::files(files.map(|(name, data)| (name.to_owned(), data)))),
        ("Capabilities", capabilities.value()),
        ("Values", read_yaml(VALUES).unwrap()),
        ("Subcharts", Value::map()),
    ]
    .into_iter()
    .map(|(key, value): (&str, Value)| (key.into(), value))
    .collect();
    Value::from(entries)
}

fn answer(template: &str) -> Json {
    let (helpers, name) = ("app/templates/_helpers.tpl", "app/templates/t.yaml");
    let root = root();
    let sources = [
        Source { name: helpers, text: HELPERS, root: root.clone(), render: false },
        Source { name, text: template, root, render: true },
    ];
    match render(&sources, &NoCluster, &Options::default()) {
        Ok(files) => serde_json::json!({ "output": files.get(name) }),
        Err(error) => serde_json::json!({ "error": error.to_string() }),
    }
}

#[test]
fn answers_are_those_of_helm() {
    let known: Vec<&str> = DIFFERENCES.lines().filter(|line| !line.starts_with("# ")).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in ANSWERS.lines() {
        let recorded: Json = serde_json::from_str(line).unwrap();
        let text = |key: &str| recorded.get(key).and_then(Json::as_str).unwrap_or_default();
        let ours = answer(text("template"));
        let ours_of = |key: &str| ours.get(key).and_then(Json::as_str).unwrap_or_default();
        count += 1;
        let same = ours_of("output") == text("output") && ours_of("error") == text("error");
        let is_known = known.contains(&text("template"));
        if same == is_known {
            wrong.push(format!(
                "{}\n  ours: {ours}\n  Helm: {{\"output\":{},\"error\":{}}}",
                text("template"),
                Json::from(text("output")),
                Json::from(text("error"))
            ));
        }
    }
    assert!(count > 300, "only {count} answers are recorded");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
