//! The record of a pod's range: `<root-dir>/pods/<uid>/userns`.

use serde::{Deserialize, Serialize};

/// The file in the directory of a pod.
pub(super) const FILE: &str = "userns";

/// Why a record is invalid; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidRecord {
    #[error("invalid user namespace mappings file: {0}")]
    Json(#[from] serde_json::Error),
    #[error("invalid user namespace configuration: no more than one mapping allowed.")]
    SeveralMappings,
    #[error("invalid user namespace configuration: GID and UID mappings should be identical.")]
    Counts,
    #[error("invalid user namespace configuration: GID and UID mapping should be identical")]
    Differ,
    #[error("invalid user namespace configuration: UID 0 must be mapped")]
    NoRoot,
}

/// A mapping of successive ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct IdMapping {
    pub(super) host_id: u32,
    pub(super) container_id: u32,
    pub(super) length: u32,
}

/// The content of the file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mappings {
    uid_mappings: Option<Vec<IdMapping>>,
    gid_mappings: Option<Vec<IdMapping>>,
}

/// The text of the record for a range.
///
/// # Errors
///
/// None in practice: numbers have a text.
pub(super) fn text(first_id: u32, length: u32) -> Result<String, serde_json::Error> {
    let mapping = IdMapping { host_id: first_id, container_id: 0, length };
    let (uid_mappings, gid_mappings) = (Some(vec![mapping]), Some(vec![mapping]));
    serde_json::to_string(&Mappings { uid_mappings, gid_mappings })
}

/// Parses the text of a record.
///
/// # Errors
///
/// The text is not JSON of this form, or is not one mapping of id 0 that users and groups share.
pub(super) fn parse(text: &[u8]) -> Result<IdMapping, InvalidRecord> {
    let mappings: Mappings = serde_json::from_slice(text)?;
    let uids = mappings.uid_mappings.unwrap_or_default();
    let gids = mappings.gid_mappings.unwrap_or_default();
    let [uid] = uids[..] else { return Err(InvalidRecord::SeveralMappings) };
    let [gid] = gids[..] else { return Err(InvalidRecord::Counts) };
    if uid != gid {
        return Err(InvalidRecord::Differ);
    }
    if uid.container_id != 0 {
        return Err(InvalidRecord::NoRoot);
    }
    Ok(uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_that_of_upstream() {
        let mapping = r#"[{"hostId":131072,"containerId":0,"length":65536}]"#;
        let want = format!(r#"{{"uidMappings":{mapping},"gidMappings":{mapping}}}"#);
        assert_eq!(text(131_072, 65536).unwrap(), want);
        let read = parse(want.as_bytes()).unwrap();
        assert_eq!(read, IdMapping { host_id: 131_072, container_id: 0, length: 65536 });
    }

    #[test]
    fn invalid_records_are_refused_as_upstream() {
        let of = |host: u32, container: u32| {
            format!(r#"{{"hostId":{host},"containerId":{container},"length":65536}}"#)
        };
        let error = |uids: &str, gids: &str| {
            let text = format!(r#"{{"uidMappings":[{uids}],"gidMappings":[{gids}]}}"#);
            parse(text.as_bytes()).unwrap_err().to_string()
        };
        let (one, two) = (of(131_072, 0), format!("{},{}", of(131_072, 0), of(196_608, 0)));
        let start = "invalid user namespace configuration: ";
        for (uids, gids, want) in [
            (&one, &of(1, 0), "GID and UID mapping should be identical"),
            (&one, &two, "GID and UID mappings should be identical."),
            (&two, &one, "no more than one mapping allowed."),
            (&of(131_072, 1), &one, "GID and UID mapping should be identical"),
            (&one, &of(131_072, 1), "GID and UID mapping should be identical"),
            (&of(131_072, 1), &of(131_072, 1), "UID 0 must be mapped"),
        ] {
            assert_eq!(error(uids, gids), format!("{start}{want}"));
        }
        for text in ["{", r#"{"uidMappings":[{"hostId":-1}]}"#, r#"{"uidMappings":1}"#] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("invalid user namespace mappings file: "), "{error}");
        }
        let empty = parse(b"{}").unwrap_err().to_string();
        assert_eq!(empty, format!("{start}no more than one mapping allowed."));
    }
}
