//! Which handlers of the runtime support user namespaces.

use proto::runtime::v1 as cri;

/// A pod whose handler does not support user namespaces; the texts are those of upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", text(.handler, *.is_known))]
pub(crate) struct NotSupported {
    /// The handler of the pod's RuntimeClass; empty for the default one.
    handler: String,
    /// Whether the runtime lists the handler, or lists none.
    is_known: bool,
}

fn text(handler: &str, is_known: bool) -> String {
    let what = match handler {
        "" => "runtime does not support user namespaces".to_owned(),
        _ => format!("RuntimeClass handler {handler:?} does not support user namespaces"),
    };
    let why =
        if is_known { String::new() } else { format!(": the handler {handler:?} is not known") };
    format!("can't set `spec.hostUsers: false`, {what}{why}")
}

/// The handlers of the runtime, as of its last status.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Handlers(Vec<(String, bool)>);

impl Handlers {
    pub(super) fn of(status: &cri::StatusResponse) -> Self {
        let handler = |h: &cri::RuntimeHandler| {
            (h.name.clone(), h.features.is_some_and(|f| f.user_namespaces))
        };
        Self(status.runtime_handlers.iter().map(handler).collect())
    }

    /// Checks that a handler supports user namespaces. A runtime that lists no handlers supports
    /// none.
    pub(super) fn check(&self, name: &str) -> Result<(), NotSupported> {
        let handler = self.0.iter().find(|(known, _)| known == name);
        match handler {
            Some((_, true)) => Ok(()),
            Some((_, false)) => Err(NotSupported { handler: name.to_owned(), is_known: true }),
            None => {
                let is_known = self.0.is_empty();
                Err(NotSupported { handler: name.to_owned(), is_known })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_of_a_pod_has_to_support_user_namespaces() {
        let handler = |name: &str, user_namespaces| cri::RuntimeHandler {
            name: name.to_owned(),
            features: Some(cri::RuntimeHandlerFeatures {
                user_namespaces,
                ..cri::RuntimeHandlerFeatures::default()
            }),
        };
        let status = cri::StatusResponse {
            runtime_handlers: vec![handler("", true), handler("runc", true), handler("old", false)],
            ..cri::StatusResponse::default()
        };
        let handlers = Handlers::of(&status);
        let error = |of: &Handlers, name: &str| of.check(name).unwrap_err().to_string();
        assert_eq!(handlers.check(""), Ok(()));
        assert_eq!(handlers.check("runc"), Ok(()));
        let old = "can't set `spec.hostUsers: false`, RuntimeClass handler \"old\" does not \
            support user namespaces";
        assert_eq!(error(&handlers, "old"), old);
        assert_eq!(
            error(&handlers, "kata"),
            "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support \
             user namespaces: the handler \"kata\" is not known"
        );
        let none = Handlers::default();
        assert_eq!(
            error(&none, ""),
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
        assert_eq!(error(&none, "old"), old);
    }
}
