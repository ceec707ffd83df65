//! The entry points of the fuzzers of charts, values and rendered manifests.

use std::collections::BTreeMap;

use go_template::{Capabilities, NoCluster, Options};

use crate::chart::{self, Chart};
use crate::manifest;
use crate::render::{self, ReleaseFacts};
use crate::values::coalesce::coalesce_values;
use crate::values::{Values, dependencies, schema, set};
use crate::version::{Constraints, Version, is_compatible};
use crate::yaml;

/// The bounds of one rendering.
const OPTIONS: Options =
    Options { strict: false, max_output_bytes: 1 << 20, max_steps: 50_000, max_depth: 100 };

/// Loads a chart from a tar archive that is not compressed, and renders it. The checksums of
/// headers are corrected, so that changed archives are not refused for them.
pub fn archive(data: &[u8]) {
    if let Ok(chart) = chart::fuzz_archive(data) {
        apply(chart);
    }
}

/// Loads a chart from files and renders it. Each file is its name, a zero byte, its content and a
/// zero byte.
pub fn files(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let mut files = Vec::new();
    while let (Some(name), Some(content)) = (parts.next(), parts.next()) {
        files.push((String::from_utf8_lossy(name).into_owned(), content.to_vec()));
    }
    if let Ok(chart) = chart::fuzz_files(files) {
        apply(chart);
    }
}

fn apply(mut chart: Chart) {
    let values = Values::new();
    let _ = chart.to_record();
    if dependencies::process(&mut chart, &values).is_err() {
        return;
    }
    let Ok(values) = coalesce_values(&chart, &values) else { return };
    let _ = schema::check(&chart, &values);
    let facts = ReleaseFacts {
        name: "fuzzed".into(),
        namespace: "default".into(),
        revision: 1,
        is_install: true,
    };
    let capabilities = Capabilities {
        kube_version: "v1.37.1".into(),
        kube_major: "1".into(),
        kube_minor: "37".into(),
        api_versions: vec!["v1".into(), "apps/v1".into(), "apps/v1/Deployment".into()],
        helm_version: "v4.3.1".into(),
    };
    let rendered = render::render_with(&NoCluster, &chart, values, &facts, &capabilities, &OPTIONS);
    if let Ok((files, _)) = rendered {
        let _ = manifest::sort(&files);
    }
}

/// Reads values, an expression of `--set`, a schema, a manifest and a range of versions; the parts
/// end with zero bytes.
///
/// # Panics
/// When a rendered manifest that was accepted is refused at the removal of its release.
pub fn values(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let mut next = || parts.next().unwrap_or_default();
    let mut chart = Chart::default();
    chart.metadata.name = "fuzzed".into();
    chart.values = chart::values_of(next()).unwrap_or_default();
    let mut own = Values::new();
    for strings in [false, true] {
        let text = String::from_utf8_lossy(next()).into_owned();
        let _ = set::apply(&text, strings, &mut own);
    }
    if let Ok(all) = coalesce_values(&chart, &own) {
        chart.schema = Some(next().to_vec());
        let _ = schema::check(&chart, &all);
    }
    let text = String::from_utf8_lossy(next()).into_owned();
    let _ = yaml::documents(text.as_bytes());
    let files = BTreeMap::from([("manifest".to_owned(), text.clone())]);
    if manifest::sort(&files).is_ok() {
        assert!(manifest::to_remove(&text).is_ok(), "{text:?}");
    }
    let range = String::from_utf8_lossy(next()).into_owned();
    let version = String::from_utf8_lossy(next()).into_owned();
    let _ = (Constraints::parse(&range).is_ok(), Version::parse(&version).is_ok());
    let _ = is_compatible(&range, &version);
}
