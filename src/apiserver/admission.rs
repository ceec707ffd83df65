//! The admission chain: all writes pass it, including in-process ones.

pub mod certificates;
pub mod chain;
pub mod classes;
pub mod configuration;
pub mod event_rate_limit;
pub(crate) mod expressions;
pub mod hardening;
pub mod limit_ranger;
pub(crate) mod matching;
pub mod namespace;
pub mod node_restriction;
pub mod pod_resize;
pub mod pod_resources;
pub mod pod_security;
pub mod pods;
pub mod policies;
pub mod quota;
pub mod reinvocation;
pub mod service_account;
pub mod storage;
mod tolerations;
#[cfg(test)]
mod unreadable_test;
pub mod webhooks;

use api::value::str_in;
use api::{Gvk, Gvr, Status};
use async_trait::async_trait;
use reinvocation::ReinvocationContext;
use serde_json::{Map, Value, json};

pub use crate::request::operation::Operation;
use crate::request::user::User;

/// The attributes of one write, as admission plugins see it (upstream's `admission.Attributes`).
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The operation.
    pub operation: Operation,
    /// The resource that is written.
    pub gvr: &'a Gvr,
    /// The kind of the resource.
    pub gvk: &'a Gvk,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// The namespace, or empty.
    pub namespace: &'a str,
    /// The name; empty for a create with `generateName`.
    pub name: &'a str,
    /// The user that sends the request.
    pub user: &'a User,
    /// Whether the request is a dry run: nothing is stored.
    pub dry_run: bool,
    /// The object before the write (update, delete).
    pub old: Option<&'a Value>,
    /// The options of the request.
    pub options: Options<'a>,
    /// The state of mutating policies and webhooks across the two passes of this request.
    pub reinvocation: &'a ReinvocationContext,
    /// The quota usage to store together with the object; set by ResourceQuota.
    pub reservation: &'a parking_lot::Mutex<Option<quota::Reservation>>,
    /// Collects warnings for the client.
    pub warnings: &'a parking_lot::Mutex<Vec<String>>,
}

/// The options of a request, as reviews and policies see them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options<'a> {
    /// `CreateOptions`, `UpdateOptions` or `DeleteOptions`; empty for connect requests, which have
    /// none.
    pub kind: &'a str,
    /// Whether this is a dry run.
    pub dry_run: bool,
    /// `fieldManager`, or empty.
    pub manager: &'a str,
    /// `fieldValidation`, or empty.
    pub validation: &'a str,
    /// The remaining fields, those of `DeleteOptions`.
    pub more: Option<&'a Map<String, Value>>,
}

impl Options<'_> {
    /// The options as an API object, null if the request has none.
    pub fn value(&self) -> Value {
        if self.kind.is_empty() {
            return Value::Null;
        }
        let mut map = self.more.cloned().unwrap_or_default();
        map.insert("kind".to_owned(), self.kind.into());
        map.insert("apiVersion".to_owned(), "meta.k8s.io/v1".into());
        if self.dry_run {
            map.insert("dryRun".to_owned(), json!(["All"]));
        }
        for (key, text) in [("fieldManager", self.manager), ("fieldValidation", self.validation)] {
            if !text.is_empty() {
                map.insert(key.to_owned(), text.into());
            }
        }
        Value::Object(map)
    }
}

/// An admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync {
    /// The name, as in upstream's `--enable-admission-plugins`.
    fn name(&self) -> &'static str;

    /// Mutates the object (`None` for deletions and most connect requests).
    ///
    /// # Errors
    /// The rejection.
    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Option<Value>,
    ) -> Result<(), Status> {
        let _ = (request, object);
        Ok(())
    }

    /// Accepts or rejects the final object.
    ///
    /// # Errors
    /// The rejection.
    async fn validate(&self, request: &Request<'_>, object: Option<&Value>) -> Result<(), Status> {
        let _ = (request, object);
        Ok(())
    }
}

/// Calls [`Request::forbidden`] for a request of these attributes.
fn forbidden(gvr: &Gvr, name: &str, object: Option<&Value>, why: &str) -> Status {
    let own =
        |field| object.map(|o| str_in(o, &["metadata", field])).filter(|name| !name.is_empty());
    let name = match name {
        "" => own("name").or_else(|| own("generateName")).unwrap_or("Unknown"),
        name => name,
    };
    Status::forbidden(&gvr.group, &gvr.resource, name, why)
}

impl Request<'_> {
    /// Whether the resource is `resource` of the API group `group`.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        &*self.gvr.group == group && &*self.gvr.resource == resource
    }

    /// Whether the request is for a pod itself, not for a subresource.
    fn is_pod(&self) -> bool {
        self.is("", "pods") && self.subresource.is_empty()
    }

    /// A 403 `pods "x" is forbidden: why`; falls back to the object's name if the request has none
    /// yet.
    pub fn forbidden(&self, object: Option<&Value>, why: &str) -> Status {
        forbidden(self.gvr, self.name, object, why)
    }

    /// The name in the request, else in the object; empty if it has yet to be generated.
    pub(crate) fn named<'b>(&'b self, object: Option<&'b Value>) -> &'b str {
        match (self.name, object) {
            ("", Some(object)) => str_in(object, &["metadata", "name"]),
            (name, _) => name,
        }
    }

    /// The check behind the CEL variable `authorizer.requestResource`.
    pub(crate) fn resource_check(&self, object: Option<&Value>) -> kcel::Check {
        kcel::Check {
            group: self.gvr.group.to_string(),
            resource: self.gvr.resource.to_string(),
            subresource: self.subresource.to_owned(),
            namespace: matching::namespace_of(self, object).to_owned(),
            name: self.named(object).to_owned(),
            ..kcel::Check::default()
        }
    }

    /// Adds a warning for the client, without duplicates.
    pub fn warn(&self, text: String) {
        let mut warnings = self.warnings.lock();
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Requests for tests of plugins.

    use super::*;

    /// The attributes of a request that tests vary.
    pub(crate) struct Ask<'a> {
        pub(crate) operation: Operation,
        pub(crate) gvr: &'a Gvr,
        pub(crate) kind: &'a str,
        pub(crate) subresource: &'a str,
        pub(crate) namespace: &'a str,
        pub(crate) user: User,
        pub(crate) old: Option<Value>,
    }

    /// A request that creates a `kind` in namespace `a` as an administrator.
    pub(crate) fn creates<'a>(gvr: &'a Gvr, kind: &'a str) -> Ask<'a> {
        let user = User::authenticated("admin", &["system:masters"]);
        Ask {
            operation: Operation::Create,
            gvr,
            kind,
            subresource: "",
            namespace: "a",
            user,
            old: None,
        }
    }

    /// Runs `mutate` and `validate` of one plugin; returns the final object and the warnings.
    pub(crate) async fn admit(
        plugin: &dyn Plugin,
        ask: Ask<'_>,
        object: Value,
    ) -> Result<(Value, Vec<String>), Status> {
        let (object, warnings, _) = admit_reserving(plugin, ask, object).await?;
        Ok((object, warnings))
    }

    /// Like [`admit`], and returns the quota reservation as well.
    pub(crate) async fn admit_reserving(
        plugin: &dyn Plugin,
        ask: Ask<'_>,
        object: Value,
    ) -> Result<(Value, Vec<String>, Option<quota::Reservation>), Status> {
        let (warnings, reservation) = Default::default();
        let gvk = Gvk::new(&ask.gvr.group, &ask.gvr.version, ask.kind);
        let name = if ask.operation == Operation::Create {
            ""
        } else {
            str_in(&object, &["metadata", "name"])
        }
        .to_owned();
        let request = Request {
            operation: ask.operation,
            gvr: ask.gvr,
            gvk: &gvk,
            subresource: ask.subresource,
            namespace: ask.namespace,
            name: &name,
            user: &ask.user,
            dry_run: false,
            old: ask.old.as_ref(),
            options: Options::default(),
            reinvocation: &ReinvocationContext::default(),
            reservation: &reservation,
            warnings: &warnings,
        };
        let mut object = (ask.operation != Operation::Delete).then_some(object);
        plugin.mutate(&request, &mut object).await?;
        plugin.validate(&request, object.as_ref()).await?;
        Ok((object.unwrap_or_default(), warnings.into_inner(), reservation.into_inner()))
    }
}
