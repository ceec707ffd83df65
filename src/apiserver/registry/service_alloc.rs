//! Addresses and ports of Services: handed out before validation, given back when the write fails or the Service goes.

use api::Status;
use serde_json::Value;

use super::Resource;
use crate::context::Context;

/// Allocator of Service addresses and node ports.
#[derive(Debug)]
pub(crate) struct Services {}

impl Services {
    /// Over these ranges.
    ///
    /// # Errors
    /// A sentence that names the range that cannot be used.
    pub(crate) fn new(cidrs: &[String], ports: (u16, u16)) -> Result<Self, String> {
        let _ = (cidrs, ports);
        Ok(Self {})
    }
}

/// What a write holds until it is decided.
#[must_use = "settle it"]
#[derive(Debug, Default)]
pub(crate) struct Held {}

impl Held {
    /// Keeps what was taken when the write was stored, and gives it back otherwise.
    pub(crate) fn settle(&mut self, stored: bool) {
        let _ = stored;
    }
}

pub(crate) async fn before_create(
    context: &Context,
    row: &Resource,
    value: &mut Value,
    dry_run: bool,
) -> Result<Held, Status> {
    let _ = (context, row, value, dry_run);
    Ok(Held {})
}

pub(crate) async fn before_update(
    context: &Context,
    row: &Resource,
    subresource: &str,
    value: &mut Value,
    old: &Value,
    dry_run: bool,
) -> Result<Held, Status> {
    let _ = (context, row, subresource, value, old, dry_run);
    Ok(Held {})
}

pub(crate) async fn deleted(context: &Context, row: &Resource, value: &Value) {
    let _ = (context, row, value);
}
