//! Charts: their files, metadata and subcharts.

pub(crate) mod archive;
mod load;
mod tar;

pub(crate) use load::values as values_of;
pub use load::{LoadError, load};
#[cfg(feature = "fuzzing")]
pub(crate) use load::{fuzz_archive, fuzz_files};

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A file of a chart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Path inside the chart, such as `templates/deployment.yaml`.
    pub name: String,
    /// Content.
    pub data: Vec<u8>,
    /// Time of its last change, in seconds since 1970.
    pub modified: i64,
}

/// A maintainer in Chart.yaml.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Maintainer {
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub name: String,
    /// Mail address.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub email: String,
    /// Page.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub url: String,
}

/// A dependency in Chart.yaml or requirements.yaml.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dependency {
    /// Name of the subchart.
    #[serde(deserialize_with = "text")]
    pub name: String,
    /// Range of versions.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub version: String,
    /// Repository; not read, because subcharts are part of the archive.
    #[serde(deserialize_with = "text")]
    pub repository: String,
    /// Paths of values that switch the subchart on or off, with commas.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub condition: String,
    /// Tags that switch the subchart on or off.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub tags: Vec<String>,
    /// Whether the subchart is part of the release.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub enabled: bool,
    /// Values that the parent takes from the subchart.
    #[serde(rename = "import-values", skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "list")]
    pub import_values: Vec<Value>,
    /// Another name for the subchart.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub alias: String,
}

/// Chart.yaml.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub name: String,
    /// Home page.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub home: String,
    /// Addresses of the source code.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub sources: Vec<String>,
    /// Version of the chart.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub version: String,
    /// Description.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub description: String,
    /// Keywords.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub keywords: Vec<String>,
    /// Maintainers.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub maintainers: Vec<Maintainer>,
    /// Icon.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub icon: String,
    /// `v1` or `v2`.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub api_version: String,
    /// Unused by Helm.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub condition: String,
    /// Unused by Helm.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub tags: String,
    /// Version of the application.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub app_version: String,
    /// Whether the chart is deprecated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deprecated: bool,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "texts")]
    pub annotations: BTreeMap<String, String>,
    /// Range of Kubernetes versions.
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "text")]
    pub kube_version: String,
    /// Subcharts.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "list")]
    pub dependencies: Vec<Dependency>,
    /// `application` or `library`.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    #[serde(deserialize_with = "text")]
    pub kind: String,
}

/// A scalar as text: YAML reads `appVersion: 1.0` as a number, and sigs.k8s.io/yaml gives a string
/// field its text.
fn text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Array(_) | Value::Object(_) => {
            Err(serde::de::Error::custom("expected a string, found a list or mapping"))
        }
    }
}

fn texts<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    #[derive(Deserialize)]
    struct Text(#[serde(deserialize_with = "text")] String);
    let entries: Option<BTreeMap<String, Text>> = Option::deserialize(deserializer)?;
    Ok(entries.unwrap_or_default().into_iter().map(|(key, Text(text))| (key, text)).collect())
}

fn list<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::<Vec<T>>::deserialize(deserializer)?.unwrap_or_default())
}

/// A chart with its subcharts.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// Chart.yaml.
    pub metadata: Metadata,
    /// Chart.lock.
    pub lock: Option<Value>,
    /// Files under templates/.
    pub templates: Vec<File>,
    /// values.yaml.
    pub values: Map<String, Value>,
    /// values.schema.json.
    pub schema: Option<Vec<u8>>,
    /// All other files.
    pub files: Vec<File>,
    /// Subcharts.
    pub dependencies: Vec<Chart>,
}

impl Chart {
    /// The name, which is the alias for an aliased subchart.
    pub fn name(&self) -> &str {
        &self.metadata.name
    }

    /// Whether only its definitions are used.
    pub fn is_library(&self) -> bool {
        self.metadata.kind.eq_ignore_ascii_case("library")
    }

    /// The files under crds/ of the chart and its subcharts, in the order in which Helm installs
    /// them.
    pub fn crds(&self) -> Vec<&File> {
        let is_manifest = |file: &&File| {
            let end = file.name.rsplit_once('.').map_or("", |(_, end)| end);
            file.name.starts_with("crds/") && matches!(end, "yaml" | "yml" | "json")
        };
        let own = self.files.iter().filter(is_manifest);
        let nested = self.dependencies.iter().flat_map(|sub| sub.crds());
        own.chain(nested).collect()
    }

    /// The chart as releases record it: without its subcharts, as in Helm.
    pub fn to_record(&self) -> Value {
        let files = |files: &[File]| -> Vec<Value> { files.iter().map(file_record).collect() };
        serde_json::json!({
            "metadata": self.metadata,
            "lock": self.lock,
            "templates": files(&self.templates),
            "values": self.values,
            "schema": self.schema.as_deref().map(encoded),
            "schemamodtime": "0001-01-01T00:00:00Z",
            "files": files(&self.files),
        })
    }
}

fn encoded(data: &[u8]) -> String {
    base64::Engine::encode(&base64::prelude::BASE64_STANDARD, data)
}

fn file_record(file: &File) -> Value {
    let mut record = serde_json::json!({"name": file.name, "data": encoded(&file.data)});
    if let (Some(fields), Ok(time)) =
        (record.as_object_mut(), jiff::Timestamp::from_second(file.modified))
    {
        fields.insert("modtime".into(), time.to_string().into());
    }
    record
}
