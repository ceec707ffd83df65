//! `metadata.managedFields`: decoding, encoding, upstream's order and the limit on update entries.

use std::collections::HashMap;

use serde_json::{Map, Value};
use sorting::CompactSort as _;

use crate::fields::{FieldsError, Set};

/// Number of update entries above which the oldest ones are merged (upstream's
/// `DefaultMaxUpdateManagers`).
const MAX_UPDATE_MANAGERS: usize = 10;
/// The manager that owns the merged entries.
const ANCIENT: &str = "ancient-changes";

/// The operation through which a manager owns its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Operation {
    Apply,
    Update,
}

/// One entry of `managedFields`.
#[derive(Debug, Clone)]
pub(super) struct ManagedFieldsEntry {
    pub manager: String,
    pub operation: Operation,
    pub api_version: String,
    pub subresource: String,
    pub time: Option<String>,
    /// The stored FieldsV1, until the set is decoded.
    raw: Value,
    set: Option<Set>,
}

impl ManagedFieldsEntry {
    pub(super) fn new(
        manager: &str,
        operation: Operation,
        api_version: &str,
        subresource: &str,
        set: Set,
    ) -> Self {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        Self {
            manager: manager.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
            time: None,
            raw: Value::Null,
            set: Some(set),
        }
    }

    /// Whether both entries belong to the same manager. `Apply` entries match in all versions,
    /// `Update` entries only in the same version.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.manager == other.manager
            && self.operation == other.operation
            && self.subresource == other.subresource
            && (self.operation == Operation::Apply || self.api_version == other.api_version)
    }

    /// The values that [`ManagedFieldsEntry::is_same`] compares, as the key of a map.
    fn identity(&self) -> (String, Operation, String, Option<String>) {
        let version = (self.operation == Operation::Update).then(|| self.api_version.clone());
        (self.manager.clone(), self.operation, self.subresource.clone(), version)
    }

    /// The manager in the form of upstream's conflict messages: `"a" with subresource "status"
    /// using apps/v1`.
    pub(super) fn show(&self) -> String {
        let mut text = crate::field::go_quote(&self.manager);
        if !self.subresource.is_empty() {
            text.push_str(&format!(
                " with subresource {}",
                crate::field::go_quote(&self.subresource)
            ));
        }
        if self.operation == Operation::Update {
            text.push_str(&format!(" using {}", self.api_version));
        }
        text
    }

    /// Whether the entry owns one of these fields; the stored set is not decoded.
    pub(super) fn overlaps(&self, set: &Set) -> bool {
        match &self.set {
            Some(own) => own.overlaps(set),
            None => set.overlaps_fields_v1(&self.raw),
        }
    }

    /// The owned fields, decoded at the first call. An invalid set, which [`decode`] rejects, is
    /// empty.
    pub(super) fn set(&mut self) -> &mut Set {
        let raw = &self.raw;
        self.set.get_or_insert_with(|| Set::from_fields_v1(raw).unwrap_or_default())
    }

    fn seconds(&self) -> i64 {
        self.time
            .as_deref()
            .and_then(|t| t.parse::<jiff::Timestamp>().ok())
            .map_or(0, |t| t.as_second())
    }

    fn encode(self) -> Value {
        let mut map = Map::new();
        map.insert("manager".into(), self.manager.into());
        map.insert(
            "operation".into(),
            if self.operation == Operation::Apply { "Apply" } else { "Update" }.into(),
        );
        map.insert("apiVersion".into(), self.api_version.into());
        if let Some(time) = self.time {
            map.insert("time".into(), time.into());
        }
        map.insert("fieldsType".into(), "FieldsV1".into());
        let fields = self.set.map_or(self.raw, |set| set.to_fields_v1());
        map.insert("fieldsV1".into(), fields);
        if !self.subresource.is_empty() {
            map.insert("subresource".into(), self.subresource.into());
        }
        Value::Object(map)
    }
}

/// Whether a client requests a reset: with an empty list, or a list of one empty entry.
pub(super) fn is_reset(value: Option<&Value>) -> bool {
    match value.and_then(Value::as_array).map(Vec::as_slice) {
        Some([]) => true,
        Some([one]) => one.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// An invalid entry of `metadata.managedFields`; the texts are those of upstream's
/// `managedfields.DecodeManagedFields`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManagedFieldsError {
    /// `managedFields` is neither a list nor null.
    #[error("managedFields must be a list")]
    NotAList,
    /// The operation is neither `Apply` nor `Update`.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// `apiVersion` is empty.
    #[error("apiVersion must not be empty")]
    NoApiVersion,
    /// `fieldsType` is empty.
    #[error("missing fieldsType in managed fields entry {index}")]
    NoFieldsType {
        /// Position of the entry.
        index: usize,
    },
    /// `fieldsType` is not `FieldsV1`.
    #[error("invalid fieldsType {fields_type} in managed fields entry {index}")]
    FieldsType {
        /// The type, quoted.
        fields_type: String,
        /// Position of the entry.
        index: usize,
    },
    /// The set of fields is invalid.
    #[error("error decoding set: {0}")]
    Fields(#[from] FieldsError),
}

/// Decodes the entries; `check` decodes their fields as well.
///
/// # Errors
///
/// The error of the first invalid entry.
pub(super) fn decode(
    value: Option<Value>,
    check: bool,
) -> Result<Vec<ManagedFieldsEntry>, ManagedFieldsError> {
    let list = match value {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(ManagedFieldsError::NotAList),
    };
    let mut out: Vec<ManagedFieldsEntry> = Vec::with_capacity(list.len());
    let mut places = HashMap::with_capacity(list.len());
    for (i, mut item) in list.into_iter().enumerate() {
        let mut text = |name: &str| match item.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => text,
            _ => String::new(),
        };
        let operation = match text("operation").as_str() {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(ManagedFieldsError::Operation),
        };
        let api_version = text("apiVersion");
        if api_version.is_empty() {
            return Err(ManagedFieldsError::NoApiVersion);
        }
        match text("fieldsType").as_str() {
            "FieldsV1" => {}
            "" => return Err(ManagedFieldsError::NoFieldsType { index: i }),
            other => {
                let fields_type = crate::field::go_quote(other);
                return Err(ManagedFieldsError::FieldsType { fields_type, index: i });
            }
        }
        let (manager, subresource) = (text("manager"), text("subresource"));
        let time = Some(text("time")).filter(|t| !t.is_empty());
        let raw = item.get_mut("fieldsV1").map(Value::take).unwrap_or_default();
        let set = if raw.is_null() {
            Some(Set::new())
        } else if check {
            Some(Set::from_fields_v1(&raw)?)
        } else {
            None
        };
        let entry =
            ManagedFieldsEntry { manager, operation, api_version, subresource, time, raw, set };
        // The later one of two entries of the same manager takes precedence.
        let at = *places.entry(entry.identity()).or_insert(out.len());
        match out.get_mut(at) {
            Some(have) => *have = entry,
            None => out.push(entry),
        }
    }
    Ok(out)
}

/// Encodes the entries in upstream's order; `None` when there are no entries.
pub(super) fn encode(mut entries: Vec<ManagedFieldsEntry>) -> Option<Value> {
    if entries.len() > 1 {
        entries.compact_sort_by_cached_key(|e| {
            (
                e.operation,
                e.seconds(),
                e.manager.clone(),
                e.api_version.clone(),
                e.subresource.clone(),
            )
        });
    }
    (!entries.is_empty())
        .then(|| Value::Array(entries.into_iter().map(ManagedFieldsEntry::encode).collect()))
}

/// Merges the oldest update entries with others of the same version until at most
/// [`MAX_UPDATE_MANAGERS`] update entries are left.
pub(super) fn cap(entries: &mut Vec<ManagedFieldsEntry>) {
    let mut updates: Vec<(i64, ManagedFieldsEntry)> = Vec::new();
    if entries.iter().filter(|e| e.operation == Operation::Update).count() <= MAX_UPDATE_MANAGERS {
        return;
    }
    let (old, kept): (Vec<ManagedFieldsEntry>, Vec<ManagedFieldsEntry>) =
        entries.drain(..).partition(|e| e.operation == Operation::Update);
    *entries = kept;
    updates.extend(old.into_iter().map(|e| (e.seconds(), e)));
    updates.compact_sort_by(|(at, a), (bt, b)| {
        at.cmp(bt).then_with(|| {
            (&a.manager, &a.api_version, &a.subresource).cmp(&(
                &b.manager,
                &b.api_version,
                &b.subresource,
            ))
        })
    });
    let mut left = updates.len();
    let mut out: Vec<ManagedFieldsEntry> = Vec::with_capacity(left);
    // For each version its first entry, and the sets to merge into that entry after the loop.
    let mut buckets: HashMap<String, (usize, Vec<Set>)> = HashMap::new();
    for (_, mut entry) in updates {
        // The first entry of a version becomes the bucket when a second entry has to be merged.
        let bucket = (left > MAX_UPDATE_MANAGERS)
            .then(|| buckets.get_mut(&entry.api_version))
            .flatten()
            .and_then(|(at, sets)| Some((out.get_mut(*at)?, sets)));
        match bucket {
            Some((bucket, sets)) => {
                sets.push(std::mem::take(entry.set()));
                let own = std::mem::take(bucket.set());
                *bucket = ManagedFieldsEntry::new(
                    ANCIENT,
                    Operation::Update,
                    &entry.api_version,
                    "",
                    own,
                );
                bucket.time = entry.time;
                left -= 1;
            }
            None => {
                let place = || (out.len(), Vec::new());
                buckets.entry(entry.api_version.clone()).or_insert_with(place);
                out.push(entry);
            }
        }
    }
    for (at, sets) in buckets.into_values().filter(|(_, sets)| !sets.is_empty()) {
        if let Some(bucket) = out.get_mut(at) {
            let own = std::mem::take(bucket.set());
            *bucket.set() = Set::union_all(std::iter::once(own).chain(sets));
        }
    }
    entries.extend(out);
}
