//! The parameter `pathPattern` of a StorageClass: the path of a volume below its storage directory,
//! as a Go template over the claim.

use std::path::{Component, Path};

use api::k8s::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Maximum length of a path below the storage directory, in bytes.
const LENGTH_MAX: usize = 1024;

/// Why a pattern gives no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathPatternError {
    #[error("pathPattern {0:?}: an action lacks its end }}}}")]
    Unclosed(String),
    #[error(
        "pathPattern: {{{{ {0} }}}} is not supported; supported are .PVName, .PVC.Name, \
         .PVC.Namespace, .PVC.UID, .PVC.Labels.KEY, .PVC.Annotations.KEY and index .PVC.Labels \
         \"KEY\""
    )]
    Unsupported(String),
    #[error("pathPattern: the claim has no {map} {key:?}")]
    Missing { map: &'static str, key: String },
    #[error("pathPattern must start with {{{{ .PVC.Namespace }}}}/{{{{ .PVC.Name }}}}/: {0}")]
    Prefix(String),
    #[error("folder path contains invalid references: {0}")]
    Path(String),
}

/// The path of a volume below its storage directory. Without `is_unsafe` (the parameter
/// `allowUnsafePathPattern`), it must be below a folder of the claim's own.
pub(super) fn folder(
    pattern: &str,
    volume: &str,
    claim: &ObjectMeta,
    is_unsafe: bool,
) -> Result<String, PathPatternError> {
    let path = rendered(pattern, volume, claim)?;
    let part = |p: &Option<String>| p.clone().unwrap_or_default();
    let prefix = format!("{}/{}/", part(&claim.namespace), part(&claim.name));
    if !is_unsafe && !path.starts_with(&prefix) {
        return Err(PathPatternError::Prefix(path));
    }
    let mut names = Vec::new();
    for component in Path::new(&path).components() {
        match component {
            Component::Normal(name) => names.push(name.to_string_lossy().into_owned()),
            Component::CurDir => {}
            _ => return Err(PathPatternError::Path(path)),
        }
    }
    let folder = names.join("/");
    let is_plain = !folder.chars().any(char::is_control) && folder.len() <= LENGTH_MAX;
    // As upstream, the directory of the namespace and of the claim are not volumes themselves.
    let is_below = is_unsafe || names.len() > 2;
    if !folder.is_empty() && is_plain && is_below {
        Ok(folder)
    } else {
        Err(PathPatternError::Path(path))
    }
}

fn rendered(pattern: &str, volume: &str, claim: &ObjectMeta) -> Result<String, PathPatternError> {
    let (mut out, mut rest) = (String::new(), pattern);
    while let Some((text, after)) = rest.split_once("{{") {
        let unclosed = || PathPatternError::Unclosed(pattern.to_owned());
        let (mut action, mut next) = after.split_once("}}").ok_or_else(unclosed)?;
        // `{{-` and `-}}` trim the white space around an action.
        let mut text = text;
        if let Some(trimmed) = action.strip_prefix("- ") {
            (text, action) = (text.trim_end(), trimmed);
        }
        if let Some(trimmed) = action.strip_suffix(" -") {
            (next, action) = (next.trim_start(), trimmed);
        }
        out.push_str(text);
        out.push_str(&value(action.trim(), volume, claim)?);
        rest = next;
    }
    out.push_str(rest);
    Ok(out)
}

/// The value of one action.
fn value(action: &str, volume: &str, claim: &ObjectMeta) -> Result<String, PathPatternError> {
    let unsupported = || PathPatternError::Unsupported(action.to_owned());
    let field = |value: &Option<String>| Ok(value.clone().unwrap_or_default());
    let name = match action {
        ".PVName" => return Ok(volume.to_owned()),
        ".PVC.Name" => return field(&claim.name),
        ".PVC.Namespace" => return field(&claim.namespace),
        ".PVC.UID" => return field(&claim.uid),
        _ => action,
    };
    let (map, key) = match name.strip_prefix("index ") {
        Some(arguments) => {
            let (map, key) = arguments.trim().split_once(' ').ok_or_else(unsupported)?;
            let key = key.trim().strip_prefix('"').and_then(|key| key.strip_suffix('"'));
            (map, key.ok_or_else(unsupported)?)
        }
        None => {
            let (field, key) = name.rsplit_once('.').ok_or_else(unsupported)?;
            let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if key.is_empty() || !key.chars().all(is_word) {
                return Err(unsupported());
            }
            (field, key)
        }
    };
    let (map, values) = match map {
        ".PVC.Labels" => ("label", &claim.labels),
        ".PVC.Annotations" => ("annotation", &claim.annotations),
        _ => return Err(unsupported()),
    };
    let value = values.as_ref().and_then(|values| values.get(key)).cloned();
    value.ok_or_else(|| PathPatternError::Missing { map, key: key.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> ObjectMeta {
        serde_json::from_value(serde_json::json!({"name": "data", "namespace": "shop",
            "uid": "u1", "labels": {"app": "db", "example.com/tier": "hot"},
            "annotations": {"path": "../../etc"}}))
        .unwrap()
    }

    #[test]
    fn patterns_are_rendered_from_the_claim() {
        for (pattern, want) in [
            ("{{ .PVC.Namespace }}/{{ .PVC.Name }}/{{ .PVName }}", "shop/data/pvc-u1"),
            ("{{.PVC.Namespace}}/{{.PVC.Name}}/{{.PVC.Labels.app}}/", "shop/data/db"),
            ("shop/data/{{ index .PVC.Labels \"example.com/tier\" }}", "shop/data/hot"),
            ("shop/data/ {{- .PVC.UID -}} /x", "shop/data/u1/x"),
            ("shop/data/./a//b", "shop/data/a/b"),
        ] {
            assert_eq!(folder(pattern, "pvc-u1", &claim(), false).as_deref(), Ok(want));
        }
        assert_eq!(folder("{{.PVC.Name}}", "v", &claim(), true).as_deref(), Ok("data"));
    }

    #[test]
    fn unsafe_and_unsupported_patterns_are_rejected() {
        for (pattern, is_unsafe, want) in [
            ("{{ .PVC.Name }}", false, "pathPattern must start with {{ .PVC.Namespace }}/"),
            ("shop/data/", false, "folder path contains invalid references"),
            ("shop/data/{{ .PVC.Annotations.path }}", false, "folder path contains invalid"),
            ("shop/data/../../x", true, "folder path contains invalid"),
            ("/etc", true, "folder path contains invalid"),
            ("", true, "folder path contains invalid"),
            ("{{ .PVC.Name | quote }}", true, "pathPattern: {{ .PVC.Name | quote }} is not"),
            ("{{ .PVC.Labels.none }}", true, "pathPattern: the claim has no label \"none\""),
            ("{{ .PVC.Name", true, "pathPattern \"{{ .PVC.Name\": an action lacks its end }}"),
        ] {
            let error = folder(pattern, "v", &claim(), is_unsafe).unwrap_err().to_string();
            assert!(error.starts_with(want), "{error}");
        }
    }
}
