//! The columns of a table and the printer of one kind.

use jiff::Timestamp;
use serde_json::Value;

/// One column of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// `string`, `integer`, `boolean`, `date`.
    pub kind: &'static str,
    /// `name` for the column that holds the object's name, else empty.
    pub format: &'static str,
    /// 0 is always shown, 1 only with `-o wide`.
    pub priority: i64,
}

pub(super) const fn column(name: &'static str, kind: &'static str, priority: i64) -> Column {
    Column { name, kind, format: "", priority }
}

pub(super) const fn text(name: &'static str) -> Column {
    column(name, "string", 0)
}

pub(super) const fn wide(name: &'static str) -> Column {
    column(name, "string", 1)
}

pub(super) const fn integer(name: &'static str) -> Column {
    column(name, "integer", 0)
}

pub(super) const fn boolean(name: &'static str) -> Column {
    column(name, "boolean", 0)
}

pub(super) const NAME: Column =
    Column { name: "Name", kind: "string", format: "name", priority: 0 };
pub(super) const AGE: Column = text("Age");

pub(super) type Row = fn(&Value, Timestamp) -> Vec<Value>;

/// How one kind is printed, in all its versions.
pub(super) struct Printer {
    pub(super) group: &'static str,
    pub(super) kind: &'static str,
    pub(super) columns: &'static [Column],
    pub(super) row: Row,
}

pub(super) const fn printer(
    group: &'static str,
    kind: &'static str,
    columns: &'static [Column],
    row: Row,
) -> Printer {
    Printer { group, kind, columns, row }
}
