//! Writes: every verb that changes an object goes through [`pipeline`].

mod admission;
mod commit;
mod defaulting;
pub(crate) mod device_claims;
pub(crate) mod managed_fields;
mod pipeline;
mod preconditions;
pub(crate) mod service_allocation;
mod validation;

use std::sync::Arc;

use api::{Object, Status};
use serde_json::{Map, Value};

use crate::registry::Resource;
use crate::registry::strategy::WriteContext;
use crate::request::context::Context;
use crate::request::options::WriteOptions;
pub(crate) use preconditions::{same_name, unversioned, url_name};

/// The subresource of a scheduler's decision. Neither strategy nor admission checks the pod for it
/// (upstream's `BindingREST`).
const BINDING: &str = "binding";

/// The parameters of a write other than the object.
pub(crate) struct Write<'a> {
    pub(crate) context: &'a Context,
    pub(crate) options: &'a WriteOptions,
    /// The row that is written; differs from the context's row for evictions and similar
    /// subresources.
    pub(crate) row: &'a Arc<Resource>,
    pub(crate) subresource: &'a str,
    /// Whether the managed fields are already updated, as by server-side apply.
    pub(crate) applies: bool,
    /// Options of a deletion, for admission.
    pub(crate) delete_options: Option<Map<String, Value>>,
}

/// Produces the object to store when none exists.
pub(crate) type Create<'a> = Box<dyn FnOnce() -> Result<Value, Status> + Send + 'a>;

/// The outcome of an update.
pub(crate) struct Updated {
    pub(crate) object: Arc<Object>,
    pub(crate) created: bool,
}

/// The outcome of one attempt of an update.
enum UpdateAttempt {
    /// The object is stored, or was stored already.
    Done(Arc<Object>),
    /// The object as a concurrent write left it; `None` when it was deleted.
    Changed(Option<Object>),
}

impl<'a> Write<'a> {
    pub(crate) fn new(context: &'a Context, options: &'a WriteOptions) -> Self {
        Self {
            context,
            options,
            row: &context.row,
            subresource: &context.info.subresource,
            applies: false,
            delete_options: None,
        }
    }

    fn strategy_context(&self) -> WriteContext<'_> {
        WriteContext {
            user: &self.context.user,
            namespace: self.context.namespace(),
            subresource: self.subresource,
            dry_run: self.options.dry_run,
            warnings: Default::default(),
        }
    }
}
