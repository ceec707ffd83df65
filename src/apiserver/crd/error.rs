//! The errors of reading, converting and scaling custom resources, with upstream's messages.

use std::sync::Arc;

use api::object::BadObject;

use webhook::CallError;

/// A stored custom resource that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The stored bytes are not JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The JSON is not an object of the Kubernetes API.
    #[error("{0}")]
    Object(#[from] BadObject),
}

/// Objects that cannot be converted to another version
/// (`pkg/apiserver/conversion/webhook_converter.go` of apiextensions).
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConversionError {
    /// The server does not call webhooks yet.
    #[error("conversion webhooks cannot be called before the server has started")]
    NotStarted,
    /// `spec.conversion.webhook.clientConfig` is unusable.
    #[error("{0}")]
    Webhook(#[source] Arc<webhook::ConfigError>),
    /// `conversionReviewVersions` contains no version that this server supports.
    #[error("no supported conversion review versions")]
    ReviewVersions,
    /// The webhook cannot be called, or responds with an error.
    #[error("conversion webhook for {gvk} failed: {source}")]
    Call {
        /// Group, version and kind of the first object.
        gvk: String,
        source: Arc<CallError>,
    },
    /// The response is not a successful `ConversionReview`.
    #[error("conversion webhook for {gvk} failed: {source}")]
    Response { gvk: String, source: ResponseError },
    /// The response has another number of objects than the request.
    #[error("conversion webhook for {gvk} returned {returned} objects, expected {expected}")]
    ObjectCount { gvk: String, returned: usize, expected: usize },
    /// A converted object is not the requested one.
    #[error(
        "conversion webhook for {gvk} returned invalid converted object at index {index}: {source}"
    )]
    Object { gvk: String, index: usize, source: ObjectError },
    /// The metadata of a converted object is invalid.
    #[error(
        "conversion webhook for {gvk} returned invalid metadata in object at index {index}: {source}"
    )]
    Metadata { gvk: String, index: usize, source: MetadataError },
    /// There is no converted object to store.
    #[error("no object was converted")]
    NoObject,
}

impl ConversionError {
    /// The label `failure_type` of the conversion metrics.
    pub(crate) fn failure_type(&self) -> &'static str {
        match self {
            Self::NotStarted | Self::Webhook(_) | Self::ReviewVersions | Self::Call { .. } => {
                "conversion_webhook_call_failure"
            }
            Self::Response { .. } => "conversion_webhook_malformed_response_failure",
            Self::ObjectCount { .. } | Self::NoObject => {
                "conversion_webhook_partial_response_failure"
            }
            Self::Object { .. } | Self::Metadata { .. } => {
                "conversion_webhook_invalid_converted_object_failure"
            }
        }
    }
}

/// A response of a conversion webhook that is not a successful `ConversionReview`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResponseError {
    /// The response is of another kind.
    #[error("expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got {0}")]
    Kind(String),
    /// The review has no `response`.
    #[error("no response provided")]
    Missing,
    /// `response.uid` is not that of the request.
    #[error(
        "expected response.uid={}, got {}",
        api::field::go_quote(expected),
        api::field::go_quote(received)
    )]
    Uid { expected: String, received: String },
    /// `response.result.status` is not `Success`, and there is no message.
    #[error("response.result.status was '{0}', not 'Success'")]
    Status(String),
    /// The message of the webhook.
    #[error("{0}")]
    Message(String),
}

/// A converted object that is not the requested one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ObjectError {
    /// It has another version than the requested one.
    #[error("invalid groupVersion (expected {expected}, received {received})")]
    GroupVersion { expected: String, received: String },
    /// It has another kind than the original.
    #[error("invalid kind (expected {expected}, received {received})")]
    Kind { expected: String, received: String },
    /// Its name, namespace or UID differs from the original's.
    #[error("must have the same {field}: {original} != {converted}")]
    Identity { field: &'static str, original: String, converted: String },
}

/// Invalid metadata of a converted object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MetadataError {
    /// It is absent.
    #[error("missing metadata in converted object")]
    Missing,
    /// It is not an object.
    #[error("invalid metadata in converted object")]
    NotAnObject,
    /// `labels` or `annotations` is not an object.
    #[error("invalid metadata.{0} in converted object")]
    NotAMap(&'static str),
    /// A label or annotation is not a string.
    #[error("metadata.{field}[{key}] must be a string in converted object")]
    NotAString { field: &'static str, key: String },
    /// Labels or annotations fail validation.
    #[error("{0}")]
    Invalid(String),
}

/// A value that a JSON path of a definition refers to and that has an unexpected type
/// (`unstructured.NestedFieldNoCopy`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path} accessor error: {value} is of the type {actual}, expected {expected}")]
pub(crate) struct AccessError {
    /// The path of the value, with a leading dot unless the definition omits it.
    pub(crate) path: String,
    /// The value in Go's format `%v`.
    pub(crate) value: String,
    /// Its Go type.
    pub(crate) actual: &'static str,
    /// The expected Go type.
    pub(crate) expected: &'static str,
}

/// The `scale` subresource cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScaleError {
    /// The version has no such subresource.
    #[error("there is no scale subresource")]
    NoSubresource,
    /// A value has an unexpected type.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A parent of the replica count is not an object.
    #[error("value cannot be set because {path} is not a map[string]interface{{}}")]
    NotAMap {
        /// `specReplicasPath` of the definition.
        path: String,
    },
}
