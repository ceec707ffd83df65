//! PUT of an object or of one of its subresources.

use api::Status;
use http::{Response, StatusCode};

use super::options::WriteOptions;
use super::write::{Create, Write, same_name, url_name};
use super::{input, output, write};
use crate::body::Body;
use crate::context::Context;
use crate::context::Exchange;
use crate::registry::metadata;

/// Answers an update.
///
/// # Errors
/// Any refusal of the pipeline.
pub(super) async fn update(
    context: &Context,
    exchange: Exchange,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions", false)?;
    let mut value =
        input::object(context, exchange.body, &context.row.spec.gvk, options.validation).await?;
    let write = Write::new(context, &options);
    write.place(&mut value)?;
    same_name(&value, name)?;
    let creates = context.row.spec.strategy.allow_create_on_update()
        && matches!(context.info.subresource.as_str(), "" | "status");
    let create = creates.then(|| {
        let make = || {
            let uid = metadata::text(&value, "uid");
            if !uid.is_empty() {
                return Err(write.other_uid(name, uid, ""));
            }
            write::unversioned(value.clone())
        };
        Box::new(make) as Create<'_>
    });
    let updated = write.update(name, create, &mut |_old| Ok(value.clone())).await?;
    let code = if updated.created { StatusCode::CREATED } else { StatusCode::OK };
    output::object(context, code, &updated.object)
}
