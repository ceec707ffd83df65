//! The YAML codec. It converts between YAML and JSON with the types of YAML 1.1, as upstream, and
//! limits the expansion of aliases.

mod emit;

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{DefaultMessageFormatter, MessageFormatter as _};

use super::json::{self, TypeMeta};
use super::{DEPTH_MAX, DecodeError, Decoded};
use crate::schema::{Schema, TypeId};

/// The most nodes of one document with aliases expanded. An object within the body limit of 3 MiB
/// has far fewer.
const NODES_MAX: usize = 1_000_000;
/// The most bytes of scalars in one document with aliases expanded.
const SCALAR_BYTES_MAX: usize = 8 << 20;

/// The most events that the parser records for anchors and replays for aliases, in total. An alias
/// bomb costs milliseconds up to this limit; a chart that repeats a few values remains far below
/// it.
const ALIAS_EVENTS_MAX: usize = 100_000;

/// A value with its type by YAML 1.1.
struct Node(Value);

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that JSON can hold")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node(value.into()))
    }

    #[allow(clippy::cast_possible_truncation, reason = "checked to be whole and in range")]
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Node, E> {
        // Upstream formats a whole float without a point, so that an integer field accepts it.
        if value.fract() == 0.0 && value.abs() < 9.0e15 {
            return Ok(Node((value as i64).into()));
        }
        let number = Number::from_f64(value)
            .ok_or_else(|| E::custom("json: unsupported value: not a finite number"))?;
        Ok(Node(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node(Value::String(value)))
    }

    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<Node, D::Error> {
        Node::deserialize(inner)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<Node, D::Error> {
        Node::deserialize(inner)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Node, A::Error> {
        let mut out = Vec::new();
        while let Some(Node(value)) = list.next_element()? {
            out.push(value);
        }
        Ok(Node(Value::Array(out)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut out = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let Node(value) = map.next_value()?;
            out.insert(key, value);
        }
        Ok(Node(Value::Object(out)))
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

/// Parses one YAML document and rejects duplicate keys in a mapping.
///
/// # Errors
/// Returns an error if the text is not valid YAML, contains a duplicate key, or exceeds the limits
/// on nesting and expansion.
pub fn parse(body: &[u8]) -> Result<Value, DecodeError> {
    read(body, DuplicateKeyPolicy::Error).map_err(|error| refusal(&error))
}

/// Parses like [`parse`], but the last of several duplicate keys applies. The second value is the
/// message of upstream's strict decoder about the first duplicate key.
///
/// # Errors
/// Returns the errors of [`parse`], except for duplicate keys.
pub fn parse_doubled(body: &[u8]) -> Result<(Value, Option<String>), DecodeError> {
    let error = match read(body, DuplicateKeyPolicy::Error) {
        Ok(value) => return Ok((value, None)),
        Err(error) => error,
    };
    let serde_saphyr::Error::DuplicateMappingKey { key, location } = error.without_snippet() else {
        return Err(refusal(&error));
    };
    let key = crate::field::go_quote(key.as_deref().unwrap_or_default());
    let text = format!(
        "yaml: unmarshal errors:\n  line {}: key {key} already set in map",
        location.line()
    );
    match read(body, DuplicateKeyPolicy::LastWins) {
        Ok(value) => Ok((value, Some(text))),
        Err(error) => Err(refusal(&error)),
    }
}

fn refusal(error: &serde_saphyr::Error) -> DecodeError {
    DecodeError::Syntax(format!(
        "error converting YAML to JSON: yaml: {}",
        first_line(&error_text(error))
    ))
}

/// The position and the text of an error. `Display` would draw the lines around it, which a message
/// of one line does not show, with code that is 100 KB of the program.
fn error_text(error: &serde_saphyr::Error) -> String {
    let message = DefaultMessageFormatter.format_message(error.without_snippet());
    let message = message.replace(|c: char| c.is_control() && c != '\n', " ");
    match error.location() {
        Some(at) => format!("error: line {} column {}: {message}", at.line(), at.column()),
        None => format!("error: {message}"),
    }
}

/// Parses a file of settings, in which `yes` and `on` are booleans, too.
///
/// # Errors
/// Returns the position and the reason if the text is not valid YAML.
pub fn parse_settings(text: &str) -> Result<Value, SettingsError> {
    read_settings(text, serde_saphyr::options! { with_snippet: false })
}

/// Parses a file of names, in which only `true` and `false` are booleans.
///
/// # Errors
/// Returns the position and the reason if the text is not valid YAML.
pub fn parse_names(text: &str) -> Result<Value, SettingsError> {
    read_settings(text, serde_saphyr::options! { with_snippet: false, strict_booleans: true })
}

fn read_settings(text: &str, options: serde_saphyr::Options) -> Result<Value, SettingsError> {
    let node: Option<Node> = serde_saphyr::from_str_with_options(text, options)
        .map_err(|error| SettingsError(first_line(&error_text(&error)).to_owned()))?;
    Ok(node.map_or(Value::Null, |Node(value)| value))
}

/// Why a file of settings is not valid YAML: the position and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

fn read(body: &[u8], doubled: DuplicateKeyPolicy) -> Result<Value, Box<serde_saphyr::Error>> {
    let budget = serde_saphyr::budget! {
        max_depth: DEPTH_MAX,
        max_nodes: NODES_MAX,
        max_events: 2 * NODES_MAX,
        max_total_scalar_bytes: SCALAR_BYTES_MAX,
        max_recorded_anchor_events: ALIAS_EVENTS_MAX,
    };
    let aliases = serde_saphyr::alias_limits! { max_total_replayed_events: ALIAS_EVENTS_MAX };
    let options = serde_saphyr::options! {
        budget: budget,
        alias_limits: aliases,
        duplicate_keys: doubled,
        legacy_octal_numbers: true,
        strict_booleans: false,
        ignore_binary_tag_for_string: true,
        with_snippet: false,
    };
    let node: Option<Node> =
        serde_saphyr::from_slice_with_options(first_document(body), options).map_err(Box::new)?;
    Ok(node.map_or(Value::Null, |Node(value)| value))
}

/// Returns the first document of a stream. Like upstream's reader, the codec ignores the documents
/// that follow.
fn first_document(body: &[u8]) -> &[u8] {
    let (mut at, mut begun) = (0, false);
    for line in body.split_inclusive(|byte| *byte == b'\n') {
        let marker = |text: &[u8]| {
            line.starts_with(text)
                && line.get(3).is_none_or(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))
        };
        if begun && (marker(b"---") || marker(b"...")) {
            return body.get(..at).unwrap_or(body);
        }
        let blank = line.iter().find(|byte| !byte.is_ascii_whitespace());
        begun |= !matches!(blank, None | Some(b'#' | b'%'));
        at += line.len();
    }
    body
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

/// Converts a YAML document to JSON text with sorted keys. The second value is the message of
/// [`parse_doubled`] about duplicate keys.
///
/// # Errors
/// Returns the errors of [`parse_doubled`].
pub fn to_json(body: &[u8]) -> Result<(Vec<u8>, Option<String>), DecodeError> {
    let (value, doubled) = parse_doubled(body)?;
    let text = serde_json::to_vec(&value).map_err(|e| DecodeError::Syntax(e.to_string()))?;
    Ok((text, doubled))
}

/// Reads `apiVersion` and `kind` of a YAML body, like [`json::interpret`].
///
/// # Errors
/// Returns an error if the text is not valid YAML, or with upstream's text if one of the two fields
/// is not a string.
pub fn interpret(body: &[u8]) -> Result<TypeMeta, DecodeError> {
    json::interpret(&to_json(body)?.0)
}

/// Decodes a YAML body as an object, like [`json::decode_strict`].
///
/// # Errors
/// Returns an error if the text is not valid YAML or a value has the wrong type for its field.
pub fn decode_strict(
    schema: &Schema,
    type_id: TypeId,
    body: &[u8],
) -> Result<Decoded, DecodeError> {
    let (text, doubled) = to_json(body)?;
    let mut decoded = json::decode_strict(schema, type_id, &text)?;
    decoded.strict_errors.splice(0..0, doubled);
    Ok(decoded)
}

/// Formats a value as YAML, with upstream's layout.
pub fn write(value: &Value) -> String {
    emit::write(value)
}

/// Returns the text that precedes and the text that follows the items of the list `field` in the
/// document `whole`. The caller formats each item with [`write_item`].
pub fn write_around(whole: &Map<String, Value>, field: &str) -> (String, String) {
    emit::around(whole, field)
}

/// Formats one item of a list that is a member of the document.
pub fn write_item(value: Value) -> String {
    emit::item(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::object::Gvk;

    #[test]
    fn repeated_keys_are_told_as_go_does_and_the_last_counts() {
        // The line and the text are those of upstream's conformance test of field validation.
        let text = b"\napiVersion: v1\nkind: K\nmetadata:\n  name: a\nspec:\n  unknown: uk1\n  foo: foo1\n  foo: foo2\n";
        let (value, doubled) = parse_doubled(text).unwrap();
        assert_eq!(value["spec"]["foo"], "foo2");
        assert_eq!(
            doubled.as_deref(),
            Some("yaml: unmarshal errors:\n  line 9: key \"foo\" already set in map")
        );
        assert_eq!(parse_doubled(b"a: 1").unwrap().1, None);
    }

    /// `yaml.Unmarshal` of `go.yaml.in/yaml/v2` parses one document.
    #[test]
    fn takes_the_first_document_of_a_stream() {
        for text in [
            "a: 1\n---\na: 2\n",
            "%YAML 1.2\n---\na: 1\n---\na: 2\n",
            "# note\n---\na: 1\n...\nb: [",
            "--- {a: 1}\n---\n",
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap(), json!({"a": 1}), "{text}");
        }
        assert_eq!(parse(b"a: '\n ---'\nb: \"---\"\n").unwrap(), json!({"a": " ---", "b": "---"}));
    }

    #[test]
    fn types_scalars_as_yaml_1_1() {
        let text = b"a: yes\nb: 'yes'\nc: 0644\nd: 1.0\ne: 1.5\nf: ~\ng: on\nh: 2024-01-01\ni: 0x1f\nj: 1e3\nk: |\n  two\n  lines\n1: x\n";
        assert_eq!(
            parse(text).unwrap(),
            json!({"a":true,"b":"yes","c":420,"d":1,"e":1.5,"f":null,"g":true,"h":"2024-01-01","i":31,"j":1000,"k":"two\nlines\n","1":"x"})
        );
        assert_eq!(
            parse(b"base: &b {x: 1}\nuse:\n  <<: *b\n  y: 2\n").unwrap(),
            json!({"base":{"x":1},"use":{"x":1,"y":2}})
        );
        assert_eq!(parse(b"").unwrap(), Value::Null);
    }

    #[test]
    fn refuses_repeated_keys_bombs_and_depth() {
        assert!(parse(b"a: 1\na: 2\n").is_err());
        assert!(parse(b"a: [\n").is_err());
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            bomb.push_str(&format!(
                "a{i}: &a{i} [{}]\n",
                vec![format!("*a{}", i - 1); 9].join(",")
            ));
        }
        assert!(parse(bomb.as_bytes()).is_err());
        // The parser limits the number of recorded and replayed events as well as the nesting.
        let error = parse(bomb.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("100001") || error.contains("replay"), "{error}");
        assert!(parse("[".repeat(10_000).as_bytes()).is_err());
    }

    #[test]
    fn depth_is_refused_before_the_stack_of_a_serving_thread_ends() {
        let deep = || {
            for piece in ["- ", "? ", "[", "{", "a: &a [", "- - ? - "] {
                assert!(parse(piece.repeat(10_000).as_bytes()).is_err(), "{piece:?}");
            }
            let nested: String = (0..119).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
            assert!(parse(nested.as_bytes()).is_ok());
        };
        std::thread::Builder::new().stack_size(16 << 20).spawn(deep).unwrap().join().unwrap();
    }

    #[test]
    fn decodes_objects_like_json() {
        let schema = Schema::builtin();
        let id = schema.kind(&Gvk::new("apps", "v1", "Deployment")).unwrap();
        let decoded = decode_strict(&schema, id, b"spec:\n  replicas: 2\n  nope: 1\n").unwrap();
        assert_eq!(decoded.strict_errors, ["unknown field \"spec.nope\""]);
        assert_eq!(decoded.value["spec"]["replicas"], json!(2));
        let doubled = decode_strict(&schema, id, b"spec: {}\nspec: {replicas: 3}\n").unwrap();
        assert_eq!(
            doubled.strict_errors,
            ["yaml: unmarshal errors:\n  line 2: key \"spec\" already set in map"]
        );
        assert_eq!(doubled.value["spec"]["replicas"], json!(3));
        let error = decode_strict(&schema, id, b"spec:\n  replicas: two\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32"
        );
    }

    #[test]
    fn writes_what_it_reads() {
        let value = json!({"list":[{"a":1,"b":[]}],"empty":{},"yes":"yes","no":"off","n":"0644","t":"a: b","m":"x\ny\n","s":"","z":null,"b":true,"f":1.5,"num":"1e3","colon":"12:30:45"});
        assert_eq!(parse(write(&value).as_bytes()).unwrap(), value, "{}", write(&value));
        assert_eq!(write(&json!({"a":{"b":[{"c":1,"d":2}]}})), "a:\n  b:\n  - c: 1\n    d: 2\n");
    }

    #[test]
    fn a_list_written_by_items_is_the_same_document() {
        let long = "word ".repeat(40);
        let items = json!([
            {"metadata": {"name": "a", "labels": {}}, "list": [1, {"b": [2]}], "text": long},
            "- plain",
            ["nested", ["list"]],
            {"data": {"key": "two\nlines\n"}}
        ]);
        for field in ["items", "rows"] {
            let mut whole =
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"continue": "c"}});
            let (before, after) = write_around(whole.as_object().unwrap(), field);
            let list =
                items.as_array().unwrap().iter().cloned().map(write_item).collect::<String>();
            whole[field] = items.clone();
            assert_eq!(format!("{before}{list}{after}"), write(&whole));
        }
    }
}
