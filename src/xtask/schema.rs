//! Turns the facts file into the compact schema table that `api::Schema::builtin` reads.
//!
//! Lines, columns separated by tabs: `P package` opens a package; `E value|value` an enum; `T name
//! flags` a type; a line with an empty first column is a field (`json go tag shape flags extras…`);
//! `K group version kind type` a kind.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::supplement::{CONSTANTS, MORE_FIELDS, SUPPLEMENT};

#[derive(Deserialize)]
struct TypeTable {
    types: BTreeMap<String, TypeFacts>,
    aliases: BTreeMap<String, Alias>,
}

#[derive(Deserialize)]
struct TypeFacts {
    fields: Vec<FieldFacts>,
    #[serde(default)]
    markers: Vec<String>,
}

#[derive(Deserialize)]
struct Alias {
    #[serde(flatten)]
    expr: TypeExpr,
    #[serde(default)]
    markers: Vec<String>,
    #[serde(default)]
    values: Vec<String>,
}

#[derive(Deserialize, Default, Clone)]
struct TypeExpr {
    r#type: Option<String>,
    r#ref: Option<String>,
    list: Option<Box<TypeExpr>>,
    map: Option<Box<TypeExpr>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FieldFacts {
    go: String,
    json: Option<String>,
    #[serde(default)]
    inline: bool,
    #[serde(default)]
    tag: u32,
    #[serde(default)]
    ptr: bool,
    #[serde(default)]
    omitempty: bool,
    #[serde(default)]
    omitzero: bool,
    #[serde(default)]
    markers: Vec<String>,
    #[serde(rename = "patchStrategy")]
    patch_strategy: Option<String>,
    #[serde(rename = "patchMergeKey")]
    patch_merge_key: Option<String>,
    #[serde(flatten)]
    expr: TypeExpr,
}

impl FieldFacts {
    fn has(&self, marker: &str) -> bool {
        self.markers.iter().any(|m| m == marker)
    }

    fn value(&self, marker: &str) -> Option<&str> {
        self.markers.iter().find_map(|m| m.strip_prefix(marker))
    }

    /// The rule of upstream's OpenAPI generator.
    fn required(&self) -> bool {
        if self.has("optional") || self.has("k8s:optional") {
            return false;
        }
        self.has("required")
            || self.has("k8s:required")
            || self.has("kubebuilder:validation:Required")
            || !self.omitempty
    }
}

/// Types that are not written as structs because their JSON form is not one.
const LEAVES: &[(&str, &str)] = &[
    ("io.k8s.apimachinery.pkg.api.resource.Quantity", "Q"),
    ("io.k8s.apimachinery.pkg.types.UID", "s"),
    ("io.k8s.apimachinery.pkg.types.NodeName", "s"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1", "F"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", "t"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime", "m"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.Duration", "u"),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.interface{}", "a"),
    ("io.k8s.apimachinery.pkg.runtime.RawExtension", "r"),
    ("io.k8s.apimachinery.pkg.util.intstr.IntOrString", "I"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON", "a"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool", "B"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray", "O"),
    ("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray", "S"),
];

const PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

/// Types of the facts file that are no part of the table.
const SKIPPED: &[&str] = &[
    "io.k8s.apimachinery.pkg.apis.meta.v1.Timestamp",
    "io.k8s.apimachinery.pkg.runtime.TypeMeta",
    "io.k8s.apimachinery.pkg.runtime.Unknown",
];

struct Writer {
    facts: TypeTable,
    ids: BTreeMap<String, usize>,
    enums: BTreeMap<String, usize>,
    out: String,
}

/// The text of the table.
pub(crate) fn table(types: &str) -> anyhow::Result<String> {
    let mut facts: TypeTable = serde_json::from_str(types).context("types.json")?;
    let more: BTreeMap<String, TypeFacts> =
        serde_json::from_str(SUPPLEMENT).context("supplement")?;
    facts.types.extend(more);
    let fields: BTreeMap<String, Vec<FieldFacts>> =
        serde_json::from_str(MORE_FIELDS).context("more fields")?;
    for (name, fields) in fields {
        let ty = facts.types.get_mut(&name).with_context(|| format!("no type {name}"))?;
        for field in fields {
            // A newer facts file may contain the field.
            if !ty.fields.iter().any(|f| f.go == field.go) {
                ty.fields.push(field);
            }
        }
    }
    facts.types.retain(|name, _| {
        !SKIPPED.contains(&name.as_str()) && !LEAVES.iter().any(|(leaf, _)| leaf == name)
    });
    let ids = facts.types.keys().enumerate().map(|(i, name)| (name.clone(), i)).collect();
    let mut writer = Writer { facts, ids, enums: BTreeMap::new(), out: String::new() };
    writer.write()?;
    Ok(writer.out)
}

impl Writer {
    fn write(&mut self) -> anyhow::Result<()> {
        writeln!(self.out, "# generated by `cargo run -p xtask -- codegen`; do not edit")?;
        for (name, alias) in &self.facts.aliases {
            if alias.markers.iter().any(|m| m == "enum") && !alias.values.is_empty() {
                let id = self.enums.len();
                self.enums.insert(name.clone(), id);
                writeln!(self.out, "E\t{}", alias.values.join("|"))?;
            }
        }
        let mut package = String::new();
        let mut kinds = String::new();
        for (name, ty) in &self.facts.types {
            let (prefix, short) = name.rsplit_once('.').context("a type without a package")?;
            if prefix != package {
                package = prefix.to_owned();
                writeln!(self.out, "P\t{package}")?;
            }
            let atomic = if ty.markers.iter().any(|m| m == "structType=atomic") { "a" } else { "" };
            writeln!(self.out, "T\t{short}\t{atomic}")?;
            let mut lines = String::new();
            for field in &ty.fields {
                self.field(&mut lines, field).with_context(|| format!("{name}.{}", field.go))?;
            }
            self.out.push_str(&lines);
            let is_kind = ty.markers.iter().any(|m| {
                m.ends_with("pkg/runtime.Object")
                    || m.starts_with("k8s:conversion-gen:explicit-from")
            });
            let typed = ty.fields.iter().any(|f| f.inline && f.go == "TypeMeta");
            if typed && (is_kind || prefix.ends_with("meta.v1")) {
                let (group, version) = group_version(prefix)?;
                writeln!(kinds, "K\t{group}\t{version}\t{short}\t{}", self.ids[name])?;
            }
        }
        let list = self.ids["io.k8s.apimachinery.pkg.apis.meta.v1.List"];
        writeln!(kinds, "K\t\tv1\tList\t{list}")?;
        writeln!(
            kinds,
            "K\tmeta.k8s.io\tv1\tWatchEvent\t{}",
            self.ids["io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent"]
        )?;
        self.out.push_str(&kinds);
        Ok(())
    }

    fn field(&self, out: &mut String, field: &FieldFacts) -> anyhow::Result<()> {
        if field.inline {
            let target = field.expr.r#ref.as_deref().context("inline without a type")?;
            let id = self.ids.get(target).with_context(|| format!("inline of {target}"))?;
            writeln!(out, "\t^\t{}\t{}\t{id}", field.go, field.tag)?;
            return Ok(());
        }
        let json = field.json.as_deref().context("no JSON name")?;
        let go = if capitalised(json) == field.go { "" } else { &field.go };
        let mut named = String::new();
        let mut values = None;
        let mut wrapped = false;
        let shape = self.shape(&field.expr, &mut named, &mut values, &mut wrapped)?;
        let mut flags = String::new();
        for (flag, on) in [
            ('p', field.ptr),
            ('o', field.omitempty),
            ('z', field.omitzero),
            ('r', field.required()),
            ('a', field.has("structType=atomic") || field.has("mapType=atomic")),
            ('w', wrapped),
        ] {
            if on {
                flags.push(flag);
            }
        }
        write!(out, "\t{json}\t{go}\t{}\t{shape}\t{flags}", field.tag)?;
        if let Some(id) = values {
            write!(out, "\tE{id}")?;
        }
        if named.contains('.') {
            write!(out, "\tG{named}")?;
        }
        if let Some(default) = default(field)? {
            write!(out, "\tD{default}")?;
        }
        match field.value("listType=") {
            Some("set") => out.push_str("\tL="),
            Some("map") => {
                let keys: Vec<&str> =
                    field.markers.iter().filter_map(|m| m.strip_prefix("listMapKey=")).collect();
                write!(out, "\tL{}", keys.join(","))?;
            }
            Some("atomic") => out.push_str("\tL"),
            None => {}
            Some(other) => bail!("list type {other}"),
        }
        if let Some(strategy) = &field.patch_strategy {
            let merge = if strategy.contains("merge") { "m" } else { "" };
            let retain = if strategy.contains("retainKeys") { "r" } else { "" };
            write!(out, "\tS{merge}{retain}:{}", field.patch_merge_key.as_deref().unwrap_or(""))?;
        }
        out.push('\n');
        Ok(())
    }

    /// The code of a shape; `named` collects the Go type as messages print it when a named type
    /// other than a struct is in it.
    fn shape(
        &self,
        expr: &TypeExpr,
        named: &mut String,
        values: &mut Option<usize>,
        wrapped: &mut bool,
    ) -> anyhow::Result<String> {
        if let Some(element) = &expr.list {
            named.push_str("[]");
            return Ok(format!("[{}", self.shape(element, named, values, &mut false)?));
        }
        if let Some(value) = &expr.map {
            named.push_str("map[string]");
            return Ok(format!("{{{}", self.shape(value, named, values, &mut false)?));
        }
        if let Some(target) = &expr.r#ref {
            return self.reference(target, named, values, wrapped);
        }
        let code = match expr.r#type.as_deref().context("no type")? {
            "string" => "s",
            "bool" => "b",
            "int32" => "i",
            "int64" => "l",
            "float64" => "d",
            "bytes" => "y",
            other => bail!("type {other}"),
        };
        Ok(code.into())
    }

    fn reference(
        &self,
        target: &str,
        named: &mut String,
        values: &mut Option<usize>,
        wrapped: &mut bool,
    ) -> anyhow::Result<String> {
        let mut parts = target.rsplit('.');
        let short = parts.next().unwrap_or(target);
        let go = format!("{}.{short}", parts.next().unwrap_or_default());
        if let Some((_, code)) = LEAVES.iter().find(|(leaf, _)| *leaf == target) {
            if *code == "s" {
                named.push_str(&go);
            }
            if matches!(*code, "B" | "O" | "S") {
                return Ok(format!("{code}{}", self.ids[PROPS]));
            }
            return Ok((*code).into());
        }
        if let Some(alias) = self.facts.aliases.get(target) {
            named.push_str(&go);
            *values = self.enums.get(target).copied();
            *wrapped = alias.markers.iter().any(|m| m == "protobuf.nullable=true");
            return self.shape(&alias.expr, &mut String::new(), &mut None, &mut false);
        }
        Ok(format!("#{}", self.ids.get(target).with_context(|| format!("unknown type {target}"))?))
    }
}

fn capitalised(json: &str) -> String {
    let mut chars = json.chars();
    chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

fn default(field: &FieldFacts) -> anyhow::Result<Option<String>> {
    let Some(text) = field.value("default=") else { return Ok(None) };
    if let Some(name) = text.strip_prefix("ref(").and_then(|t| t.strip_suffix(')')) {
        let (_, value) = CONSTANTS
            .iter()
            .find(|(constant, _)| *constant == name)
            .with_context(|| format!("constant {name}"))?;
        return Ok(Some(format!("{value:?}")));
    }
    let value: serde_json::Value =
        serde_json::from_str(text).with_context(|| format!("default {text}"))?;
    Ok(Some(value.to_string()))
}

/// The API group of a Go package.
fn group_version(package: &str) -> anyhow::Result<(String, String)> {
    let mut parts = package.rsplit('.');
    let version = parts.next().context("no version")?;
    let group = match parts.next().context("no group")? {
        "core" => String::new(),
        name @ ("apps" | "autoscaling" | "batch" | "policy") => name.to_owned(),
        "rbac" => "rbac.authorization.k8s.io".to_owned(),
        "flowcontrol" => "flowcontrol.apiserver.k8s.io".to_owned(),
        name => format!("{name}.k8s.io"),
    };
    Ok((group, version.to_owned()))
}
