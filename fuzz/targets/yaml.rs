//! YAML that clients send: what is written is read again as it was; of repeated keys both readers
//! say the same.
#![no_main]

use api::codec::yaml;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let plain = yaml::parse(bytes);
    let doubled = yaml::parse_doubled(bytes);
    let Ok(value) = plain else {
        return;
    };
    assert_eq!(doubled, Ok((value.clone(), None)));
    let text = yaml::write(&value);
    match yaml::parse(text.as_bytes()) {
        Ok(again) => assert_eq!(again, value, "{text:?}"),
        Err(error) => panic!("{text:?} is not read again: {error}"),
    }
});
