//! What an administrator adds to containerd's configuration, in the files of k3s: a template
//! (`config.toml.tmpl`, `config-v3.toml.tmpl`) and drop-in files (`config.toml.d`,
//! `config-v3.toml.d`).

use std::io;
use std::path::{Path, PathBuf};

use go_template::{NoCluster, Options, Source, Value};
use sorting::CompactSort as _;

use super::config::{ConfigFormat, path as quoted_path, registries_dir};
use super::find::{ProgramError, RuntimePrograms, Version, run};
use super::handlers::RuntimeHandler;
use super::snapshotter::Snapshotter;
use crate::config::RuntimeConfig;
use crate::digest;
use crate::runtime::images::pause;

/// Maximum size of one file in bytes.
const FILE_MAX: u64 = 1 << 20;
/// Maximum number of drop-in files.
const DROP_INS_MAX: usize = 100;
/// The name of kube-lite's own configuration in a template.
const BASE: &str = "base";

/// Why the files of the administrator cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CustomizationError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} is larger than {FILE_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    #[error("{} has more than {DROP_INS_MAX} files", .0.display())]
    TooMany(PathBuf),
    #[error(
        "{} needs containerd 2, this machine has {}.{}: move it to {}", file.display(),
        version.0, version.1, instead.display()
    )]
    NeedsVersion2 { file: PathBuf, version: Version, instead: PathBuf },
    #[error("the template {} is invalid: {error}; correct or remove it", path.display())]
    Template { path: PathBuf, error: go_template::RenderError },
    #[error(
        "containerd rejects its configuration with the files in {}: {reason}; correct or remove \
         them", folder.display()
    )]
    Rejected { folder: PathBuf, reason: String },
    #[error(
        "the files in {} replace the setting {setting:?} of kube-lite; with containerd 1 a \
         drop-in file replaces the whole table of a plugin: use the template {} with \
         {{{{ template \"base\" . }}}} instead", folder.display(), template.display()
    )]
    Replaced { folder: PathBuf, setting: String, template: PathBuf },
    #[error(
        "--default-runtime={wanted}: neither this machine nor the files in {} have it",
        folder.display()
    )]
    DefaultRuntime { wanted: String, folder: PathBuf },
}

/// The files, and the format of configuration that they are written for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Customization {
    pub(crate) format: ConfigFormat,
    template: Option<Template>,
    /// The pattern of the drop-in files, if there are any.
    pub(crate) imports: Option<PathBuf>,
    /// A digest of the drop-in files, whose change restarts containerd.
    pub(crate) imported: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Template {
    path: PathBuf,
    text: String,
}

/// The settings that a template can use besides the base template: those of k3s that have a value
/// here.
pub(crate) struct TemplateInput<'a> {
    pub(crate) config: &'a RuntimeConfig,
    pub(crate) handlers: &'a [RuntimeHandler],
    pub(crate) snapshotter: Snapshotter,
}

impl Customization {
    /// Reads the files for the containerd of a version. A template for version 3 of the format
    /// precedes one for version 2, as in k3s.
    ///
    /// # Errors
    ///
    /// A file cannot be read, is too large, or is for a newer containerd.
    pub(crate) fn read(folder: &Path, version: Version) -> Result<Self, CustomizationError> {
        let newest = ConfigFormat::of_version(version);
        let of_v3 = ConfigFormat::V3.template(folder);
        if newest == ConfigFormat::V2 && of_v3.exists() {
            let instead = ConfigFormat::V2.template(folder);
            return Err(CustomizationError::NeedsVersion2 { file: of_v3, version, instead });
        }
        let mut formats = [ConfigFormat::V3, ConfigFormat::V2].into_iter();
        let found = formats.find(|format| format.template(folder).exists());
        let format = found.unwrap_or(newest);
        let template = match found {
            Some(format) => {
                let path = format.template(folder);
                Some(Template { text: read(&path)?, path })
            }
            None => None,
        };
        let drop_ins = format.drop_ins(folder);
        let imported = read_drop_ins(&drop_ins)?;
        let imports = imported.is_some().then(|| drop_ins.join("*.toml"));
        Ok(Self { format, template, imports, imported })
    }

    /// Whether there is no file.
    pub(super) fn is_empty(&self) -> bool {
        self.template.is_none() && self.imports.is_none()
    }

    /// Renders the template around `base`, the configuration of kube-lite, which is the result
    /// without a template.
    ///
    /// # Errors
    ///
    /// The template is wrong, or uses a field that does not exist.
    pub(crate) fn render(
        &self,
        base: String,
        input: &TemplateInput<'_>,
    ) -> Result<String, CustomizationError> {
        let Some(template) = &self.template else { return Ok(base) };
        // The base is text, whatever it contains.
        let escaped = base.replace("{{", "{{ \"{{\" }}");
        let name = template.path.file_name().unwrap_or_default().to_string_lossy();
        let root = fields(input);
        let sources = [
            Source { name: BASE, text: &escaped, root: root.clone(), render: false },
            Source { name: &name, text: &template.text, root, render: true },
        ];
        let options = Options { strict: true, max_depth: 100, ..Options::default() };
        let error = |error| CustomizationError::Template { path: template.path.clone(), error };
        let mut texts = go_template::render(&sources, &NoCluster, &options).map_err(error)?;
        Ok(texts.remove(&*name).unwrap_or_default())
    }

    /// Asks containerd whether it accepts the configuration in `candidate`, and checks that the
    /// settings that kube-lite depends on are in it. Without files of an administrator nothing is
    /// asked.
    ///
    /// # Errors
    ///
    /// containerd's reason, or the setting that was replaced.
    pub(crate) async fn check(
        &self,
        candidate: &Path,
        config: &RuntimeConfig,
        programs: &RuntimePrograms,
    ) -> Result<(), CustomizationError> {
        if self.is_empty() {
            return Ok(());
        }
        let folder = || config.templates_dir.clone();
        let rejected = |reason| CustomizationError::Rejected { folder: folder(), reason };
        let candidate = candidate.to_string_lossy();
        let dump = run(&programs.containerd, &["--config", &candidate, "config", "dump"]).await;
        let dump = dump.map_err(|error| match error {
            ProgramError::Status { stderr, .. } => rejected(reason(&stderr)),
            error => rejected(error.to_string()),
        })?;
        if let Some(setting) = replaced(&dump, config) {
            let template = self.format.template(&config.templates_dir);
            return Err(CustomizationError::Replaced { folder: folder(), setting, template });
        }
        match &config.default_runtime {
            Some(wanted) if !dump.contains(&format!(".runtimes.{wanted}]")) => {
                Err(CustomizationError::DefaultRuntime { wanted: wanted.clone(), folder: folder() })
            }
            _ => Ok(()),
        }
    }
}

/// The fields of k3s's templates that have a value here (`templates.ContainerdConfig`).
fn fields(input: &TemplateInput<'_>) -> Value {
    let config = input.config;
    let of_path = |path: &Path| Value::from(path.to_string_lossy().into_owned());
    let or_empty = |path: Option<&Path>| path.map_or_else(|| Value::from(""), of_path);
    let runtimes = input.handlers.iter().map(|handler| {
        let runtime = [
            ("RuntimeType", Value::from(handler.runtime_type.as_str())),
            ("BinaryName", or_empty(handler.oci_runtime.as_deref())),
        ];
        (handler.name, runtime.into_iter().collect())
    });
    let pause = config.pause_image.as_deref().unwrap_or(pause::IMAGE);
    let agent: Value = [
        ("CNIBinDir", of_path(&config.cni_bin_dir)),
        ("CNIConfDir", of_path(&config.cni_conf_dir)),
        ("PauseImage", Value::from(pause)),
        ("Snapshotter", Value::from(input.snapshotter.name())),
    ]
    .into_iter()
    .collect();
    let containerd: Value = [
        ("Address", of_path(&config.supervised_socket())),
        ("Registry", of_path(&registries_dir(config))),
        ("Root", of_path(&config.containerd_root())),
        ("State", of_path(&config.containerd_state())),
        ("Template", of_path(&config.templates_dir)),
    ]
    .into_iter()
    .collect();
    let default = config.default_runtime.as_deref().unwrap_or_default();
    let node: Value = [
        ("AgentConfig", agent),
        ("Containerd", containerd),
        ("DefaultRuntime", Value::from(default)),
    ]
    .into_iter()
    .collect();
    [
        ("NodeConfig", node),
        ("DisableCgroup", false.into()),
        ("SystemdCgroup", false.into()),
        ("IsRunningInUserNS", false.into()),
        ("EnableUnprivileged", true.into()),
        ("NonrootDevices", config.nonroot_devices.into()),
        ("ExtraRuntimes", runtimes.collect()),
        ("Program", "kube-lite".into()),
    ]
    .into_iter()
    .collect()
}

/// The first setting that kube-lite depends on and that a complete configuration lacks.
fn replaced(dump: &str, config: &RuntimeConfig) -> Option<String> {
    // containerd prints strings in either kind of quotation marks.
    let has = |path: &Path| {
        dump.contains(&quoted_path(path)) || dump.contains(&format!("'{}'", path.display()))
    };
    [
        ("address", config.supervised_socket()),
        ("root", config.containerd_root()),
        ("state", config.containerd_state()),
        ("config_path", registries_dir(config)),
    ]
    .into_iter()
    .find(|(_, path)| !has(path))
    .map(|(name, path)| format!("{name} = {}", quoted_path(&path)))
}

/// The last line that containerd printed, without its name.
fn reason(stderr: &str) -> String {
    let line = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().trim_start_matches("containerd: ").to_owned()
}

fn read(path: &Path) -> Result<String, CustomizationError> {
    let error = |error| CustomizationError::Read { path: path.to_owned(), error };
    if std::fs::metadata(path).map_err(error)?.len() > FILE_MAX {
        return Err(CustomizationError::TooLarge(path.to_owned()));
    }
    std::fs::read_to_string(path).map_err(error)
}

/// A digest of the names and contents of the drop-in files; `None` without any.
fn read_drop_ins(folder: &Path) -> Result<Option<String>, CustomizationError> {
    let error = |error| CustomizationError::Read { path: folder.to_owned(), error };
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(error)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
        if paths.len() > DROP_INS_MAX {
            return Err(CustomizationError::TooMany(folder.to_owned()));
        }
    }
    if paths.is_empty() {
        return Ok(None);
    }
    paths.compact_sort();
    let mut all = digest::Sha256::default();
    for path in paths {
        all.update(path.to_string_lossy().as_bytes());
        all.update(&[0]);
        all.update(read(&path)?.as_bytes());
        all.update(&[0]);
    }
    Ok(Some(all.finish()))
}

#[cfg(test)]
mod tests;
