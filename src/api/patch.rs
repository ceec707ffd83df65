//! The four patch types as pure functions on JSON values: JSON Patch, merge patch, strategic merge
//! patch and server-side apply.

pub mod apply;
pub mod gotext;
mod json;
mod managed;
pub mod ordered;
mod policy;
pub mod scale;
mod strategic;
mod typed;
mod unstructured;

pub use json::{json_patch, json_patch_strict_errors, merge_patch};
pub use managed::ManagedFieldsError;
pub use policy::{JsonPatchError, MergeError, json_patch_explained, merge_configuration};
pub use strategic::strategic;
pub use typed::InvalidObject;
pub use unstructured::{RestoreError, restore};

use crate::Status;

/// Maximum number of operations in one JSON patch, upstream's `maxJSONPatchOperations`.
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;
/// Maximum number of bytes that the `copy` operations of one JSON patch produce in total, equal to
/// upstream's limit of a request body.
pub const MAX_JSON_PATCH_COPY_BYTES: usize = 3 * 1024 * 1024;

/// A 422 status with the text of upstream's generic server response, which omits the reason.
fn unprocessable() -> Box<Status> {
    let mut status = Status::failure(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
    );
    status.details = Some(crate::status::Details::default());
    Box::new(status)
}

/// A 400 status with this message.
fn bad_request(message: impl Into<String>) -> Box<Status> {
    Box::new(Status::bad_request(message))
}

/// A 500 status without a reason, which upstream returns for errors that are not API statuses.
fn plain(message: impl Into<String>) -> Box<Status> {
    Box::new(Status::failure(500, "", message))
}
