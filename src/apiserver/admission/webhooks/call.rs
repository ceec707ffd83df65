//! One call of one webhook, and what becomes of a call that failed.

use api::Status;

use super::Invocation;
use super::review::{self, Question, Verdict};

/// Why a webhook did not allow the request.
#[derive(Debug)]
pub(super) enum Failure {
    /// It could not be asked or did not answer well; `failurePolicy` decides.
    Calling(String),
    /// It refuses, or must not be asked at all.
    Refused(Box<Status>),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Refused(Box::new(status))
    }
}

impl Failure {
    /// The refusal, unless the hook's policy is to go on: then the events of the request say so under `key`.
    pub(super) fn settle(self, invocation: &Invocation, key: &str) -> Result<(), Status> {
        let hook = &invocation.hook;
        let reason = match self {
            Self::Refused(status) => return Err(*status),
            Self::Calling(reason) => reason,
        };
        let text = format!("failed calling webhook {}: {reason}", api::field::go_quote(&hook.name));
        if hook.fails_open {
            crate::audit::annotate(key, || hook.name.clone());
            tracing::warn!(
                webhook = hook.name,
                configuration = hook.configuration,
                error = text,
                "a webhook is passed over, as its failurePolicy says"
            );
            return Ok(());
        }
        tracing::warn!(
            webhook = hook.name,
            configuration = hook.configuration,
            error = text,
            "a request is refused for a webhook that cannot be asked"
        );
        Err(Status::internal(&text))
    }
}

/// Asks the webhook; the verdict allows.
///
/// # Errors
/// A call that failed, or the refusal.
pub(super) async fn ask(
    invocation: &Invocation,
    question: &Question<'_>,
    mutating: bool,
) -> Result<Verdict, Failure> {
    let hook = &invocation.hook;
    if question.request.dry_run && !hook.takes_dry_run {
        let name = api::field::go_quote(&hook.name);
        let text = format!("admission webhook {name} does not support dry run");
        return Err(Status::bad_request(text).into());
    }
    let calling =
        |what: &str, why: &dyn std::fmt::Display| Failure::Calling(format!("{what}: {why}"));
    let version = hook.speaks.ok_or_else(|| {
        let why = "webhook does not accept known AdmissionReview versions (v1, v1beta1)";
        calling("could not create admission objects", &why)
    })?;
    let client = hook.client.as_ref().map_err(|why| calling("could not get REST client", why))?;
    let uid = base::clock::random_uuid();
    let review = review::of(&uid, version, question, invocation);
    let answer = client.post(&review, hook.timeout).await;
    let answer = answer.map_err(|why| calling("failed to call webhook", &why))?;
    let verdict = review::verdict(&uid, version, mutating, &answer)
        .map_err(|why| calling("received invalid webhook response", &why))?;
    for (key, value) in &verdict.annotations {
        crate::audit::annotate(&format!("{}/{key}", hook.name), || value.clone());
    }
    for warning in &verdict.warnings {
        question.request.warn(warning.clone());
    }
    if !verdict.allowed {
        return Err(review::denial(&hook.name, verdict.status).into());
    }
    Ok(verdict)
}
