//! The families against upstream's.

use base::metrics::Family;

use std::sync::Arc;

use super::*;

/// All families that the packages of the controllers of kube-controller-manager 1.37 register, from
/// their sources: HELP and TYPE, then the names of the labels and the bounds of the buckets.
const UPSTREAM: &str = include_str!("../testdata/metrics.txt");

/// Describes the family in the form of [`UPSTREAM`].
fn described(family: &Family, labels: usize) -> String {
    let family = family.empty();
    family.add(&vec!["described"; labels], 0.0);
    let mut page = String::new();
    family.render(&mut page);
    let lines: Vec<&str> = page.lines().collect();
    let [help, kind, series @ ..] = &lines[..] else { panic!("{page}") };
    let name = help.split(' ').nth(2).unwrap();
    let labels_of = |line: &str| -> Vec<String> {
        let pairs = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
        let names = pairs.split(',').filter_map(|pair| pair.split_once('='));
        names.map(|(name, _)| name.to_owned()).filter(|name| name != "le").collect()
    };
    let bound = |line: &&str| {
        let (_, rest) = line.strip_prefix(name)?.strip_prefix("_bucket")?.rsplit_once("le=\"")?;
        Some(rest.split_once('"')?.0.to_owned()).filter(|bound| bound != "+Inf")
    };
    let bounds: Vec<String> = series.iter().filter_map(bound).collect();
    let line = format!("{name}{{{}}} {}", labels_of(series[0]).join(","), bounds.join(" "));
    format!("{help}\n{kind}\n{}\n", line.trim_end())
}

/// The families that upstream has and these controllers lack are in the documentation, with
/// reasons.
#[test]
fn families_are_those_of_kube_controller_manager_or_documented_as_missing() {
    let docs = include_str!("../../../docs/operating/metrics.md");
    let upstream: Vec<&str> = UPSTREAM.lines().collect();
    let mut names = Vec::new();
    for family in upstream.chunks(3) {
        let [_, _, series] = family else { panic!("{family:?}") };
        let (name, rest) = series.split_once('{').unwrap();
        names.push(format!("Family({name})"));
        let (labels, _) = rest.split_once('}').unwrap();
        let labels = labels.split(',').filter(|label| !label.is_empty()).count();
        match REGISTRY.all().find(|ours| format!("{ours:?}") == format!("Family({name})")) {
            Some(ours) => assert_eq!(described(ours, labels), family.join("\n") + "\n"),
            None => assert!(docs.contains(&format!("`{name}`")), "{name} is not documented"),
        }
    }
    let mut own = Vec::new();
    for family in REGISTRY.all() {
        let name = format!("{family:?}");
        assert!(names.contains(&name), "{name} is not upstream's");
        assert!(!own.contains(&name), "{name} twice");
        own.push(name);
    }
}

static COUNTED: Family = Family::gauge("counted", "[ALPHA] Counted.", &[]);
static EVENTS: Family = Family::counter("events_total", "[ALPHA] Events.", &[]);
static OWN: [&[&Family]; 1] = [&[&COUNTED, &EVENTS]];

/// A controller.
struct Objects(f64);

#[test]
fn gauges_are_counted_while_the_controllers_run() {
    static COUNTERS: Collectors = Collectors::new();
    let registry = Registry { families: &OWN, collectors: &COUNTERS };
    COUNTED.set(&[], 7.0);
    EVENTS.inc(&[]);
    let shutdown = Shutdown::new();
    registry.begin(&shutdown);
    let values = || {
        assert_eq!(registry.counted().count(), 2);
        (COUNTED.read(&[]), EVENTS.read(&[]))
    };
    assert_eq!(values(), (0.0, 1.0));
    let objects = Arc::new(Objects(3.0));
    registry.collectors.add(&objects, |objects| COUNTED.set(&[], objects.0));
    assert_eq!(COUNTED.read(&[]), 0.0);
    assert_eq!(values(), (3.0, 1.0));
    shutdown.request();
    // Another server leads: the gauges are its own.
    assert_eq!(values(), (0.0, 1.0));
    registry.begin(&Shutdown::new());
    registry.collectors.add(&objects, |objects| COUNTED.set(&[], objects.0));
    drop(objects);
    assert_eq!(values(), (0.0, 1.0));
}
