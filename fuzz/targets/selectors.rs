//! Selectors of labels and fields: what is printed is read again and selects the same.
#![no_main]

use std::collections::BTreeMap;

use api::selector::{FieldSelector, LabelSelector};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let labels = ["a", "app", "tier", "example.com/x", "n"].map(|key| (key.to_owned(), "b".to_owned()));
    let mut labels = BTreeMap::from(labels);
    labels.insert("n".to_owned(), "7".to_owned());
    if let Ok(selector) = LabelSelector::parse(text) {
        let printed = selector.to_string();
        let again = LabelSelector::parse(&printed).expect("what was printed");
        assert_eq!(again.to_string(), printed);
        assert_eq!(again.matches(&labels), selector.matches(&labels), "{printed:?}");
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let printed = selector.to_string();
        let again = FieldSelector::parse(&printed).expect("what was printed");
        // Terms are sorted as they are written (fields.ParseSelector), `a==c` before `a=b`, which
        // are printed `a=c` and `a=b`: sorted by the second time.
        let sorted = again.to_string();
        let third = FieldSelector::parse(&sorted).expect("what was printed again");
        assert_eq!(third.to_string(), sorted);
        assert_eq!(sorted.len(), printed.len());
        assert_eq!(again.matches(|_| "b"), selector.matches(|_| "b"), "{printed:?}");
    }
    if let Ok(value) = serde_json::from_str(text)
        && let Ok(selector) = LabelSelector::from_value(Some(&value))
        && !selector.is_nothing()
    {
        let again = LabelSelector::parse(&selector.to_string()).expect("what was printed");
        assert_eq!(again.matches(&labels), selector.matches(&labels));
    }
});
