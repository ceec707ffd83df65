//! Formats in schemas that upstream does not check.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::formats::Format;
use super::node::Type;
use crate::value::{bool_at, get, items, str_at};

/// The names of formats that Kubernetes 1.37 does not check, without duplicates, in the order of
/// the fields. The server returns them as warnings for a write of the definition.
pub fn unrecognized_formats(source: &Value) -> Vec<String> {
    let mut found = FormatList::default();
    collect(source, &mut found, 0);
    found.formats
}

/// Formats in the order of their first occurrence.
#[derive(Default)]
struct FormatList {
    formats: Vec<String>,
    distinct: HashSet<String>,
}

fn collect(source: &Value, found: &mut FormatList, depth: usize) {
    if depth > crate::codec::DEPTH_MAX || !source.is_object() {
        return;
    }
    let kind = match str_at(source, "type") {
        _ if bool_at(source, "x-kubernetes-int-or-string") => None,
        name => Type::parse(name),
    };
    let format = str_at(source, "format");
    if !Format::known(format, kind) && found.distinct.insert(format.to_owned()) {
        found.formats.push(format.to_owned());
    }
    for key in ["items", "additionalProperties", "not"] {
        collect(get(source, key), found, depth + 1);
    }
    for below in get(source, "properties").as_object().into_iter().flat_map(Map::values) {
        collect(below, found, depth + 1);
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for below in items(source, key) {
            collect(below, found, depth + 1);
        }
    }
}
