//! Printed forms of upstream's internal types: an error with a structure prints all of its fields
//! with the names and in the order of Go.
//!
//! The table has a line per type: its name, then its fields as `Name=json:type`. `=json` is omitted
//! if it is the name with a lower-case first letter, `?` before the colon marks a field that is
//! omitted when empty, `+` a structure whose fields are inlined. Types: `s` string, `b` boolean,
//! `i` number, `q` quantity, `I` number or string, `m` and `j` values printed as JSON, `[` a list,
//! `*` a pointer, otherwise the name of another line.

use serde_json::Value;

use crate::field::{Error, escape_html};
use crate::value::get;

const TABLE: &str = include_str!("internal.txt");

/// Maximum depth of a printed structure; the table has no recursive type.
const DEPTH_MAX: usize = 32;

impl Error {
    /// Returns the error with its value printed as the internal type `kind`, such as `PodSpec` or
    /// `[NodeSelectorTerm`.
    #[must_use]
    pub fn printed_as(self, kind: &'static str) -> Self {
        let text = print(kind, &self.value);
        self.printed(&text)
    }
}

/// Prints a value as Go prints the internal type `kind`.
pub fn print(kind: &'static str, value: &Value) -> String {
    let mut out = String::new();
    write(&mut out, kind, value, DEPTH_MAX);
    escape_html(&out)
}

fn fields(kind: &str) -> impl Iterator<Item = &'static str> {
    let line = TABLE.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
    line.unwrap_or_default().split(' ').filter(|field| !field.is_empty())
}

fn write(out: &mut String, kind: &'static str, value: &Value, depth: usize) {
    let Some(depth) = depth.checked_sub(1) else { return out.push_str("null") };
    let plain = |zero: &str| if value.is_null() { zero.to_owned() } else { value.to_string() };
    if let Some(inner) = kind.strip_prefix('*') {
        return if value.is_null() {
            out.push_str("null")
        } else {
            write(out, inner, value, depth)
        };
    }
    if let Some(inner) = kind.strip_prefix('[') {
        let Some(list) = value.as_array() else { return out.push_str("null") };
        out.push('[');
        for (index, one) in list.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            write(out, inner, one, depth);
        }
        return out.push(']');
    }
    match kind {
        "s" => out.push_str(&plain("\"\"")),
        "b" => out.push_str(&plain("false")),
        "i" | "I" => out.push_str(&plain("0")),
        "q" => out.push_str(&plain("\"0\"")),
        "m" | "j" => out.push_str(&plain("null")),
        _ => {
            out.push('{');
            let mut first = true;
            structure(out, kind, value, depth, &mut first);
            out.push('}');
        }
    }
}

fn structure(out: &mut String, kind: &str, value: &Value, depth: usize, first: &mut bool) {
    for field in fields(kind) {
        let Some((name, inner)) = field.split_once(':') else { continue };
        if let Some(json) = name.strip_prefix('+') {
            let part = if json.is_empty() { value } else { get(value, json) };
            structure(out, inner, part, depth, first);
            continue;
        }
        let (name, omits) = name.strip_suffix('?').map_or((name, false), |name| (name, true));
        let small: String;
        let (name, json) = match name.split_once('=') {
            Some(pair) => pair,
            None => {
                let mut letters = name.chars();
                small = letters
                    .next()
                    .map(|c| c.to_ascii_lowercase())
                    .into_iter()
                    .chain(letters)
                    .collect();
                (name, small.as_str())
            }
        };
        let part = get(value, json);
        if omits
            && (part.is_null() || !inner.starts_with('*') && crate::value::is_empty(value, json))
        {
            continue;
        }
        if !std::mem::take(first) {
            out.push(',');
        }
        out.push_str(&format!("\"{name}\":"));
        write(out, inner, part, depth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;
    use serde_json::json;

    #[test]
    fn structures_print_with_gos_names_order_and_zeros() {
        let term =
            json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": []}]});
        let error = Error::invalid(&Path::new("t"), term, "no").printed_as("NodeSelectorTerm");
        assert_eq!(
            error.to_string(),
            r#"t: Invalid value: {"MatchExpressions":null,"MatchFields":[{"Key":"metadata.name","Operator":"In","Values":[]}]}: no"#
        );
        assert_eq!(
            print(
                "PodFailurePolicyRule",
                &json!({"action": "FailJob", "onExitCodes": {"containerName": "c", "operator": "In", "values": [42]}})
            ),
            r#"{"Action":"FailJob","OnExitCodes":{"ContainerName":"c","Operator":"In","Values":[42]},"OnPodConditions":null}"#
        );
    }

    #[test]
    fn embedded_structures_stand_among_the_others_and_metadata_keeps_its_json_names() {
        let template = json!({"metadata": {"labels": {"a": "<b>"}}, "spec": {}});
        let text = print("PodTemplateSpec", &template);
        assert!(
            text.starts_with(
                r#"{"labels":{"a":"\u003cb\u003e"},"Spec":{"Volumes":null,"InitContainers":null,"#
            ),
            "{text}"
        );
        let probe = print("Probe", &json!({"httpGet": {"port": "web"}, "periodSeconds": 10}));
        assert_eq!(
            probe,
            r#"{"Exec":null,"HTTPGet":{"Path":"","Port":"web","Host":"","Scheme":"","HTTPHeaders":null,"Protocol":null},"TCPSocket":null,"GRPC":null,"InitialDelaySeconds":0,"TimeoutSeconds":0,"PeriodSeconds":10,"SuccessThreshold":0,"FailureThreshold":0,"TerminationGracePeriodSeconds":null}"#
        );
    }

    #[test]
    fn every_named_type_has_a_line() {
        for line in TABLE.lines().skip(1) {
            let (own, rest) = line.split_once(' ').unwrap_or((line, ""));
            for field in rest.split(' ') {
                let (_, kind) = field.split_once(':').unwrap_or_else(|| panic!("{own}: {field}"));
                let kind = kind.trim_start_matches(['*', '[']);
                assert!(
                    kind.len() == 1 || fields(kind).next().is_some(),
                    "{own} names {kind}, which has no line"
                );
            }
        }
    }
}
