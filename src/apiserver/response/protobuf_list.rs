//! Encodes lists as length-prefixed protobuf. A large list is encoded twice, for its length and
//! while it is sent, so that memory never holds more than one chunk.

use std::sync::Arc;

use api::codec::protobuf::ListEncoder;
use api::schema::Schema;
use api::{Gvk, Object, Status};
use serde_json::Value;

use crate::registry::Resource;
use crate::registry::convert;
use crate::response::chunked::{CHUNK_BYTES, Source};
use crate::serialization;

/// Bytes of a list as JSON above which it is encoded twice; smaller lists are encoded as a whole.
pub(crate) const TWICE_FROM: usize = 512 * 1024;

/// Encodes the items of one list.
pub(crate) struct List {
    schema: Arc<Schema>,
    row: Arc<Resource>,
    encoder: ListEncoder,
}

impl List {
    /// A list of the row's objects with this metadata.
    ///
    /// # Errors
    /// 406 when the kind has no protobuf form.
    pub(crate) fn new(
        schema: Arc<Schema>,
        row: Arc<Resource>,
        metadata: &Value,
    ) -> Result<Self, Status> {
        let kind = &row.spec.gvk;
        let list = Gvk::new(&kind.group, &kind.version, &format!("{}List", kind.kind));
        let encoder = serialization::protobuf_list(&schema, &list, metadata)?;
        Ok(Self { schema, row, encoder })
    }

    fn item(&self, object: &Arc<Object>, out: &mut Vec<u8>) -> Result<(), Status> {
        let json = convert::object(&self.row, object).json();
        let encoded = self.encoder.item(&self.schema, &json, out);
        encoded.map_err(|error| serialization::no_protobuf(&error))
    }

    fn begin(&self, length: usize) -> Result<Vec<u8>, Status> {
        self.encoder.begin(length).map_err(|error| serialization::no_protobuf(&error))
    }

    /// The whole list, for few objects.
    ///
    /// # Errors
    /// 406 when an object has no protobuf form.
    pub(crate) fn whole(&self, items: &[Arc<Object>]) -> Result<Vec<u8>, Status> {
        let mut bytes = Vec::new();
        for object in items {
            self.item(object, &mut bytes)?;
        }
        Ok([self.begin(bytes.len())?, bytes, self.encoder.end()].concat())
    }

    /// The list as a chunked source; computes its length first.
    ///
    /// # Errors
    /// As [`List::whole`], before anything is sent.
    pub(crate) async fn source(self, items: Vec<Arc<Object>>) -> Result<Source, Status> {
        let (mut length, mut scratch) = (0, Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 4));
        for object in &items {
            self.item(object, &mut scratch)?;
            if scratch.len() >= CHUNK_BYTES {
                length += scratch.len();
                scratch.clear();
                // Yields to other requests of this thread.
                tokio::task::yield_now().await;
            }
        }
        length += scratch.len();
        let (mut before, mut items, mut left) = (self.begin(length)?, items.into_iter(), length);
        Ok(Box::new(move |out| {
            out.append(&mut before);
            while out.len() < CHUNK_BYTES {
                let Some(object) = items.next() else {
                    out.extend_from_slice(&self.encoder.end());
                    return if left == 0 { Ok(false) } else { Err(other_length()) };
                };
                let from = out.len();
                self.item(&object, out)?;
                left = left.checked_sub(out.len() - from).ok_or_else(other_length)?;
            }
            Ok(true)
        }))
    }
}

/// Both passes encode the same objects; a client must not receive different bytes as a list.
fn other_length() -> Status {
    Status::internal("an object was encoded to another length than before, list again")
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::BodyExt;
    use serde_json::json;

    use super::*;
    use crate::registry::Registry;
    use crate::response::chunked;

    fn list() -> List {
        let schema = Schema::builtin();
        let registry = Registry::builtin(Arc::clone(&schema));
        let row = Arc::clone(registry.row(&lookup::CONFIG_MAPS).unwrap());
        List::new(schema, row, &json!({"resourceVersion": "7"})).unwrap()
    }

    fn objects(count: usize) -> Vec<Arc<Object>> {
        let object = |n: usize| {
            let value = json!({"kind": "ConfigMap", "apiVersion": "v1",
                "metadata": {"name": format!("o-{n}")}, "data": {"k": "x".repeat(300)}});
            Arc::new(Object::from_value(value).unwrap())
        };
        (0..count).map(object).collect()
    }

    #[tokio::test]
    async fn a_chunked_list_equals_the_unchunked_list() {
        for count in [0, 1, 3000] {
            let source = list().source(objects(count)).await.unwrap();
            let mut body = chunked::chunked_response(&HeaderMap::new(), "x", source).into_body();
            let (mut bytes, mut largest) = (Vec::new(), 0);
            while let Some(frame) = body.frame().await {
                let frame = frame.unwrap().into_data().unwrap();
                largest = largest.max(frame.len());
                bytes.extend_from_slice(&frame);
            }
            assert!(largest < CHUNK_BYTES + 1024, "{largest}");
            assert_eq!(bytes, list().whole(&objects(count)).unwrap(), "{count}");
            // What upstream's encoder writes of the document.
            let items: Vec<Value> =
                objects(count).iter().map(|object| object.value().unwrap()).collect();
            let document = json!({"kind": "ConfigMapList", "apiVersion": "v1",
                "metadata": {"resourceVersion": "7"}, "items": items});
            assert_eq!(bytes, serialization::protobuf(&Schema::builtin(), &document).unwrap());
        }
    }
}
