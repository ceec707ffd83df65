//! Renders the templates of a chart (`pkg/engine` of Helm).

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Client, Discovery, ListOptions};
use go_template::{Capabilities, Entries, Host, HostError, Options, Source, Value};
use tokio::runtime::Handle;

use crate::chart::{Chart, Dependency, File, Maintainer, Metadata};
use crate::values::Values;

/// The name of notes, which are no objects.
const NOTES: &str = "NOTES.txt";

/// What templates know about the release.
#[derive(Debug, Clone)]
pub struct ReleaseFacts {
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Number of the revision.
    pub revision: i64,
    /// Whether this is no upgrade.
    pub is_install: bool,
}

/// Rendered files without notes, and the notes.
pub type Rendered = (BTreeMap<String, String>, String);

/// The templates cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A template fails; the text names the place.
    #[error(transparent)]
    Template(#[from] go_template::RenderError),
    /// The rendering crashed.
    #[error("the rendering crashed: {0}")]
    Crashed(#[from] tokio::task::JoinError),
}

/// Renders a chart with its values; `lookup` reads the cluster through `client`.
///
/// # Errors
/// A template fails or exceeds a limit.
pub async fn render(
    client: &Client,
    chart: Arc<Chart>,
    values: Values,
    facts: ReleaseFacts,
    capabilities: Capabilities,
) -> Result<Rendered, RenderError> {
    let host = ClusterHost { client: client.clone(), runtime: Handle::current() };
    let work = move || {
        let options = Options::default();
        Ok(render_with(&host, &chart, values, &facts, &capabilities, &options)?)
    };
    base::tasks::blocking(work).await?
}

/// As [`render`], with another cluster and other bounds, on this thread.
pub(crate) fn render_with(
    host: &(dyn Host + Sync),
    chart: &Chart,
    values: Values,
    facts: &ReleaseFacts,
    capabilities: &Capabilities,
    options: &Options,
) -> Result<Rendered, go_template::RenderError> {
    let mut files = Vec::new();
    let top = Scope {
        release: release(facts),
        capabilities: capabilities.value(),
        path: chart.name().to_owned(),
    };
    collect(chart, serde_json::Value::Object(values).into(), true, &top, &mut files);
    let sources: Vec<Source<'_>> = files
        .iter()
        .map(|file| Source {
            name: &file.name,
            text: &file.text,
            root: file.root.clone(),
            render: file.render,
        })
        .collect();
    let mut rendered = go_template::render(&sources, host, options)?;
    let own_notes = format!("{}/templates/{NOTES}", chart.name());
    let notes = rendered.get(&own_notes).cloned().unwrap_or_default();
    rendered.retain(|name, _| !name.ends_with(NOTES));
    Ok((rendered, notes))
}

/// What all files of a chart share.
struct Scope {
    release: Value,
    capabilities: Value,
    path: String,
}

struct Template {
    name: String,
    text: String,
    root: Value,
    render: bool,
}

fn release(facts: &ReleaseFacts) -> Value {
    Value::from_iter([
        ("Name", Value::from(facts.name.as_str())),
        ("Namespace", Value::from(facts.namespace.as_str())),
        ("IsUpgrade", Value::from(!facts.is_install)),
        ("IsInstall", Value::from(facts.is_install)),
        ("Revision", Value::Int(facts.revision)),
        ("Service", Value::from("Helm")),
    ])
}

/// Adds the templates of a chart and its subcharts; the result is the chart's dot.
fn collect(
    chart: &Chart,
    values: Value,
    is_root: bool,
    scope: &Scope,
    out: &mut Vec<Template>,
) -> Value {
    let files = chart.files.iter().map(|file| (file.name.clone(), file.data.clone()));
    let subcharts = Value::map();
    let root = Value::from_iter([
        ("Chart", metadata(&chart.metadata, is_root)),
        ("Files", Value::files(files)),
        ("Release", scope.release.clone()),
        ("Capabilities", scope.capabilities.clone()),
        ("Values", values.clone()),
        ("Subcharts", subcharts.clone()),
    ]);
    for subchart in &chart.dependencies {
        let own = match values.get(subchart.name()) {
            Some(table @ Value::Map(_)) => table,
            _ => Value::map(),
        };
        let inner = Scope {
            release: scope.release.clone(),
            capabilities: scope.capabilities.clone(),
            path: format!("{}/charts/{}", scope.path, subchart.name()),
        };
        let dot = collect(subchart, own, false, &inner, out);
        if let Value::Map(map) = &subcharts {
            map.insert(subchart.name(), dot);
        }
    }
    out.extend(chart.templates.iter().filter_map(|file| template(chart, file, &root, scope)));
    root
}

fn template(chart: &Chart, file: &File, root: &Value, scope: &Scope) -> Option<Template> {
    let is_partial = file.name.rsplit('/').next().is_some_and(|base| base.starts_with('_'));
    if chart.is_library() && !is_partial {
        return None;
    }
    Some(Template {
        name: format!("{}/{}", scope.path, file.name),
        text: String::from_utf8_lossy(&file.data).into_owned(),
        root: root.clone(),
        render: !is_partial,
    })
}

fn text(value: &str) -> Value {
    Value::from(value)
}

fn texts(values: &[String]) -> Value {
    Value::list(values.iter().map(|value| text(value)).collect())
}

/// Chart.yaml under the names of Go's fields.
fn metadata(metadata: &Metadata, is_root: bool) -> Value {
    let annotations = metadata.annotations.iter();
    let annotations: Entries =
        annotations.map(|(key, value)| (key.as_str().into(), text(value))).collect();
    let annotations = go_template::Map::of(go_template::Class::Strings, annotations);
    Value::from_iter([
        ("Name", text(&metadata.name)),
        ("Home", text(&metadata.home)),
        ("Sources", texts(&metadata.sources)),
        ("Version", text(&metadata.version)),
        ("Description", text(&metadata.description)),
        ("Keywords", texts(&metadata.keywords)),
        ("Maintainers", Value::list(metadata.maintainers.iter().map(maintainer).collect())),
        ("Icon", text(&metadata.icon)),
        ("APIVersion", text(&metadata.api_version)),
        ("Condition", text(&metadata.condition)),
        ("Tags", text(&metadata.tags)),
        ("AppVersion", text(&metadata.app_version)),
        ("Deprecated", Value::from(metadata.deprecated)),
        ("Annotations", Value::Map(annotations)),
        ("KubeVersion", text(&metadata.kube_version)),
        ("Dependencies", Value::list(metadata.dependencies.iter().map(dependency).collect())),
        ("Type", text(&metadata.kind)),
        ("IsRoot", Value::from(is_root)),
    ])
}

fn maintainer(maintainer: &Maintainer) -> Value {
    Value::from_iter([
        ("Name", text(&maintainer.name)),
        ("Email", text(&maintainer.email)),
        ("URL", text(&maintainer.url)),
    ])
}

fn dependency(dependency: &Dependency) -> Value {
    let imports = dependency.import_values.iter().cloned().map(Value::from).collect();
    Value::from_iter([
        ("Name", text(&dependency.name)),
        ("Version", text(&dependency.version)),
        ("Repository", text(&dependency.repository)),
        ("Condition", text(&dependency.condition)),
        ("Tags", texts(&dependency.tags)),
        ("Enabled", Value::from(dependency.enabled)),
        ("ImportValues", Value::list(imports)),
        ("Alias", text(&dependency.alias)),
    ])
}

/// Answers `lookup` from the API server. Rendering runs on a blocking thread, which may wait.
struct ClusterHost {
    client: Client,
    runtime: Handle,
}

impl ClusterHost {
    async fn read(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Value, client::Error> {
        let mut discovery = Discovery::new(&self.client);
        let Some(found) = discovery.kind(api_version, kind).await? else {
            return Ok(Value::map());
        };
        let namespace = if found.is_namespaced { namespace } else { "" };
        if name.is_empty() {
            let options = ListOptions::default();
            let items = self.client.list_values(&found.gvr, namespace, &options).await?;
            let list = serde_json::json!({
                "apiVersion": api_version, "kind": format!("{kind}List"), "items": items,
            });
            return Ok(list.into());
        }
        match self.client.get_value(&found.gvr, namespace, name).await {
            Ok(object) => Ok(object.into()),
            Err(error) if error.is_not_found() => Ok(Value::map()),
            Err(error) => Err(error),
        }
    }
}

impl Host for ClusterHost {
    fn lookup(
        &self,
        api_version: &str,
        kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Value, HostError> {
        let read = self.runtime.block_on(self.read(api_version, kind, namespace, name));
        read.map_err(|error| HostError(error.to_string()))
    }
}
