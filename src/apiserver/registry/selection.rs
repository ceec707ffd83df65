//! Label and field selectors of one request, checked against the selectable fields of the resource.

use api::Status;
use api::selector::{FieldSelector, FieldTerm, LabelSelector, SelectorError};
use serde_json::Value;

use crate::registry::Resource;
use crate::registry::watch_cache::CachedObject;

/// The selectors of an in-process read.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// Namespace; empty is all.
    pub namespace: String,
    /// Label selector.
    pub labels: String,
    /// Field selector.
    pub fields: String,
}

/// Selectors; empty selects everything.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    labels: LabelSelector,
    fields: FieldSelector,
}

/// Names of selectable fields in `events.k8s.io` and in core Event, whose names the stored events
/// have.
const EVENT_FIELDS: [(&str, &str); 10] = [
    ("reason", "reason"),
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reportingController", "reportingComponent"),
    ("type", "type"),
];

/// Converts a selector of `events.k8s.io` to the field names of core Event.
fn stored_names(fields: &FieldSelector) -> Result<FieldSelector, SelectorError> {
    let term = |term: &FieldTerm| {
        let stored = EVENT_FIELDS.iter().find(|(own, _)| *own == &*term.field);
        let name = stored.map_or(&*term.field, |(_, stored)| stored);
        let value = term.value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
        format!("{name}{}{value}", if term.not { "!=" } else { "=" })
    };
    let terms: Vec<String> = fields.terms().iter().map(term).collect();
    FieldSelector::parse(&terms.join(","))
}

/// Rejects unknown fields of custom resources (`crConverter.ConvertFieldLabel`).
fn custom_fields(row: &Resource, fields: &FieldSelector, known: &[&str]) -> Result<(), Status> {
    let common = |field: &str| {
        field == "metadata.name" || (field == "metadata.namespace" && row.spec.namespaced)
    };
    let unknown = fields.terms().iter().find(|t| !common(&t.field) && !known.contains(&&*t.field));
    match unknown {
        None => Ok(()),
        Some(term) => {
            Err(Status::bad_request(format!("field label not supported: {}", term.field)))
        }
    }
}

/// 400 for an unknown field; for a few kinds upstream's text names the kind.
fn named(row: &Resource, error: SelectorError) -> Status {
    let (text, gvr) = (error.to_string(), &row.spec.gvr);
    let text = match (text.strip_prefix("field label not supported: "), &*gvr.resource) {
        (Some(label), "jobs") => format!("field label \"{label}\" not supported for Job"),
        (Some(label), "resourceslices") => {
            let of = format!("{}/{}, Kind={}", gvr.group, gvr.version, row.spec.gvk.kind);
            format!("field label not supported for {of}: {label}")
        }
        _ => text,
    };
    Status::bad_request(text)
}

impl Selection {
    /// Parses both selectors.
    ///
    /// # Errors
    /// 400 with upstream's texts.
    pub fn parse(row: &Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels =
            LabelSelector::parse(labels).map_err(|e| Status::bad_request(e.to_string()))?;
        let fields =
            FieldSelector::parse(fields).map_err(|e| Status::bad_request(e.to_string()))?;
        if fields.is_empty() {
            return Ok(Self { labels, fields });
        }
        let of_group = row.spec.gvr.group.as_ref() == "events.k8s.io";
        let declared = row.spec.strategy.selectable_fields(&Value::Null);
        let known: Vec<&str> = if of_group {
            EVENT_FIELDS.iter().map(|(own, _)| *own).collect()
        } else {
            declared.iter().map(|(name, _)| name.as_ref()).collect()
        };
        if row.spec.custom.is_some() {
            custom_fields(row, &fields, &known)?;
        }
        let refuse = |e: SelectorError| Status::bad_request(e.to_string());
        fields.check(&known, row.spec.namespaced).map_err(|e| named(row, e))?;
        let fields = if of_group { stored_names(&fields).map_err(refuse)? } else { fields };
        Ok(Self { labels, fields })
    }

    /// Whether the selectors select every object.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The only name that the selectors can match.
    pub fn exact_name(&self) -> Option<String> {
        self.fields.exact("metadata.name").map(str::to_owned)
    }

    /// The only value of a field that the selectors can match.
    pub(crate) fn exact(&self, field: &str) -> Option<&str> {
        self.fields.exact(field)
    }

    /// Whether the selectors match the object.
    pub fn matches(&self, row: &Resource, entry: &CachedObject) -> bool {
        if !self.labels.is_empty() && !self.labels.matches(entry.object.as_ref()) {
            return false;
        }
        if self.fields.is_empty() {
            return true;
        }
        let key = &entry.object.key;
        self.fields.matches(|field| match field {
            "metadata.name" => &key.name,
            "metadata.namespace" => &key.namespace,
            other => entry.field(row, other),
        })
    }
}
