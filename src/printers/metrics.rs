//! Usage of nodes and pods (metrics-server's `pkg/api/table.go`).

use api::Quantity;
use jiff::Timestamp;
use serde_json::Value;

use super::cells::{at, list, name, text};
use super::printer::{Column, NAME, Printer, printer};

pub(super) const GROUP: &str = "metrics.k8s.io";

const COLUMNS: &[Column] =
    &[NAME, cell("cpu", "quantity"), cell("memory", "quantity"), cell("Window", "duration")];

pub(super) const PRINTERS: &[Printer] =
    &[printer(GROUP, "NodeMetrics", COLUMNS, node), printer(GROUP, "PodMetrics", COLUMNS, pod)];

const fn cell(name: &'static str, format: &'static str) -> Column {
    Column { name, kind: "string", format, priority: 0 }
}

fn node(o: &Value, _: Timestamp) -> Vec<Value> {
    let usage = |resource: &str| Value::from(text(o, &["usage", resource]));
    vec![name(o), usage("cpu"), usage("memory"), text(o, &["window"]).into()]
}

/// The cells of a pod: the sum of its containers.
fn pod(o: &Value, _: Timestamp) -> Vec<Value> {
    let sum = |resource: &str| {
        let usages = list(o, &["containers"]).iter().map(|c| at(c, &["usage", resource]));
        let sum = usages.filter_map(|usage| Quantity::from_value(usage).ok());
        // The first quantity determines the format.
        Value::from(sum.reduce(|a, b| a + b).unwrap_or(Quantity::ZERO).to_string())
    };
    vec![name(o), sum("cpu"), sum("memory"), text(o, &["window"]).into()]
}
