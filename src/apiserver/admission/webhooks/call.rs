//! A call of a webhook, and the handling of a failed one.

use api::Status;
use tokio::time::Instant;

use super::Invocation;
use super::review::{self, Question, Verdict};
use crate::admission::Request;
use crate::metrics::admission as metrics;
use crate::metrics::admission::Called;

/// The reason why a webhook did not allow the request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The call failed or its response was invalid, counted under this code; `failurePolicy`
    /// decides.
    Calling(String, u16),
    /// The hook cannot be called, or its response cannot be used.
    Refused(Box<Status>),
    /// The webhook denies the request.
    Denied(Box<Status>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

/// Records a call in the metrics under its type, `admit` or `validating`.
pub(super) fn count<T>(
    invocation: &Invocation,
    of: &str,
    request: &Request<'_>,
    begun: Instant,
    outcome: &Result<T, Failure>,
) {
    let hook = &invocation.hook;
    let how = match outcome {
        Ok(_) => Called::Allowed,
        Err(Failure::Denied(status)) => Called::Refused(status.code),
        Err(Failure::Calling(_, code)) => Called::Failed { code: *code, open: hook.fails_open },
        Err(Failure::Refused(_)) => Called::Internal,
    };
    let took = base::clock::now().duration_since(begun);
    metrics::called(&hook.name, of, request.operation, took, &how);
}

impl Failure {
    /// The rejection, unless the failure policy ignores the error: then an audit annotation `key`
    /// records it.
    pub(super) fn apply_failure_policy(
        self,
        invocation: &Invocation,
        key: &str,
    ) -> Result<(), Status> {
        let hook = &invocation.hook;
        let reason = match self {
            Self::Refused(status) | Self::Denied(status) => return Err(*status),
            Self::Calling(reason, _) => reason,
        };
        let text = format!("failed calling webhook {}: {reason}", api::field::go_quote(&hook.name));
        if hook.fails_open {
            crate::audit::annotate(key, || hook.name.clone());
            tracing::warn!(
                webhook = hook.name,
                configuration = hook.configuration,
                error = text,
                "ignoring a failed webhook call (failurePolicy: Ignore)"
            );
            return Ok(());
        }
        tracing::warn!(
            webhook = hook.name,
            configuration = hook.configuration,
            error = text,
            "rejecting a request because of a failed webhook call"
        );
        Err(Status::internal(&text))
    }
}

/// Calls the webhook; returns the verdict if it allows the request.
///
/// # Errors
/// A failed call, or the rejection.
pub(super) async fn ask(
    invocation: &Invocation,
    question: &Question<'_>,
    mutating: bool,
) -> Result<Verdict, Failure> {
    let hook = &invocation.hook;
    if question.request.dry_run && !hook.supports_dry_run {
        let name = api::field::go_quote(&hook.name);
        let text = format!("admission webhook {name} does not support dry run");
        return Err(Status::bad_request(text).into());
    }
    let calling = |code: u16, what: &str, why: &dyn std::fmt::Display| {
        Failure::Calling(format!("{what}: {why}"), code)
    };
    let version = hook.review_version.ok_or_else(|| {
        let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        calling(400, "could not create admission objects", &why)
    })?;
    let client =
        hook.client.as_ref().map_err(|why| calling(500, "could not get REST client", why))?;
    let uid = base::clock::random_uuid();
    let review = review::of(&uid, version, question, invocation);
    let name = if mutating { "Call mutating webhook" } else { "Call validating webhook" };
    let attributes = || {
        let request = question.request;
        let gvr = request.gvr;
        vec![
            ("configuration", hook.configuration.as_str().into()),
            ("webhook", hook.name.as_str().into()),
            (
                "resource",
                format!("{}/{}, Resource={}", gvr.group, gvr.version, gvr.resource).into(),
            ),
            ("subresource", request.subresource.into()),
            ("operation", request.operation.as_str().into()),
            ("UID", uid.as_str().into()),
        ]
    };
    let post = client.post(&review, hook.timeout);
    let answer = crate::request_tracing::run(name, attributes, post).await;
    let answer = answer.map_err(|why| calling(why.code(), "failed to call webhook", &why))?;
    let verdict = review::verdict(&uid, version, mutating, &answer)
        .map_err(|why| calling(503, "received invalid webhook response", &why))?;
    for (key, value) in &verdict.annotations {
        crate::audit::annotate(&format!("{}/{key}", hook.name), || value.clone());
    }
    for warning in &verdict.warnings {
        question.request.warn(warning.clone());
    }
    if !verdict.allowed {
        return Err(Failure::Denied(Box::new(review::denial(&hook.name, verdict.status))));
    }
    Ok(verdict)
}
