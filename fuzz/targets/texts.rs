//! Texts that stand for values: quantities, durations, times, names. What is printed is read again
//! as the same.
#![no_main]

use api::codec::time::{Precision, duration_text, parse_duration, parse_time};
use api::quantity::Quantity;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(quantity) = Quantity::parse(text) {
        let printed = quantity.to_string();
        let again = Quantity::parse(&printed).expect("what was printed");
        assert_eq!(again.to_string(), printed);
        assert_eq!((again.value(), again.sign()), (quantity.value(), quantity.sign()), "{printed}");
        let _ = (quantity.milli_value(), quantity.as_f64(), quantity.clone().round_up_to_milli());
        assert!(quantity.clone().minus(quantity.clone()).is_zero());
        let _ = quantity.clone().plus(quantity);
    }
    if let Ok(nanos) = parse_duration(text) {
        assert_eq!(parse_duration(&duration_text(nanos)), Ok(nanos));
    }
    for precision in [Precision::Seconds, Precision::Micros] {
        if let Ok(moment) = parse_time(text, precision) {
            let printed = moment.text(precision);
            let again = parse_time(&printed, precision).expect("what was printed");
            assert_eq!(again.text(precision), printed);
        }
    }
});
