//! The entry point of the fuzzer of manifests.

use crate::document::parse;
use crate::object_set::Owner;

/// Parses a file and marks its objects.
///
/// # Panics
/// When an error names a line that the file does not have, or when the marks of an object depend on
/// earlier ones.
pub fn manifest(content: &[u8]) {
    let lines = content.split(|byte| *byte == b'\n').count();
    let objects = match parse(content) {
        Ok(objects) => objects,
        Err(error) => {
            let text = error.to_string();
            let line = text.strip_prefix("line ").and_then(|rest| rest.split(':').next());
            let line = line.and_then(|number| number.parse::<usize>().ok());
            assert!(line.is_none_or(|line| line <= lines + 1), "{text}: the file has {lines}");
            return;
        }
    };
    let owner = Owner::new("fuzzed");
    for object in objects {
        assert!(!object.describe().is_empty() && !object.name.is_empty());
        let mut marked = object.value;
        owner.mark(&mut marked);
        let before = marked.clone();
        owner.mark(&mut marked);
        assert_eq!(marked, before);
    }
}
