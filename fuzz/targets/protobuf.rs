//! Kubernetes' protobuf that clients send: enveloped objects and lists, or the bare message of the
//! kind that the first byte chooses. What is decoded is encoded, and the same when it is decoded
//! again, also by way of JSON.
#![no_main]

mod kinds;

use api::codec::{json, protobuf};
use kinds::{SCHEMA, kind_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (gvk, id, value) = if protobuf::is_enveloped(bytes) {
        let Ok((gvk, value)) = protobuf::decode_object(&SCHEMA, bytes) else { return };
        let Some(id) = SCHEMA.kind(&gvk) else { return };
        (gvk, id, value)
    } else {
        let Some((head, message)) = bytes.split_first_chunk::<2>() else { return };
        let (gvk, id) = kind_of("", "", usize::from(u16::from_be_bytes(*head)));
        let Ok(value) = protobuf::decode_message(&SCHEMA, id, message) else { return };
        (gvk.clone(), id, value)
    };
    let encode = |value| protobuf::encode_typed(&SCHEMA, id, &gvk.api_version(), &gvk.kind, value);
    let message = match encode(&value) {
        Ok(message) => message,
        Err(protobuf::EncodeError::NoForm(_)) => return,
        Err(error) => panic!("what was decoded is encoded: {error}"),
    };
    let (_, again) = protobuf::decode_object(&SCHEMA, &message).expect("our own message");
    assert_eq!(encode(&again).expect("our own value"), message);
    let text = serde_json::to_vec(&value).unwrap();
    let decoded = json::decode_strict(&SCHEMA, id, &text).expect("what was decoded is good JSON");
    assert!(decoded.strict_errors.is_empty(), "{:?}", decoded.strict_errors);
    assert_eq!(encode(&decoded.value).expect("what JSON says of it"), message);
});
