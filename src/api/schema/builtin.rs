//! Parses the generated table of all stable kinds. `xtask/schema.rs` writes the table and describes
//! its format.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::{Field, ListType, PatchStrategy, Schema, Shape, Type, TypeId};
use crate::object::Gvk;

static TABLE: &str = include_str!("../gen/schema.txt");

pub(super) fn shared() -> Arc<Schema> {
    static BUILTIN: OnceLock<Arc<Schema>> = OnceLock::new();
    Arc::clone(BUILTIN.get_or_init(|| {
        Arc::new(read(TABLE).unwrap_or_else(|line| panic!("generated table: {line}")))
    }))
}

/// A type of the table in which inlined structs are still references.
struct Raw<'a> {
    name: Arc<str>,
    atomic: bool,
    lines: Vec<&'a str>,
}

/// The inlined structs that contain a field.
#[derive(Default)]
struct Around {
    tags: Vec<u32>,
    go: Option<Arc<str>>,
    /// Whether one of the structs has no protobuf form.
    bare: bool,
}

impl Around {
    fn inside(&self, go: &str, tag: u32) -> Self {
        let name = self.go.as_ref().map_or_else(|| go.to_owned(), |outer| format!("{outer}.{go}"));
        let mut tags = self.tags.clone();
        tags.push(tag);
        Self { tags, go: Some(name.into()), bare: self.bare || tag == 0 }
    }
}

#[derive(Default)]
struct Names<'a>(HashMap<&'a str, Arc<str>>);

impl<'a> Names<'a> {
    fn get(&mut self, text: &'a str) -> Arc<str> {
        Arc::clone(self.0.entry(text).or_insert_with(|| text.into()))
    }
}

struct Reader<'a> {
    names: Names<'a>,
    go: HashMap<&'a str, Arc<str>>,
    enums: Vec<Arc<[Arc<str>]>>,
    raw: Vec<Raw<'a>>,
    none: Arc<[Arc<str>]>,
}

/// An error in the table of types. The build generates the table, so each of these errors is a bug.
#[derive(Debug, thiserror::Error)]
enum TableError {
    /// A line lacks a column, or a column is invalid.
    #[error("{0}")]
    Line(String),
    #[error("number {0:?}")]
    Number(String),
    /// A line refers to a type that is not in the table.
    #[error("type")]
    NoType,
    /// The default of a field is not JSON.
    #[error(transparent)]
    Default(#[from] serde_json::Error),
}

impl TableError {
    fn line(line: &str) -> Self {
        Self::Line(line.to_owned())
    }
}

fn read(table: &str) -> Result<Schema, TableError> {
    let mut reader = Reader {
        names: Names::default(),
        go: HashMap::new(),
        enums: Vec::new(),
        raw: Vec::new(),
        none: Arc::new([]),
    };
    let mut package = "";
    let mut kinds = Vec::new();
    for line in table.lines() {
        let (head, rest) = line.split_once('\t').unwrap_or((line, ""));
        match head {
            "" => reader.raw.last_mut().ok_or_else(|| TableError::line(line))?.lines.push(rest),
            "P" => package = rest,
            "E" => {
                let values = rest.split('|').map(|v| reader.names.get(v)).collect();
                reader.enums.push(values);
            }
            "T" => {
                let (name, flags) = rest.split_once('\t').ok_or_else(|| TableError::line(line))?;
                let name = format!("{package}.{name}").into();
                reader.raw.push(Raw { name, atomic: flags.contains('a'), lines: Vec::new() });
            }
            "K" => kinds.push(rest),
            _ => {}
        }
    }
    reader.build(&kinds)
}

impl<'a> Reader<'a> {
    fn build(mut self, kinds: &[&'a str]) -> Result<Schema, TableError> {
        let mut schema = Schema::new();
        for position in 0..self.raw.len() {
            let mut fields = Vec::new();
            self.fields(position, &Around::default(), &mut fields)?;
            fields.shrink_to_fit();
            let raw = self.raw.get(position).ok_or(TableError::NoType)?;
            let mut ty = Type::new(Arc::clone(&raw.name), fields);
            ty.atomic = raw.atomic;
            schema.add_type(ty);
        }
        for line in kinds {
            let mut columns = line.split('\t');
            let mut next = || columns.next().ok_or_else(|| TableError::line(line));
            let (group, version, kind, id) = (next()?, next()?, next()?, next()?);
            let gvk = Gvk {
                group: self.names.get(group),
                version: self.names.get(version),
                kind: self.names.get(kind),
            };
            schema.add_kind(gvk, TypeId(number(id)?));
        }
        Ok(schema)
    }

    /// Returns the fields of a type, including those of inlined structs.
    fn fields(
        &mut self,
        position: usize,
        around: &Around,
        out: &mut Vec<Field>,
    ) -> Result<(), TableError> {
        let lines = self.raw.get(position).ok_or(TableError::NoType)?.lines.clone();
        for line in lines {
            if let Some(inline) = line.strip_prefix("^\t") {
                let mut columns = inline.split('\t');
                let go = columns.next().unwrap_or_default();
                let mut next = || number(columns.next().unwrap_or_default());
                let (tag, target) = (next()?, next()?);
                self.fields(target as usize, &around.inside(go, tag), out)?;
                continue;
            }
            let mut field = self.field(line)?;
            field.embedded = around.go.clone();
            if around.bare {
                field.tag = 0;
            } else {
                field.inlined_in = around.tags.clone().into();
            }
            out.push(field);
        }
        Ok(())
    }

    fn field(&mut self, line: &'a str) -> Result<Field, TableError> {
        let mut columns = line.split('\t');
        let mut next = || columns.next().ok_or_else(|| TableError::line(line));
        let (json, go, tag, shape, flags) = (next()?, next()?, next()?, next()?, next()?);
        let has = |flag: char| flags.contains(flag);
        let mut field = Field {
            json: self.names.get(json),
            go: self.go_name(json, go),
            tag: number(tag)?,
            shape: parse_shape(shape).ok_or_else(|| TableError::line(line))?,
            pointer: has('p'),
            omit_empty: has('o'),
            omit_zero: has('z'),
            required: has('r'),
            atomic: has('a'),
            wrapped: has('w'),
            allowed: Arc::clone(&self.none),
            ..Field::default()
        };
        for extra in columns {
            let value = extra.get(1..).unwrap_or_default();
            match extra.as_bytes().first() {
                Some(b'E') => {
                    let values = self
                        .enums
                        .get(number(value)? as usize)
                        .ok_or_else(|| TableError::line(line))?;
                    field.allowed = Arc::clone(values);
                }
                Some(b'G') => field.go_type = Some(self.names.get(value)),
                Some(b'D') => field.default = Some(Arc::new(serde_json::from_str(value)?)),
                Some(b'L') => {
                    field.list_atomic = value.is_empty();
                    field.list_type = self.list_type(value);
                }
                Some(b'S') => field.patch = self.patch(value),
                _ => return Err(TableError::line(line)),
            }
        }
        Ok(field)
    }

    fn list_type(&mut self, value: &'a str) -> ListType {
        match value {
            "" => ListType::Atomic,
            "=" => ListType::Set,
            keys => ListType::Map(keys.split(',').map(|k| self.names.get(k)).collect()),
        }
    }

    fn patch(&mut self, value: &'a str) -> PatchStrategy {
        let (flags, key) = value.split_once(':').unwrap_or((value, ""));
        PatchStrategy {
            merge: flags.contains('m'),
            retain_keys: flags.contains('r'),
            merge_key: (!key.is_empty()).then(|| self.names.get(key)),
        }
    }

    /// Returns the Go name of a field. The table contains it only if it is not the capitalized JSON
    /// name.
    fn go_name(&mut self, json: &'a str, go: &'a str) -> Arc<str> {
        if !go.is_empty() {
            return self.names.get(go);
        }
        let make = || {
            let mut chars = json.chars();
            let text: String =
                chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect();
            Arc::from(text)
        };
        Arc::clone(self.go.entry(json).or_insert_with(make))
    }
}

fn number(text: &str) -> Result<u32, TableError> {
    text.parse().map_err(|_| TableError::Number(text.to_owned()))
}

fn parse_shape(code: &str) -> Option<Shape> {
    let rest = code.get(1..)?;
    let id = || rest.parse().ok().map(TypeId);
    Some(match code.as_bytes().first()? {
        b's' => Shape::String,
        b'b' => Shape::Bool,
        b'i' => Shape::Int32,
        b'l' => Shape::Int64,
        b'd' => Shape::Double,
        b'y' => Shape::Bytes,
        b'Q' => Shape::Quantity,
        b't' => Shape::Time,
        b'm' => Shape::MicroTime,
        b'u' => Shape::Duration,
        b'I' => Shape::IntOrString,
        b'r' => Shape::RawExtension,
        b'F' => Shape::FieldsV1,
        b'a' => Shape::Any,
        b'B' => Shape::PropsOrBool(id()?),
        b'O' => Shape::PropsOrList(id()?),
        b'S' => Shape::PropsOrStrings(id()?),
        b'#' => Shape::Struct(id()?),
        b'[' => Shape::List(Box::new(parse_shape(rest)?)),
        b'{' => Shape::Map(Box::new(parse_shape(rest)?)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ty(name: &str) -> Arc<Type> {
        let schema = Schema::builtin();
        Arc::clone(schema.get(schema.by_name(name).unwrap()))
    }

    #[test]
    fn flattens_inlined_structs_and_keeps_their_protobuf_nesting() {
        let pod = ty("io.k8s.api.core.v1.Pod");
        let names: Vec<&str> = pod.fields.iter().map(|f| f.json.as_ref()).collect();
        assert_eq!(names, ["kind", "apiVersion", "metadata", "spec", "status"]);
        assert_eq!(pod.field("kind").unwrap().tag, 0);
        let volume = ty("io.k8s.api.core.v1.Volume");
        let host_path = volume.field("hostPath").unwrap();
        assert_eq!((host_path.tag, host_path.inlined_in.as_ref()), (1, [2].as_slice()));
        let rule = ty("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations");
        assert_eq!(rule.field("apiGroups").unwrap().inlined_in.as_ref(), [2, 2]);
    }

    #[test]
    fn carries_merge_rules_enums_and_defaults() {
        let spec = ty("io.k8s.api.core.v1.PodSpec");
        let containers = spec.field("containers").unwrap();
        assert_eq!(containers.list_type, ListType::Map(vec!["name".into()]));
        assert_eq!(containers.patch.merge_key.as_deref(), Some("name"));
        assert!(containers.required);
        let volumes = spec.field("volumes").unwrap();
        assert!(volumes.patch.merge && volumes.patch.retain_keys);
        let ports = ty("io.k8s.api.core.v1.Container");
        assert_eq!(
            ports.field("ports").unwrap().list_type,
            ListType::Map(vec!["containerPort".into(), "protocol".into()])
        );
        let port = ty("io.k8s.api.core.v1.ContainerPort");
        let protocol = port.field("protocol").unwrap();
        assert_eq!(protocol.default.as_deref(), Some(&serde_json::json!("TCP")));
        assert!(protocol.allowed.iter().any(|v| v.as_ref() == "SCTP"));
        assert_eq!(protocol.go_type.as_deref(), Some("v1.Protocol"));
        assert!(ty("io.k8s.api.core.v1.ServiceSpec").field("selector").unwrap().atomic);
    }

    #[test]
    fn finds_kinds_and_kinds_of_every_group() {
        let schema = Schema::builtin();
        for (group, version, kind) in [
            ("", "v1", "Pod"),
            ("", "v1", "PodList"),
            ("", "v1", "Status"),
            ("apps", "v1", "DeploymentList"),
            ("apps", "v1", "DeleteOptions"),
            ("autoscaling", "v1", "Scale"),
            ("policy", "v1", "Eviction"),
            ("authentication.k8s.io", "v1", "TokenRequest"),
            ("authorization.k8s.io", "v1", "SubjectAccessReview"),
            ("apiextensions.k8s.io", "v1", "CustomResourceDefinition"),
            ("apiregistration.k8s.io", "v1", "APIService"),
            ("example.com", "v1", "WatchEvent"),
            ("", "v1", "PodExecOptions"),
            ("metrics.k8s.io", "v1beta1", "PodMetrics"),
        ] {
            assert!(
                schema.kind(&Gvk::new(group, version, kind)).is_some(),
                "{group}/{version} {kind}"
            );
        }
        assert!(schema.kind(&Gvk::new("apps", "v1", "Pod")).is_none());
    }

    #[test]
    fn reads_fast_enough_to_be_built_at_start() {
        // The budget of an optimized build is 3 ms; unoptimized code is about ten times slower.
        let budget = std::time::Duration::from_millis(if cfg!(debug_assertions) { 100 } else { 6 });
        // The test takes the fastest of fifty runs, so that other processes do not affect it.
        let mut best = std::time::Duration::MAX;
        for _ in 0..50 {
            let start = std::time::Instant::now();
            let schema = read(TABLE).unwrap();
            best = best.min(start.elapsed());
            assert!(schema.types().count() > 600);
            if best < budget {
                return;
            }
        }
        panic!("{best:?}");
    }
}
