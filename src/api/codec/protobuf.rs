//! The protobuf codec of Kubernetes, driven by the schema table. The encoder's output equals
//! upstream's byte for byte; the decoder limits its work.

mod decode;
mod encode;
pub(crate) mod wire;

use bytes::Bytes;
use serde_json::Value;

use self::wire::{Reader, Writer};
use super::DecodeError;
use crate::object::Gvk;
use crate::schema::{Schema, Shape, TypeId};

/// The media type of single objects and of lists.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The four bytes that precede every enveloped object.
const MAGIC: &[u8] = b"k8s\0";

/// The reason why an object cannot be encoded as protobuf.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The kind has no protobuf form upstream either, such as a table or a custom resource.
    #[error(
        "object {0} does not implement the protobuf marshalling interface and cannot be encoded to a protobuf message"
    )]
    NoForm(String),
    /// The schema table does not contain the kind of the object.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// The field `apiVersion` of the object.
        api_version: String,
        /// The field `kind` of the object.
        kind: String,
    },
    /// A value does not have the type of its field, because the object did not pass the decoder.
    #[error("field {field} holds {found}, which is no {wanted}")]
    Mismatch {
        /// JSON name of the field.
        field: String,
        /// The type of the field.
        wanted: &'static str,
        /// The type of the value.
        found: String,
    },
    /// The nesting exceeds [`super::DEPTH_MAX`].
    #[error("the object is nested deeper than {} levels", super::DEPTH_MAX)]
    TooDeep,
}

/// The envelope of a message whose type is not yet determined (`runtime.Unknown`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Envelope<'a> {
    /// The `apiVersion` of the enclosed object.
    pub api_version: String,
    /// The `kind` of the enclosed object.
    pub kind: String,
    /// The enclosed object.
    pub raw: &'a [u8],
    /// The media type of `raw`; empty for protobuf.
    pub content_type: String,
}

/// Returns whether the bytes begin with the prefix of an enveloped object.
pub fn is_enveloped(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

/// Reads the envelope.
///
/// # Errors
/// Returns an error if the bytes are not an envelope or the envelope has a content encoding.
pub fn open(body: &[u8]) -> Result<Envelope<'_>, DecodeError> {
    if body.is_empty() {
        return Err(DecodeError::Syntax("empty data".into()));
    }
    if body == MAGIC {
        return Err(DecodeError::Syntax("empty body".into()));
    }
    let message = body.strip_prefix(MAGIC).ok_or_else(|| {
        DecodeError::Syntax("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]".into())
    })?;
    let mut envelope = Envelope::default();
    let mut reader = Reader::new(message);
    while let Some((tag, kind)) = reader.key()? {
        match tag {
            1 => {
                let mut inner = Reader::new(reader.bytes(kind)?);
                while let Some((tag, kind)) = inner.key()? {
                    match tag {
                        1 => envelope.api_version = inner.text(kind)?,
                        2 => envelope.kind = inner.text(kind)?,
                        _ => inner.skip(kind)?,
                    }
                }
            }
            2 => envelope.raw = reader.bytes(kind)?,
            3 => {
                if !reader.bytes(kind)?.is_empty() {
                    return Err(DecodeError::Syntax(
                        "content encodings are not supported in a protobuf message".into(),
                    ));
                }
            }
            4 => envelope.content_type = reader.text(kind)?,
            _ => reader.skip(kind)?,
        }
    }
    Ok(envelope)
}

/// Decodes an enveloped object into normal form, with `apiVersion` and `kind` from the envelope.
///
/// # Errors
/// Returns an error if the bytes are not an envelope, the kind is unknown or the message is
/// malformed.
pub fn decode_object(schema: &Schema, body: &[u8]) -> Result<(Gvk, Value), DecodeError> {
    let envelope = open(body)?;
    let gvk = Gvk::from_api_version(&envelope.api_version, &envelope.kind);
    let id = schema.kind(&gvk).ok_or_else(|| {
        DecodeError::Syntax(format!(
            "no kind {:?} is registered for version {:?}",
            envelope.kind, envelope.api_version
        ))
    })?;
    let mut value = decode_message(schema, id, envelope.raw)?;
    if let Value::Object(map) = &mut value {
        for (key, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
            if !text.is_empty() && schema.get(id).field(key).is_some() {
                map.insert(key.into(), text.into());
            }
        }
    }
    Ok((gvk, value))
}

/// Decodes a message of this type without an envelope into normal form.
///
/// # Errors
/// Returns an error if the message is malformed.
pub fn decode_message(
    schema: &Schema,
    type_id: TypeId,
    message: &[u8],
) -> Result<Value, DecodeError> {
    decode::message(schema, type_id, message)
}

/// Encodes an object with its envelope.
///
/// # Errors
/// Returns an error if the kind has no protobuf form or the object did not pass the decoder.
pub fn encode_object(schema: &Schema, value: &Value) -> Result<Bytes, EncodeError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    encode_typed(schema, type_of(schema, api_version, kind)?, api_version, kind, value)
}

/// Encodes a value of this type in an envelope with this kind, for values without the fields
/// `apiVersion` and `kind`.
///
/// # Errors
/// Returns an error if the value did not pass the decoder.
pub fn encode_typed(
    schema: &Schema,
    id: TypeId,
    api_version: &str,
    kind: &str,
    value: &Value,
) -> Result<Bytes, EncodeError> {
    enveloped(api_version, kind, |out| encode::object(schema, id, value, out))
}

/// Encodes a list of one kind item by item. The length of a protobuf list precedes its items, so a
/// caller that cannot keep the whole list in memory encodes each item twice, the first time for its
/// length.
#[derive(Debug)]
pub struct ListEncoder {
    api_version: String,
    kind: Box<str>,
    /// The encoded metadata of the list.
    metadata: Vec<u8>,
    /// The field number of `items`.
    tag: u32,
    item: TypeId,
}

impl ListEncoder {
    /// Creates an encoder for lists of this kind with this metadata.
    ///
    /// # Errors
    /// Returns the errors of [`encode_object`].
    pub fn new(schema: &Schema, list: &Gvk, metadata: &Value) -> Result<Self, EncodeError> {
        let api_version = list.api_version();
        let ty = schema.get(type_of(schema, &api_version, &list.kind)?);
        let no_form = || EncodeError::NoForm(list.kind.to_string());
        let meta = ty.field("metadata").ok_or_else(no_form)?;
        let field = ty.field("items").ok_or_else(no_form)?;
        let item = match &field.shape {
            Shape::List(element) => match element.as_ref() {
                Shape::Struct(id) => *id,
                _ => return Err(no_form()),
            },
            _ => return Err(no_form()),
        };
        let mut out = Writer::with_capacity(64);
        encode::field(schema, meta, Some(metadata), &mut out, 0)?;
        let (kind, tag) = (Box::from(&*list.kind), field.tag);
        Ok(Self { api_version, kind, metadata: out.finish(), tag, item })
    }

    /// Returns the bytes that precede the items; `items` is the total encoded length of the items.
    ///
    /// # Errors
    /// Returns no error for a kind of the table.
    pub fn begin(&self, items: usize) -> Result<Vec<u8>, EncodeError> {
        let mut out = Writer::with_capacity(self.metadata.len() + 64);
        begin(&self.api_version, &self.kind, &mut out)?;
        out.delimited(2, self.metadata.len().saturating_add(items));
        out.raw(&self.metadata);
        Ok(out.finish())
    }

    /// Appends an item.
    ///
    /// # Errors
    /// Returns the errors of [`encode_object`], and [`EncodeError::Mismatch`] if the item is not
    /// valid JSON.
    pub fn item(&self, schema: &Schema, json: &[u8], out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let value: Value = serde_json::from_slice(json).map_err(|e| EncodeError::Mismatch {
            field: "items".into(),
            wanted: "JSON",
            found: e.to_string(),
        })?;
        let mut writer = Writer::behind(std::mem::take(out));
        let written = writer.nested(self.tag, |w| encode::object(schema, self.item, &value, w));
        *out = writer.finish();
        written
    }

    /// Returns the bytes that follow the items.
    pub fn end(&self) -> Vec<u8> {
        let mut out = Writer::with_capacity(4);
        end(&mut out);
        out.finish()
    }
}

/// Encodes a watch event as one frame of a watch stream: the length in four bytes, then the event
/// with its enveloped object.
///
/// # Errors
/// Returns the errors of [`encode_object`].
pub fn encode_watch_event(
    schema: &Schema,
    event_type: &str,
    object: &Value,
) -> Result<Bytes, EncodeError> {
    let object = encode_object(schema, object)?;
    let mut out = Writer::with_capacity(object.len() + 32);
    out.raw(&[0; 4]);
    out.bytes(1, event_type.as_bytes());
    out.nested(2, |out| {
        out.bytes(1, &object);
        Ok::<_, EncodeError>(())
    })?;
    let mut frame = out.finish();
    let length = u32::try_from(frame.len() - 4).map_err(|_| EncodeError::TooDeep)?;
    if let Some(head) = frame.get_mut(..4) {
        head.copy_from_slice(&length.to_be_bytes());
    }
    Ok(frame.into())
}

fn type_of(schema: &Schema, api_version: &str, kind: &str) -> Result<TypeId, EncodeError> {
    let unknown =
        || EncodeError::UnknownKind { api_version: api_version.to_owned(), kind: kind.to_owned() };
    let id = schema.kind(&Gvk::from_api_version(api_version, kind)).ok_or_else(unknown)?;
    let ty = schema.get(id);
    if ty.proto.is_empty() && !ty.fields.is_empty() {
        return Err(EncodeError::NoForm(ty.go_type().to_owned()));
    }
    Ok(id)
}

fn enveloped(
    api_version: &str,
    kind: &str,
    object: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
) -> Result<Bytes, EncodeError> {
    let mut out = Writer::with_capacity(512);
    begin(api_version, kind, &mut out)?;
    out.nested(2, object)?;
    end(&mut out);
    Ok(out.finish().into())
}

/// Writes the part of the envelope that precedes the object.
fn begin(api_version: &str, kind: &str, out: &mut Writer) -> Result<(), EncodeError> {
    out.raw(MAGIC);
    out.nested(1, |out| {
        out.bytes(1, api_version.as_bytes());
        out.bytes(2, kind.as_bytes());
        Ok(())
    })
}

/// Writes the part of the envelope that follows the object.
fn end(out: &mut Writer) {
    out.bytes(3, b"");
    out.bytes(4, b"");
}

#[cfg(test)]
mod tests;
