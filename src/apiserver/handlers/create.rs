//! POST of an object.

use api::Status;
use http::{Response, StatusCode};

use super::options::WriteOptions;
use super::write::Write;
use super::{input, output};
use crate::body::Body;
use crate::context::Context;
use crate::context::Exchange;
use crate::flow_status;

/// Answers a create.
///
/// # Errors
/// Any refusal of the pipeline.
pub(super) async fn create(
    context: &Context,
    exchange: Exchange,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let value =
        input::object(context, exchange.body, &context.row.spec.gvk, options.validation).await?;
    let object = Write::new(context, &options).create(value).await?;
    if !options.dry_run {
        flow_status::after_write(context, Some(&object.key.name)).await;
    }
    output::object(context, StatusCode::CREATED, &object)
}
