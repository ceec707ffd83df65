//! Templates as k3s's users write them, and drop-in files.

use super::*;
use crate::Config;

const OLD: Version = (1, 6);
const NEW: Version = (2, 4);

fn config() -> RuntimeConfig {
    Config::new("n", [127, 0, 0, 1].into(), "/d".into(), "/r".into()).runtime
}

fn handlers() -> [RuntimeHandler; 1] {
    [RuntimeHandler {
        name: "crun",
        runtime_type: "io.containerd.runc.v2".to_owned(),
        oci_runtime: Some("/usr/bin/crun".into()),
        shim_dir: None,
    }]
}

/// A folder with files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn rendered(template: &str, base: &str) -> Result<String, String> {
    let folder = folder(&[("config-v3.toml.tmpl", template)]);
    let files = Customization::read(folder.path(), NEW).unwrap();
    let (config, handlers) = (config(), handlers());
    let snapshotter = Snapshotter::Overlayfs;
    let input = TemplateInput { config: &config, handlers: &handlers, snapshotter };
    files.render(base.to_owned(), &input).map_err(|error| error.to_string())
}

#[test]
fn without_files_the_configuration_is_that_of_kube_lite() {
    for (version, format) in [(OLD, ConfigFormat::V2), (NEW, ConfigFormat::V3)] {
        let files = Customization::read(Path::new("/none"), version).unwrap();
        assert!(files.is_empty());
        assert_eq!(files, Customization { format, ..Customization::default() });
    }
}

#[test]
fn a_template_contains_the_base_and_uses_the_fields_of_k3s() {
    let base = "version = 3\nroot = \"/{{ x\"\n";
    let template = "{{ template \"base\" . }}\n[plugins.x]\n  a = \"{{ .NodeConfig.Containerd.\
                    Root }}\"{{ range $k, $v := .ExtraRuntimes }}\n  {{ $k }} = \"{{ $v.BinaryName \
                    }}\"{{ end }}{{ if .SystemdCgroup }} systemd{{ end }}\n";
    let expected = format!(
        "{base}\n[plugins.x]\n  a = \"/d/containerd/containerd\"\n  crun = \"/usr/bin/crun\"\n"
    );
    let expected = expected.replace("/d/containerd/containerd", "/d/containerd");
    assert_eq!(rendered(template, base).unwrap(), expected);
    let error = rendered("{{ .NodeConfig.Images }}", base).unwrap_err();
    assert!(error.contains("config-v3.toml.tmpl is invalid: "), "{error}");
    assert!(error.contains("map has no entry for key \"Images\""), "{error}");
    let error = rendered("{{ template \"base\" . ", base).unwrap_err();
    assert!(error.contains("is invalid: "), "{error}");
}

#[test]
fn the_format_is_that_of_the_template() {
    let both = [("config.toml.tmpl", "a"), ("config-v3.toml.tmpl", "b")];
    let format = |files: &[(&str, &str)], version| {
        let folder = folder(files);
        Customization::read(folder.path(), version).map(|files| files.format)
    };
    assert_eq!(format(&both, NEW).unwrap(), ConfigFormat::V3);
    assert_eq!(format(&both[..1], NEW).unwrap(), ConfigFormat::V2);
    assert_eq!(format(&both[..1], OLD).unwrap(), ConfigFormat::V2);
    let error = format(&both, OLD).unwrap_err().to_string();
    assert!(error.contains("needs containerd 2, this machine has 1.6: move it to "), "{error}");
}

#[test]
fn drop_in_files_are_imported_and_their_content_is_in_the_digest() {
    let folder = folder(&[
        ("config-v3.toml.d/10.toml", "a"),
        ("config-v3.toml.d/notes.txt", "x"),
        ("config.toml.d/20.toml", "b"),
    ]);
    let of = |version| Customization::read(folder.path(), version).unwrap();
    let pattern = |name: &str| Some(folder.path().join(name).join("*.toml"));
    assert_eq!(of(NEW).imports, pattern("config-v3.toml.d"));
    assert_eq!(of(OLD).imports, pattern("config.toml.d"));
    let before = of(NEW).imported;
    assert!(before.is_some());
    std::fs::write(folder.path().join("config-v3.toml.d/notes.txt"), "y").unwrap();
    assert_eq!(of(NEW).imported, before);
    std::fs::write(folder.path().join("config-v3.toml.d/10.toml"), "c").unwrap();
    assert_ne!(of(NEW).imported, before);
    let large = "#".repeat(usize::try_from(FILE_MAX).unwrap() + 1);
    std::fs::write(folder.path().join("config-v3.toml.d/10.toml"), large).unwrap();
    let error = Customization::read(folder.path(), NEW).unwrap_err().to_string();
    assert!(error.contains("10.toml is larger than 1048576 bytes"), "{error}");
}

#[test]
fn settings_that_a_drop_in_file_replaces_are_found() {
    let config = config();
    let dump = "address = \"/r/containerd.sock\"\nroot = '/d/containerd'\nstate = \
                \"/r/containerd\"\nconfig_path = \"/d/certs.d\"\n";
    assert_eq!(replaced(dump, &config), None);
    let without = dump.replace("certs.d", "other");
    assert_eq!(replaced(&without, &config).unwrap(), "config_path = \"/d/certs.d\"");
}

#[test]
fn the_reason_is_the_last_line() {
    assert_eq!(
        reason("time=x\ncontainerd: toml: table runc already exists\n\n"),
        "toml: table runc already exists"
    );
    assert_eq!(reason(""), "");
}
