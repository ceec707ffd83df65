//! JSON that clients send: what is accepted is accepted again as it was written, and is the same by
//! way of protobuf.
#![no_main]

mod kinds;

use api::codec::{DEPTH_MAX, json, normalize, protobuf};
use kinds::{SCHEMA, kind_of};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let plain = json::parse(bytes);
    match json::parse_strict(bytes) {
        Ok((value, _)) => assert_eq!(Ok(value), plain),
        Err(error) => assert_eq!(plain, Err(error)),
    }
    // Go takes what the library takes, up to our depth, and more besides (halves of surrogates,
    // bytes that are no UTF-8).
    if let (Ok(value), Err(error)) = (serde_json::from_slice::<serde_json::Value>(bytes), &plain) {
        let too_deep = error.to_string().contains("exceeded max depth");
        assert!(too_deep && depth(&value) > DEPTH_MAX, "{error}");
    }
    let Ok(meta) = json::interpret(bytes) else { return };
    let (gvk, id) = kind_of(&meta.api_version, &meta.kind, bytes.len());
    let Ok(decoded) = json::decode_strict(&SCHEMA, id, bytes) else { return };
    let text = serde_json::to_vec(&decoded.value).unwrap();
    let again = json::decode_strict(&SCHEMA, id, &text).expect("what was decoded is decoded again");
    assert_eq!(again.value, decoded.value);
    assert!(again.strict_errors.is_empty(), "{:?}", again.strict_errors);
    let mut normal = decoded.value;
    normalize(&SCHEMA, id, &mut normal);
    let mut twice = normal.clone();
    normalize(&SCHEMA, id, &mut twice);
    assert_eq!(twice, normal, "what is normal stays so");
    match protobuf::encode_typed(&SCHEMA, id, &gvk.api_version(), &gvk.kind, &normal) {
        Ok(message) => {
            let (_, back) = protobuf::decode_object(&SCHEMA, &message).expect("our own message");
            let again = protobuf::encode_typed(&SCHEMA, id, &gvk.api_version(), &gvk.kind, &back);
            assert_eq!(again.expect("our own value"), message);
        }
        Err(protobuf::EncodeError::NoForm(_)) => {}
        Err(error) => panic!("what was decoded is encoded: {error}"),
    }
});

fn depth(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::Array(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        serde_json::Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
