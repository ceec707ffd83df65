//! `metav1.Status`, the error response of the API, with upstream's reasons, codes and texts.

use serde::{Deserialize, Serialize};

/// One cause of an error (`metav1.StatusCause`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The reason, such as `FieldValueInvalid` or `FieldValueRequired`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The path of the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// The object or resource to which the error applies (`metav1.StatusDetails`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// The name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The kind or the resource.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The UID of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The causes in the order in which they were found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// The seconds after which the client may retry; omitted if 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: i32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(v: &i32) -> bool {
    *v == 0
}

/// The metadata of a Status (`metav1.ListMeta`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListMeta {
    /// The revision.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// The token of the next page.
    #[serde(default, rename = "continue", skip_serializing_if = "String::is_empty")]
    pub continue_: String,
}

/// `metav1.Status`, as the server sends it and a client receives it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[error("{message}")]
pub struct Status {
    /// Always `Status`.
    #[serde(default)]
    pub kind: String,
    /// Always `v1`.
    #[serde(default)]
    pub api_version: String,
    /// The list metadata, usually empty.
    #[serde(default)]
    pub metadata: ListMeta,
    /// `Failure` or `Success`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// The message for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason for programs, such as `NotFound`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The object or resource to which the status applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
    /// The HTTP status code.
    #[serde(default)]
    pub code: u16,
}

impl Status {
    /// Creates a failure with these fields and without details.
    pub fn failure(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self {
            kind: "Status".into(),
            api_version: "v1".into(),
            status: "Failure".into(),
            message: message.into(),
            reason: reason.into(),
            code,
            ..Self::default()
        }
    }

    /// Adds the details of an object to the failure.
    #[must_use]
    pub fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        let details = self.details.get_or_insert_default();
        details.group = group.into();
        details.kind = kind.into();
        details.name = name.into();
        self
    }

    /// 404 `NotFound`: `pods "x" not found`. `resource` is the plural; a group is appended, as in
    /// `deployments.apps`.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::failure(
            404,
            "NotFound",
            format!("{} \"{name}\" not found", qualified(group, resource)),
        )
        .about(group, resource, name)
    }

    /// 409 `AlreadyExists`: `pods "x" already exists`.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        Self::failure(
            409,
            "AlreadyExists",
            format!("{} \"{name}\" already exists", qualified(group, resource)),
        )
        .about(group, resource, name)
    }

    /// 409 `Conflict`: `Operation cannot be fulfilled on pods "x": why`.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        Self::failure(
            409,
            "Conflict",
            format!(
                "Operation cannot be fulfilled on {} \"{name}\": {why}",
                qualified(group, resource)
            ),
        )
        .about(group, resource, name)
    }

    /// 403 `Forbidden`: `pods "x" is forbidden: why`.
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let what = qualified(group, resource);
        let message = if name.is_empty() {
            format!("{what} is forbidden: {why}")
        } else {
            format!("{what} \"{name}\" is forbidden: {why}")
        };
        Self::failure(403, "Forbidden", message).about(group, resource, name)
    }

    /// 400 `BadRequest` with this message.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(400, "BadRequest", message)
    }

    /// 405 `MethodNotAllowed` for a verb that the resource does not support.
    pub fn method_not_supported(group: &str, resource: &str, action: &str) -> Self {
        Self::failure(
            405,
            "MethodNotAllowed",
            format!(
                "{action} is not supported on resources of kind \"{}\"",
                qualified(group, resource)
            ),
        )
        .about(group, resource, "")
    }

    /// 500 `InternalError` with upstream's prefix.
    pub fn internal(message: &str) -> Self {
        let mut status =
            Self::failure(500, "InternalError", format!("Internal error occurred: {message}"));
        status.details = Some(Details {
            causes: vec![Cause { message: message.into(), ..Cause::default() }],
            ..Details::default()
        });
        status
    }

    /// 410 `Expired`: the revision was compacted, and the client must list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(410, "Expired", message)
    }

    /// Returns whether the status has this reason.
    pub fn is(&self, reason: &str) -> bool {
        self.reason == reason
    }
}

/// Returns the qualified resource: `deployments.apps`, or `pods` for the core group.
pub fn qualified(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}
