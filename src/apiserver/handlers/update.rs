//! PUT of an object or of one of its subresources.

use api::Status;
use http::{Response, StatusCode};

use crate::registry::metadata;
use crate::request::body::Body;
use crate::request::context::Context;
use crate::request::context::RequestParts;
use crate::request::input;
use crate::request::options::WriteOptions;
use crate::response::encode;
use crate::write;
use crate::write::{Create, Write, same_name, url_name};

/// Answers an update.
///
/// # Errors
/// Any error of the write pipeline.
pub(super) async fn update(
    context: &Context,
    exchange: RequestParts,
) -> Result<Response<Body>, Status> {
    context.accept()?;
    let name = url_name(context)?;
    let options = WriteOptions::read(&context.query, "UpdateOptions", false)?;
    let mut value =
        input::object(context, exchange.body, &context.row.spec.gvk, options.validation).await?;
    let write = Write::new(context, &options);
    write.set_request_namespace(&mut value)?;
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
    encode::object(context, code, &updated.object)
}
