//! Reads for callers in the same process: objects of the cache, without HTTP and JSON.

use std::sync::Arc;
use std::time::Duration;

use api::{Gvr, Object, Status, WatchEvent};
use futures::Stream;

use crate::audit;
use crate::authz::{Attributes, Decision};
use crate::handlers::watch::{self, Item, Start};
use crate::priority_and_fairness::{Entering, FlowAttributes, Seat, Watching};
use crate::registry::Resource;
use crate::registry::convert;
pub use crate::registry::selection::Select;
use crate::registry::selection::Selection;
use crate::registry::watch_cache::{EventType, Filter};
use crate::request::Query;
use crate::request::user::User;
use crate::state::ApiServer;

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With the changes after this revision.
    After(i64),
    /// With all current objects as `Added`, then an initial bookmark, then changes.
    List,
}

impl ApiServer {
    /// Begins the audit record of a read; records nothing without an audit policy.
    async fn read(
        &self,
        user: &User,
        gvr: &Gvr,
        name: &str,
        select: &Select,
        watches: bool,
    ) -> Result<audit::Read, Status> {
        match self.inner.audit.get() {
            None => Ok(audit::Read::default()),
            Some(audit) => {
                Box::pin(audit::Read::begin(audit, user, gvr, name, select, watches)).await
            }
        }
    }

    /// The flow control seat of a read; `None` when flow control is off.
    async fn seat(
        &self,
        user: &User,
        verb: &str,
        gvr: &Gvr,
        name: &str,
        select: &Select,
        query: &Query,
    ) -> Result<Option<Seat>, Status> {
        let Some(control) = &self.inner.flow else { return Ok(None) };
        let attributes = flow_attributes(verb, gvr, name, select);
        let arrived = base::clock::now();
        let limit = (verb != "watch").then_some(self.inner.config.request_timeout);
        let entering = Entering { attributes, user, query, arrived, limit };
        control.enter(&entering).await.map(Some).map_err(|refused| refused.status())
    }

    async fn allowed(
        &self,
        user: &User,
        verb: &str,
        gvr: &Gvr,
        name: &str,
        select: &Select,
    ) -> Result<Arc<Resource>, Status> {
        let row = self.inner.objects.row(gvr)?;
        let attributes = Attributes {
            verb,
            group: &gvr.group,
            version: &gvr.version,
            resource: &gvr.resource,
            namespace: &select.namespace,
            name,
            field_selector: &select.fields,
            label_selector: &select.labels,
            ..Attributes::default()
        };
        match self.inner.parts.authorizer.authorize(user, &attributes).await {
            Decision::Allow(reason) => {
                audit::decided("allow", &reason);
                Ok(row)
            }
            Decision::Failed(failure) => {
                audit::annotate("authorization.k8s.io/reason", || "internal error".to_owned());
                Err(Status::internal(&failure.error))
            }
            Decision::Deny(reason) | Decision::NoOpinion(reason) => {
                audit::decided("forbid", &reason);
                let user_name = api::field::go_quote(&user.name);
                let why = format!(
                    "User {user_name} cannot {verb} resource \"{}\" in API group \"{}\": {reason}",
                    gvr.resource, gvr.group
                );
                Err(Status::forbidden(&gvr.group, &gvr.resource, name, &why))
            }
        }
    }

    /// The name that a field selector restricts a list or watch to. Authorization uses it as
    /// upstream's `RequestInfo.Name`.
    fn selected_name(fields: &str) -> &str {
        let name =
            |term| str::strip_prefix(term, "metadata.name=").map(|n| n.trim_start_matches('='));
        fields.split(',').find_map(name).unwrap_or_default()
    }

    fn filter(row: &Resource, select: &Select) -> Result<Filter, Status> {
        let selection = Selection::parse(row, &select.labels, &select.fields)?;
        let name = selection.exact_name().unwrap_or_default();
        Ok(Filter { namespace: select.namespace.clone(), name, selection })
    }

    /// One object, consistent with every write acknowledged before.
    ///
    /// # Errors
    /// 403, 404, or the store's error.
    pub async fn get_object(
        &self,
        user: &User,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Object>, Status> {
        let select = Select { namespace: namespace.to_owned(), ..Select::default() };
        let read = self.read(user, gvr, name, &select, false).await?;
        let found = async {
            let _seat = self.seat(user, "get", gvr, name, &select, &Query::default()).await?;
            let row = self.allowed(user, "get", gvr, name, &select).await?;
            let found = self.inner.objects.storage().get(&row, namespace, name).await?;
            let found = found.ok_or_else(|| Status::not_found(&gvr.group, &gvr.resource, name))?;
            Ok(convert::object(&row, &Arc::new(found)))
        };
        let outcome = audit::scope(read.trail(), found).await;
        read.answered(&outcome).await;
        outcome
    }

    /// Watches the selected objects; events share the objects of the cache. The watch ends with an
    /// error event when the caller lags; the caller then restarts it, with [`WatchStart::List`]
    /// after 410.
    ///
    /// # Errors
    /// 403, 400 of a selector, 504 for a revision in the future.
    pub async fn watch_objects(
        &self,
        user: &User,
        gvr: &Gvr,
        select: &Select,
        start: WatchStart,
    ) -> Result<impl Stream<Item = WatchEvent> + Send + use<>, Status> {
        let read = self.read(user, gvr, "", select, true).await?;
        let opened = async {
            let name = Self::selected_name(&select.fields);
            let query = match start {
                WatchStart::After(revision) => Query::parse(&format!("resourceVersion={revision}")),
                WatchStart::List => Query::default(),
            };
            let seat = self.seat(user, "watch", gvr, name, select, &query).await?;
            let row = self.allowed(user, "watch", gvr, name, select).await?;
            let filter = Self::filter(&row, select)?;
            let start = match start {
                WatchStart::After(revision) => Start::After(revision),
                WatchStart::List => {
                    Start::Initial { at_least: 0, consistent: true, has_bookmark: true }
                }
            };
            // In-process watches need no time limit.
            let forever = Some(FOREVER);
            let mut watch =
                watch::open(&self.inner.objects, &row, filter, start, true, forever).await?;
            if let (Some(control), Some(seat)) = (&self.inner.flow, seat) {
                let attributes = flow_attributes("watch", gvr, name, select);
                watch.seat = Some(Watching::new(control, seat, &attributes, &select.fields));
            }
            Ok((watch, row))
        };
        let outcome = audit::scope(read.trail(), opened).await;
        let ongoing = read.answered(&outcome).await;
        let (watch, row) = outcome?;
        let stream = futures::stream::unfold((watch, row, ongoing), |state| async move {
            let (mut watch, row, ongoing) = state;
            let event = match watch.next().await? {
                Item::Change(kind, object, _) => {
                    let object = convert::object(&row, &object);
                    match kind {
                        EventType::Added => WatchEvent::Added(object),
                        EventType::Modified => WatchEvent::Modified(object),
                        EventType::Deleted => WatchEvent::Deleted(object),
                    }
                }
                Item::Bookmark { revision, initial } => WatchEvent::Bookmark { revision, initial },
                Item::Error(refusal) => WatchEvent::Error(refusal),
            };
            Some((event, (watch, row, ongoing)))
        });
        Ok(stream)
    }
}

/// The attributes of a read for flow control.
fn flow_attributes<'a>(
    verb: &'a str,
    gvr: &'a Gvr,
    name: &'a str,
    select: &'a Select,
) -> FlowAttributes<'a> {
    FlowAttributes {
        is_resource: true,
        verb,
        path: "",
        group: &gvr.group,
        version: &gvr.version,
        resource: &gvr.resource,
        subresource: "",
        namespace: &select.namespace,
        name,
    }
}

/// Thirty years, longer than any process runs.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
