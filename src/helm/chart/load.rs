//! Charts from the files of an archive (`pkg/chart/v2/loader` of Helm).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::archive::{self, ArchiveError};
use super::tar::Limits;
use super::{Chart, Dependency, File, Metadata};
use crate::version::Version;
use crate::yaml;

/// The most levels of charts in charts.
const DEPTH_MAX: usize = 16;

/// The most subcharts of a chart, and the most dependencies that it declares: each is compared with
/// each.
const DEPENDENCIES_MAX: usize = 1000;

/// The files are not a chart.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// Chart.yaml does not exist.
    #[error("Chart.yaml file is missing")]
    NoMetadata,
    /// A YAML file cannot be read.
    #[error("cannot load {file}: {cause}")]
    Yaml {
        /// Path of the file.
        file: String,
        /// Reason, with the line.
        cause: String,
    },
    /// Chart.yaml lacks a field or has a bad one.
    #[error("validation: {0}")]
    Invalid(String),
    /// A subchart is not a chart.
    #[error("error unpacking subchart {name} in {chart}: {cause}")]
    Subchart {
        /// Name of the subchart.
        name: String,
        /// Name of its parent.
        chart: String,
        /// Reason.
        cause: Box<LoadError>,
    },
    /// Charts in charts without end.
    #[error("subcharts are nested more than {DEPTH_MAX} levels deep")]
    Depth,
}

/// Loads the chart of an archive.
///
/// # Errors
/// The archive is damaged, or its files are not a chart.
pub fn load(data: &[u8]) -> Result<Chart, LoadError> {
    from_archive(data, 0, &mut Limits::default())
}

/// The limits hold for an archive and those inside of it together.
fn from_archive(data: &[u8], depth: usize, limits: &mut Limits) -> Result<Chart, LoadError> {
    from_files(archive::files(data, limits)?, depth, limits)
}

fn yaml_error(file: &str, cause: impl std::fmt::Display) -> LoadError {
    LoadError::Yaml { file: file.to_owned(), cause: cause.to_string() }
}

fn from_files(files: Vec<File>, depth: usize, limits: &mut Limits) -> Result<Chart, LoadError> {
    if depth > DEPTH_MAX {
        return Err(LoadError::Depth);
    }
    let mut chart = Chart::default();
    let document = files.iter().find(|file| file.name == "Chart.yaml");
    let document = document.ok_or(LoadError::NoMetadata)?;
    chart.metadata = metadata(document)?;
    let mut subcharts: BTreeMap<String, Vec<File>> = BTreeMap::new();
    for mut file in files {
        match file.name.as_str() {
            "Chart.yaml" => {}
            "Chart.lock" => chart.lock = Some(value(&file)?),
            "requirements.lock" => {
                chart.lock = Some(value(&file)?);
                keep_for_v1(&mut chart, file);
            }
            "values.yaml" => {
                chart.values = values(&file.data).map_err(|e| yaml_error("values.yaml", e))?
            }
            "values.schema.json" => chart.schema = Some(file.data),
            "requirements.yaml" => {
                let fields = value(&file)?;
                if let Some(listed) = fields.get("dependencies").filter(|d| !d.is_null()) {
                    let read = serde_json::from_value::<Vec<Dependency>>(listed.clone());
                    chart.metadata.dependencies = read.map_err(|e| yaml_error(&file.name, e))?;
                }
                keep_for_v1(&mut chart, file);
            }
            name if name.starts_with("templates/") => chart.templates.push(file),
            name if name.starts_with("charts/") && !name.ends_with(".prov") => {
                let inner = name.strip_prefix("charts/").unwrap_or(name).to_owned();
                let first = inner.split('/').next().unwrap_or_default().to_owned();
                file.name = inner;
                subcharts.entry(first).or_default().push(file);
            }
            _ => chart.files.push(file),
        }
    }
    validate(&chart.metadata)?;
    if subcharts.len() > DEPENDENCIES_MAX {
        let text = format!("the chart has more than {DEPENDENCIES_MAX} subcharts");
        return Err(LoadError::Invalid(text));
    }
    for (name, files) in subcharts {
        if name.starts_with(['_', '.']) {
            continue;
        }
        let subchart =
            subchart(&name, files, depth, limits).map_err(|cause| LoadError::Subchart {
                name: name.clone(),
                chart: chart.metadata.name.clone(),
                cause: Box::new(cause),
            })?;
        chart.dependencies.push(subchart);
    }
    Ok(chart)
}

fn keep_for_v1(chart: &mut Chart, file: File) {
    if chart.metadata.api_version == "v1" {
        chart.files.push(file);
    }
}

fn subchart(
    name: &str,
    files: Vec<File>,
    depth: usize,
    limits: &mut Limits,
) -> Result<Chart, LoadError> {
    if name.ends_with(".tgz") {
        let file = files.first().filter(|file| file.name == name);
        let file = file.ok_or_else(|| LoadError::Invalid(format!("{name} is not a file")))?;
        return from_archive(&file.data, depth + 1, limits);
    }
    let inner = files.into_iter().filter_map(|mut file| {
        file.name = file.name.split_once('/')?.1.to_owned();
        Some(file)
    });
    from_files(inner.collect(), depth + 1, limits)
}

fn value(file: &File) -> Result<Value, LoadError> {
    yaml::parse(&file.data).map_err(|e| yaml_error(&file.name, e))
}

fn metadata(file: &File) -> Result<Metadata, LoadError> {
    let mut metadata: Metadata =
        serde_json::from_value(value(file)?).map_err(|e| yaml_error(&file.name, e))?;
    if metadata.api_version.is_empty() {
        metadata.api_version = "v1".into();
    }
    Ok(metadata)
}

/// The values of all documents of a file, merged in their order.
///
/// # Errors
/// The text is not YAML, or a document is not a mapping.
pub(crate) fn values(data: &[u8]) -> Result<Map<String, Value>, yaml::YamlError> {
    let mut merged = Map::new();
    for document in yaml::documents(data)? {
        match document {
            Value::Null => {}
            Value::Object(values) => crate::values::merge(&mut merged, values),
            _ => return Err(yaml::YamlError::new("values are not a mapping of keys")),
        }
    }
    Ok(merged)
}

fn validate(metadata: &Metadata) -> Result<(), LoadError> {
    let invalid = |text: String| Err(LoadError::Invalid(text));
    let name = metadata.name.as_str();
    if name.is_empty() {
        return invalid("chart.metadata.name is required".into());
    }
    if matches!(name, "." | "..") || name.contains('/') {
        return invalid(format!("chart.metadata.name {name:?} is invalid"));
    }
    if metadata.version.is_empty() {
        return invalid("chart.metadata.version is required".into());
    }
    if Version::parse(&metadata.version).is_err() {
        return invalid(format!("chart.metadata.version {:?} is invalid", metadata.version));
    }
    if !matches!(metadata.api_version.as_str(), "v1" | "v2") {
        let version = &metadata.api_version;
        return invalid(format!("chart.metadata.apiVersion {version:?} is not v1 or v2"));
    }
    if !matches!(metadata.kind.as_str(), "" | "application" | "library") {
        return invalid("chart.metadata.type must be application or library".into());
    }
    if metadata.dependencies.len() > DEPENDENCIES_MAX {
        return invalid(format!("the chart has more than {DEPENDENCIES_MAX} dependencies"));
    }
    let mut names = std::collections::BTreeSet::new();
    for dependency in &metadata.dependencies {
        let alias = dependency.alias.as_str();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        if !alias.chars().all(is_plain) {
            let name = &dependency.name;
            return invalid(format!(
                "dependency {name:?} has disallowed characters in the alias {alias:?}"
            ));
        }
        let key = if alias.is_empty() { dependency.name.as_str() } else { alias };
        if !names.insert(key) {
            return invalid(format!("more than one dependency with name or alias {key:?}"));
        }
    }
    Ok(())
}

/// Loads a chart from a tar archive that is not compressed, after its checksums are corrected.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_archive(data: &[u8]) -> Result<Chart, LoadError> {
    let data = super::tar::with_checksums(data);
    let mut limits = Limits { files: 1000, bytes: 1 << 20 };
    from_files(archive::from_tar(data.as_slice(), &mut limits)?, 0, &mut limits)
}

/// Loads a chart from names and contents.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz_files(files: Vec<(String, Vec<u8>)>) -> Result<Chart, LoadError> {
    let files = files.into_iter().map(|(name, data)| File { name, data, modified: 0 });
    let mut limits = Limits { files: 1000, bytes: 1 << 20 };
    from_files(files.collect(), 0, &mut limits)
}

#[cfg(test)]
mod tests {
    use super::super::archive::tests::{tgz, tgz_of};
    use super::*;

    #[test]
    fn subcharts_are_folders_and_archives() {
        let inner = tgz(&[("leaf/Chart.yaml", "apiVersion: v2\nname: leaf\nversion: 1.0.0")]);
        assert!(load(&inner).unwrap().dependencies.is_empty());
        let chart = load(&tgz(&[
            ("top/Chart.yaml", "apiVersion: v2\nname: top\nversion: 0.1.0\nappVersion: 1.0"),
            ("top/values.yaml", "a: 1\n---\nb: {c: 2}"),
            ("top/charts/sub/Chart.yaml", "name: sub\nversion: 2.0.0"),
            ("top/charts/_skipped/x", ""),
            ("top/crds/a.yaml", "kind: X"),
            ("top/templates/_h.tpl", ""),
        ]))
        .unwrap();
        assert_eq!(chart.metadata.app_version, "1");
        assert_eq!(chart.dependencies[0].metadata.api_version, "v1");
        assert_eq!(Value::from(chart.values.clone()), serde_json::json!({"a": 1, "b": {"c": 2}}));
        assert_eq!(chart.crds().len(), 1);
    }

    #[test]
    fn the_limits_include_archives_inside_of_an_archive() {
        let large = "x".repeat(5 << 20);
        let metadata = ("sub/Chart.yaml", "apiVersion: v2\nname: sub\nversion: 1.0.0");
        let paths: Vec<String> = (0..7).map(|number| format!("sub/{number}")).collect();
        let large = paths.iter().map(|path| (path.as_str(), large.as_str()));
        let inner = tgz_of(large.chain([metadata]).map(|(name, text)| (name, text.as_bytes())));
        let names: Vec<String> = (0..3).map(|number| format!("top/charts/{number}.tgz")).collect();
        let metadata = ("top/Chart.yaml", &b"apiVersion: v2\nname: top\nversion: 1.0.0"[..]);
        let two = names.iter().take(2).map(|name| (name.as_str(), inner.as_slice()));
        assert_eq!(load(&tgz_of(two.chain([metadata]))).unwrap().dependencies.len(), 2);
        let three = names.iter().map(|name| (name.as_str(), inner.as_slice()));
        let error = load(&tgz_of(three.chain([metadata]))).unwrap_err().to_string();
        assert!(error.ends_with("decompressed chart is larger than the maximum size 104857600"));
    }

    #[test]
    fn bad_charts_are_refused_with_helms_texts() {
        for (text, want) in [
            ("name: a", "chart.metadata.version is required"),
            ("version: 1.0.0", "chart.metadata.name is required"),
            ("name: a\nversion: one", "chart.metadata.version \"one\" is invalid"),
            ("name: a\nversion: 1.0.0\ntype: x", "must be application or library"),
            ("a: [", "cannot load Chart.yaml"),
        ] {
            let error = load(&tgz(&[("c/Chart.yaml", text)])).unwrap_err().to_string();
            assert!(error.contains(want), "{text}: {error}");
        }
        let dependencies: String = (0..1001).map(|n| format!("- {{name: d{n}}}\n")).collect();
        let text = format!("name: a\nversion: 1.0.0\ndependencies:\n{dependencies}");
        let error = load(&tgz(&[("c/Chart.yaml", &text)])).unwrap_err().to_string();
        assert_eq!(error, "validation: the chart has more than 1000 dependencies");
    }
}
