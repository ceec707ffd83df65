//! Responses: Status, objects, lists and tables, encoded as the client accepts them.

pub(crate) mod chunked;
pub(crate) mod encode;
pub(crate) mod protobuf_list;
pub(crate) mod status;
