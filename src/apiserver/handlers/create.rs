//! POST of an object.

use api::Status;
use http::{Response, StatusCode};

use crate::priority_and_fairness::status;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::write::Write;

/// Answers a create.
///
/// # Errors
/// Any error of the write pipeline.
pub(super) async fn create(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let options = WriteOptions::read(&context.query, "CreateOptions", false)?;
    let value =
        input::object(context, exchange.body, &context.row.spec.gvk, options.validation).await?;
    let object = Write::new(context, &options).create(value).await?;
    if !options.dry_run {
        status::after_write(context, Some(&object.key.name)).await;
    }
    encode::object(context, StatusCode::CREATED, &object)
}
