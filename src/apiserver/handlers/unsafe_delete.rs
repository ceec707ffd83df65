//! DELETE with `ignoreStoreReadErrorWithClusterBreakingPotential`: deletes an object that cannot be
//! read from the store (`k8s.io/apiserver/pkg/registry/generic/registry/corrupt_obj_deleter.go`).

use api::Status;
use http::{Response, StatusCode};
use serde_json::json;

use crate::authz::{Attributes, Decision};
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::options::DeleteOptions;
use crate::response::encode;

/// The verb that is required in addition to `delete`.
const VERB: &str = "unsafe-delete-ignore-read-errors";

/// Deletes the object without preconditions, admission, finalizers and grace period, all of which
/// need the decoded object.
///
/// # Errors
/// 403 without the right, 404, 409 when the object can be read.
pub(super) async fn delete(
    context: &Context,
    name: &str,
    options: &DeleteOptions,
) -> Result<Response<Body>, Status> {
    crate::audit::annotate("apiserver.k8s.io/unsafe-delete-ignore-read-error", String::new);
    authorize(context, name).await?;
    let (row, storage) = (&context.row, context.server.objects.storage());
    storage.delete_unreadable(row, context.namespace(), name, options.dry_run).await?;
    tracing::warn!(key = row.key(context.namespace(), name), user = %context.user.name, "deleted an object that cannot be read");
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": name, "kind": *row.spec.gvk.kind}, "code": 200});
    encode::value(context, StatusCode::OK, &status)
}

async fn authorize(context: &Context, name: &str) -> Result<(), Status> {
    let gvr = &context.row.spec.gvr;
    let attributes = Attributes {
        verb: VERB,
        group: &gvr.group,
        version: &gvr.version,
        resource: &gvr.resource,
        namespace: context.namespace(),
        name,
        ..Attributes::default()
    };
    let decision = context.server.parts.authorizer.authorize(&context.user, &attributes).await;
    denial(decision)
        .map_or(Ok(()), |why| Err(Status::forbidden(&gvr.group, &gvr.resource, name, &why)))
}

/// Why a decision does not permit the deletion; `None` when it does.
fn denial(decision: Decision) -> Option<String> {
    match decision {
        Decision::Allow(_) => None,
        Decision::Deny(reason) | Decision::NoOpinion(reason) => {
            Some(format!("not permitted to do \"{VERB}\", reason: {reason}"))
        }
        Decision::Failed(failure) => {
            Some(format!("error while checking permission for \"{VERB}\", {}", failure.error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `authorizeUnsafeDelete` of `endpoints/handlers/delete.go`.
    #[test]
    fn an_unsafe_deletion_needs_an_allowing_decision() {
        let refused = "not permitted to do \"unsafe-delete-ignore-read-errors\", reason: no rule";
        let rows = [
            (Decision::Allow("a rule".into()), None),
            (Decision::Deny("no rule".into()), Some(refused)),
            (Decision::NoOpinion("no rule".into()), Some(refused)),
        ];
        for (decision, expected) in rows {
            assert_eq!(denial(decision).as_deref(), expected);
        }
    }
}
