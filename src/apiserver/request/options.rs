//! Options of requests, from the query and from bodies, with upstream's checks.

use api::Status;
use api::field::{Error, ErrorList, Path};
use api::selector::{FieldSelector, LabelSelector};
use serde_json::{Value, json};

use crate::registry::metadata;
use crate::request::Query;
use crate::response::status;

/// The treatment of unknown and duplicate fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Options of create, update and patch.
#[derive(Debug, Clone)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) manager: String,
    pub(crate) validation: FieldValidation,
    pub(crate) force: Option<bool>,
}

/// Parses a query value as Go's `strconv.ParseInt` does.
///
/// # Errors
/// 400 with Go's text.
pub(crate) fn integer(query: &Query, key: &str) -> Result<Option<i64>, Status> {
    let Some(text) = query.get(key).filter(|t| !t.is_empty()) else { return Ok(None) };
    let bad = |why: &str| {
        Status::bad_request(format!(
            "strconv.ParseInt: parsing {}: {why}",
            api::field::go_quote(text)
        ))
    };
    text.parse::<i64>().map(Some).map_err(|e| match e.kind() {
        std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => {
            bad("value out of range")
        }
        _ => bad("invalid syntax"),
    })
}

impl WriteOptions {
    /// Reads the query of a create (`CreateOptions`), update (`UpdateOptions`) or patch
    /// (`PatchOptions`).
    ///
    /// # Errors
    /// 422 for invalid options.
    pub(crate) fn read(query: &Query, kind: &str, apply: bool) -> Result<Self, Status> {
        let manager = query.get("fieldManager").unwrap_or_default().to_owned();
        let force = query
            .get("force")
            .filter(|f| !f.is_empty())
            .map(|f| !matches!(f.to_ascii_lowercase().as_str(), "false" | "0"));
        let mut errors: ErrorList = Vec::new();
        if kind == "PatchOptions" {
            if apply && manager.is_empty() {
                errors.push(Error::required(
                    &Path::new("fieldManager"),
                    "is required for apply patch",
                ));
            }
            if !apply && force.is_some() {
                errors.push(Error::forbidden(
                    &Path::new("force"),
                    "may not be specified for non-apply patch",
                ));
            }
        }
        errors.extend(metadata::field_manager(&manager, &Path::new("fieldManager")));
        let dry: Vec<&str> = query.all("dryRun").filter(|v| !v.is_empty()).collect();
        errors.extend(dry_run_errors(&dry));
        let validation = query.get("fieldValidation").unwrap_or_default();
        let level = match validation {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                let known = ["", "Ignore", "Strict", "Warn"];
                errors.push(Error::not_supported(&Path::new("fieldValidation"), other, &known));
                FieldValidation::Strict
            }
        };
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", kind, "", &errors));
        }
        Ok(Self { dry_run: !dry.is_empty(), manager, validation: level, force })
    }
}

fn dry_run_errors(values: &[&str]) -> ErrorList {
    if values.iter().all(|v| *v == "All") {
        return Vec::new();
    }
    vec![Error::not_supported(&Path::new("dryRun"), json!(values), &["All"])]
}

/// The treatment of dependents by a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// `ignoreStoreReadErrorWithClusterBreakingPotential`.
pub(crate) const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// `DeleteOptions`.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) orphan: Option<bool>,
    pub(crate) propagation: Option<Propagation>,
    pub(crate) dry_run: bool,
    /// `ignoreStoreReadErrorWithClusterBreakingPotential`.
    pub(crate) ignore_read_error: bool,
    /// Admission has already allowed the request that causes this deletion (an eviction); the
    /// deletion skips it.
    pub(crate) is_admitted: bool,
}

impl DeleteOptions {
    /// Reads the options from the query, for requests without body.
    ///
    /// # Errors
    /// 400 for options that cannot be decoded, 422 for invalid ones.
    pub(crate) fn of_query(query: &Query) -> Result<Self, Status> {
        let mut value = json!({});
        if let Some(grace) = integer(query, "gracePeriodSeconds")? {
            set(&mut value, "gracePeriodSeconds", grace.into());
        }
        if query.get("orphanDependents").is_some_and(|t| !t.is_empty()) {
            set(&mut value, "orphanDependents", query.flag("orphanDependents").into());
        }
        if let Some(policy) = query.get("propagationPolicy") {
            set(&mut value, "propagationPolicy", policy.into());
        }
        let dry: Vec<&str> = query.all("dryRun").filter(|v| !v.is_empty()).collect();
        if !dry.is_empty() {
            set(&mut value, "dryRun", json!(dry));
        }
        if query.get(IGNORE_READ_ERROR).is_some_and(|t| !t.is_empty()) {
            set(&mut value, IGNORE_READ_ERROR, query.flag(IGNORE_READ_ERROR).into());
        }
        Self::of_value(&value)
    }

    /// Reads the options from a body.
    ///
    /// # Errors
    /// 422 for invalid options.
    pub(crate) fn of_value(value: &Value) -> Result<Self, Status> {
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let orphan = value.get("orphanDependents").and_then(Value::as_bool);
        let policy = text("/propagationPolicy");
        let path = Path::new("propagationPolicy");
        let mut errors: ErrorList = Vec::new();
        if let (Some(_), Some(policy)) = (orphan, &policy) {
            errors.push(Error::invalid(
                &path,
                policy.as_str(),
                "orphanDependents and deletionPropagation cannot be both set",
            ));
        }
        let propagation = match policy.as_deref() {
            None => None,
            Some("Foreground") => Some(Propagation::Foreground),
            Some("Background") => Some(Propagation::Background),
            Some("Orphan") => Some(Propagation::Orphan),
            Some(other) => {
                errors.push(Error::not_supported(
                    &path,
                    other,
                    &["Foreground", "Background", "Orphan", "nil"],
                ));
                None
            }
        };
        let dry: Vec<&str> = value
            .get("dryRun")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        errors.extend(dry_run_errors(&dry));
        let ignore_read_error = value.get(IGNORE_READ_ERROR).and_then(Value::as_bool);
        let ignore_read_error = ignore_read_error.unwrap_or_default();
        if ignore_read_error {
            let path = Path::new(IGNORE_READ_ERROR);
            let others =
                ["propagationPolicy", "orphanDependents", "gracePeriodSeconds", "preconditions"];
            errors.extend(others.iter().filter(|other| value.get(**other).is_some()).map(
                |other| {
                    Error::invalid(&path, true, format!("cannot be set together with .{other}"))
                },
            ));
        }
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        Ok(Self {
            ignore_read_error,
            grace: value.get("gracePeriodSeconds").and_then(Value::as_i64),
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            orphan,
            propagation,
            dry_run: !dry.is_empty(),
            is_admitted: false,
        })
    }

    /// The options without `dryRun`, in the form that admission receives.
    pub(crate) fn members(&self) -> serde_json::Map<String, Value> {
        let mut map = serde_json::Map::new();
        let policy = self.propagation.map(|policy| match policy {
            Propagation::Orphan => "Orphan",
            Propagation::Background => "Background",
            Propagation::Foreground => "Foreground",
        });
        let mut preconditions = json!({});
        for (key, text) in [("uid", &self.uid), ("resourceVersion", &self.resource_version)] {
            if let Some(text) = text {
                set(&mut preconditions, key, text.as_str().into());
            }
        }
        let empty = preconditions.as_object().is_none_or(serde_json::Map::is_empty);
        let members = [
            ("gracePeriodSeconds", self.grace.map(Value::from)),
            ("preconditions", (!empty).then_some(preconditions)),
            ("orphanDependents", self.orphan.map(Value::from)),
            ("propagationPolicy", policy.map(Value::from)),
        ];
        map.extend(members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        map
    }
}

fn set(value: &mut Value, key: &str, new: Value) {
    if let Some(map) = value.as_object_mut() {
        map.insert(key.to_owned(), new);
    }
}

/// The match rule of a list's resource version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Match {
    /// Not set; the resource version decides.
    Unset,
    Exact,
    NotOlderThan,
}

/// `ListOptions`.
#[derive(Debug, Clone)]
pub(crate) struct ListOptions {
    /// Empty, or a number as text.
    pub(crate) resource_version: String,
    pub(crate) matching: Match,
    pub(crate) limit: usize,
    pub(crate) continue_token: String,
    /// Timeout of a watch in seconds; a negative one ends it at once.
    pub(crate) timeout: Option<i64>,
    pub(crate) bookmarks: bool,
    pub(crate) send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Reads and checks the query of a list or watch.
    ///
    /// # Errors
    /// 400 for options that cannot be decoded, 422 for invalid ones.
    pub(crate) fn read(query: &Query, watch: bool) -> Result<Self, Status> {
        let timeout = integer(query, "timeoutSeconds")?;
        let limit = integer(query, "limit")?.unwrap_or(0);
        let resource_version = query.get("resourceVersion").unwrap_or_default().to_owned();
        let matching = query.get("resourceVersionMatch").unwrap_or_default();
        let continue_token = query.get("continue").unwrap_or_default().to_owned();
        let initial = query
            .get("sendInitialEvents")
            .filter(|t| !t.is_empty())
            .map(|_| query.flag("sendInitialEvents"));
        // Selectors are parsed with the other options, before validation.
        let bad = |e: &dyn std::fmt::Display| Status::bad_request(e.to_string());
        LabelSelector::parse(query.get("labelSelector").unwrap_or_default())
            .map_err(|e| bad(&e))?;
        FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())
            .map_err(|e| bad(&e))?;
        let errors = list_errors(watch, &resource_version, matching, initial, &continue_token);
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors));
        }
        Ok(Self {
            resource_version,
            matching: match matching {
                "Exact" => Match::Exact,
                "NotOlderThan" => Match::NotOlderThan,
                _ => Match::Unset,
            },
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token,
            timeout,
            bookmarks: query.flag("allowWatchBookmarks"),
            send_initial_events: initial,
        })
    }

    /// The resource version as a number; 0 when unset.
    ///
    /// # Errors
    /// 400 with upstream's text.
    pub(crate) fn revision(&self) -> Result<i64, Status> {
        parse_revision(&self.resource_version)
            .map_err(|error| Status::bad_request(format!("invalid resource version: {error}")))
    }

    /// Whether a watch sends only new changes: no initial events and no resource version.
    pub(crate) fn begins_now(&self) -> bool {
        self.send_initial_events == Some(false)
            && matches!(self.resource_version.as_str(), "" | "0")
    }

    /// The resource version of a watch as a number; 0 when unset.
    ///
    /// # Errors
    /// 500 without a reason, as upstream's `Store.WatchPredicate` causes.
    pub(crate) fn watch_revision(&self) -> Result<i64, Status> {
        parse_revision(&self.resource_version)
            .map_err(|error| status::unmapped(500, error.to_string()))
    }
}

/// The field error of a resource version that Go's `strconv.ParseUint` rejects.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("resourceVersion: Invalid value: {quoted}: strconv.ParseUint: parsing {quoted}: {reason}")]
pub(crate) struct RevisionError {
    /// The text in Go's quotes.
    quoted: String,
    reason: &'static str,
}

/// Parses a resource version; 0 when the text is empty. Versions beyond the range of the store are
/// clamped, because no revision reaches them.
///
/// # Errors
/// When the text is not an unsigned number of 64 bits.
pub(crate) fn parse_revision(text: &str) -> Result<i64, RevisionError> {
    if text.is_empty() {
        return Ok(0);
    }
    let reason = match text.parse::<u64>() {
        Ok(revision) if !text.starts_with('+') => {
            return Ok(i64::try_from(revision).unwrap_or(i64::MAX));
        }
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => "value out of range",
        _ => "invalid syntax",
    };
    Err(RevisionError { quoted: api::field::go_quote(text), reason })
}

const WITH_TOKEN: &str = "resourceVersionMatch is forbidden when continue is provided";

/// `ValidateListOptions` of `k8s.io/apimachinery/pkg/apis/meta/internalversion/validation`.
fn list_errors(
    watch: bool,
    version: &str,
    matching: &str,
    initial: Option<bool>,
    token: &str,
) -> ErrorList {
    let match_path = Path::new("resourceVersionMatch");
    let initial_path = Path::new("sendInitialEvents");
    let mut errors: ErrorList = Vec::new();
    if watch {
        if initial.is_some() && matching != "NotOlderThan" {
            errors.push(Error::forbidden(
                &match_path,
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        // Without a version upstream sets `sendInitialEvents` and `NotOlderThan` itself
        // (`SetListOptionsDefaults`).
        let is_legacy = initial.is_none() && matching.is_empty() && matches!(version, "" | "0");
        if is_legacy && !token.is_empty() {
            errors.push(Error::forbidden(&match_path, WITH_TOKEN));
        }
        if !matching.is_empty() {
            if initial.is_none() {
                errors.push(Error::forbidden(&match_path, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
            }
            if matching != "NotOlderThan" {
                errors.push(Error::not_supported(&match_path, matching, &["NotOlderThan"]));
            }
            if !token.is_empty() {
                errors.push(Error::forbidden(&match_path, WITH_TOKEN));
            }
        }
        return errors;
    }
    if !matching.is_empty() {
        if version.is_empty() {
            errors.push(Error::forbidden(
                &match_path,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !token.is_empty() {
            errors.push(Error::forbidden(&match_path, WITH_TOKEN));
        }
        if !matches!(matching, "Exact" | "NotOlderThan") {
            errors.push(Error::not_supported(
                &match_path,
                matching,
                &["Exact", "NotOlderThan", ""],
            ));
        }
        if matching == "Exact" && version == "0" {
            let text = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(Error::forbidden(&match_path, text));
        }
    }
    if initial.is_some() {
        errors.push(Error::forbidden(&initial_path, "sendInitialEvents is forbidden for list"));
    }
    errors
}

/// Reads fuzzer input as the query of any request.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzz(query: &Query) {
    for watch in [false, true] {
        if let Ok(options) = ListOptions::read(query, watch) {
            assert!(options.revision().is_ok_and(|r| r >= 0) || options.revision().is_err());
            drop(options.watch_revision());
        }
    }
    drop(DeleteOptions::of_query(query));
    for apply in [false, true] {
        drop(WriteOptions::read(query, "PatchOptions", apply));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(query: &str, watch: bool) -> String {
        ListOptions::read(&Query::parse(query), watch).unwrap_err().message
    }

    #[test]
    fn invalid_list_options_are_rejected_with_upstream_texts() {
        assert_eq!(message("limit=x", false), "strconv.ParseInt: parsing \"x\": invalid syntax");
        assert_eq!(
            message("resourceVersion=0&resourceVersionMatch=Exact", false),
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
        );
        assert_eq!(
            message("sendInitialEvents=true", true),
            "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        );
        assert_eq!(
            message("labelSelector=a,&resourceVersionMatch=NotOlderThan", false),
            "found '', expected: identifier after ','"
        );
        for (query, now) in [
            // Upstream's watch cache treats version 0 as any version here.
            ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0", true),
            ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan", true),
            ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=7", false),
            ("resourceVersion=0", false),
        ] {
            let options = ListOptions::read(&Query::parse(query), true).unwrap();
            assert_eq!(options.begins_now(), now, "{query}");
        }
        let huge = ListOptions::read(&Query::parse("resourceVersion=18446744073709551615"), false)
            .unwrap();
        assert_eq!(huge.revision().unwrap(), i64::MAX);
        let more = ListOptions::read(&Query::parse("resourceVersion=18446744073709551616"), false)
            .unwrap();
        assert!(more.revision().unwrap_err().message.ends_with("value out of range"));
    }
}
