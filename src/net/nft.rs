//! nftables by netlink: tables, chains, sets, rules, one atomic batch per change.

pub(crate) mod expr;
pub(crate) mod set;

use std::io;

use crate::netlink::{self, APPEND, CREATE, Socket, Writer, attribute, attributes};
use expr::Rule;
use set::{Element, Set};
use settings::addr::Family;

const NFPROTO_BRIDGE: u8 = 7;
const SUBSYSTEM: u16 = 10 << 8;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const DELETE_CHAIN: u16 = 5;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const DELETE_SET: u16 = 11;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;
/// A nested attribute's length has 16 bits; one element takes far less than what is left.
const ELEMENTS_BYTES_MAX: usize = 48 << 10;

/// Why a batch was refused; nothing of it was applied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("nftables refused {what} in table {table}: {source}")]
    Refused { what: String, table: String, source: io::Error },
    #[error("cannot talk to nftables: {0}")]
    Socket(#[from] io::Error),
}

/// Where a base chain hooks in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hook {
    /// `filter` or `nat`.
    pub(crate) kind: &'static str,
    /// `NF_INET_*`: 0 prerouting, 1 input, 2 forward, 3 output, 4 postrouting.
    pub(crate) number: u32,
    pub(crate) priority: i32,
}

/// Changes of one table, applied together or not at all.
#[derive(Debug)]
pub(crate) struct Batch {
    /// `NFPROTO_*`.
    protocol: u8,
    table: String,
    messages: Vec<(u16, u16, Vec<u8>, String)>,
    next_set: u32,
}

impl Batch {
    pub(crate) fn new(family: Family, table: &str) -> Self {
        Self::of(family.number(), table)
    }

    /// Of a table that sees the frames of bridges.
    pub(crate) fn of_bridges(table: &str) -> Self {
        Self::of(NFPROTO_BRIDGE, table)
    }

    fn of(protocol: u8, table: &str) -> Self {
        Self { protocol, table: table.to_owned(), messages: Vec::new(), next_set: 1 }
    }

    fn push(&mut self, kind: u16, flags: u16, what: String, fill: impl FnOnce(&mut Writer)) {
        let mut body = Writer::default();
        body.raw(&[self.protocol, 0, 0, 0]).text(1, &self.table);
        fill(&mut body);
        self.messages.push((SUBSYSTEM | kind, flags, body.0, what));
    }

    pub(crate) fn add_table(&mut self) {
        self.push(NEW_TABLE, CREATE, "the table".into(), |w| {
            w.be32(2, 0);
        });
    }

    pub(crate) fn delete_table(&mut self) {
        self.push(DELETE_TABLE, 0, "deletion of the table".into(), |_| {});
    }

    pub(crate) fn add_chain(&mut self, name: &str, hook: Option<Hook>) {
        self.push(NEW_CHAIN, CREATE, format!("chain {name}"), |w| {
            w.text(3, name);
            if let Some(hook) = hook {
                w.nest(4, |w| {
                    w.be32(1, hook.number).attr(2, &hook.priority.to_be_bytes());
                })
                .be32(5, 1)
                .text(7, hook.kind);
            }
        });
    }

    /// Deletes a chain with its rules; nothing may lead to it.
    pub(crate) fn delete_chain(&mut self, name: &str) {
        self.push(DELETE_CHAIN, 0, format!("deletion of chain {name}"), |w| {
            w.text(3, name);
        });
    }

    pub(crate) fn flush_chain(&mut self, name: &str) {
        self.push(DELETE_RULE, 0, format!("flush of chain {name}"), |w| {
            w.text(2, name);
        });
    }

    pub(crate) fn add_rule(&mut self, chain: &str, rule: &Rule) {
        self.push(NEW_RULE, CREATE | APPEND, format!("rule in chain {chain}"), |w| {
            w.text(2, chain);
            w.nest(4, |w| rule.encode(w));
        });
    }

    pub(crate) fn add_set(&mut self, set: &Set) {
        let id = self.next_set;
        self.next_set += 1;
        self.push(NEW_SET, CREATE, format!("set {}", set.name), |w| set.encode(w, id));
    }

    pub(crate) fn delete_set(&mut self, name: &str) {
        self.push(DELETE_SET, 0, format!("deletion of set {name}"), |w| {
            w.text(2, name);
        });
    }

    fn elements<'a>(
        &mut self,
        kind: u16,
        flags: u16,
        set: &str,
        elements: impl Iterator<Item = &'a Element>,
    ) {
        let mut list = Writer::default();
        let flush = |batch: &mut Self, list: &mut Writer| {
            let bytes = std::mem::take(&mut list.0);
            if !bytes.is_empty() {
                batch.push(kind, flags, format!("elements of set {set}"), |w| {
                    w.text(2, set).attr(3 | 0x8000, &bytes);
                });
            }
        };
        for element in elements {
            list.nest(1, |w| element.encode(w));
            if list.0.len() > ELEMENTS_BYTES_MAX {
                flush(self, &mut list);
            }
        }
        flush(self, &mut list);
    }

    pub(crate) fn add_elements<'a>(
        &mut self,
        set: &str,
        elements: impl IntoIterator<Item = &'a Element>,
    ) {
        self.elements(NEW_ELEMENT, CREATE, set, elements.into_iter());
    }

    pub(crate) fn delete_elements<'a>(
        &mut self,
        set: &str,
        elements: impl IntoIterator<Item = &'a Element>,
    ) {
        self.elements(DELETE_ELEMENT, 0, set, elements.into_iter());
    }

    /// Sends everything as one transaction and waits for the kernel's verdict.
    pub(crate) fn commit(mut self, socket: &mut Socket) -> Result<(), Error> {
        let Some(last) = self.messages.len().checked_sub(1) else { return Ok(()) };
        let frame = [0_u8, 0, 0, 10];
        let first = socket.next_sequence();
        let mut bytes = netlink::message(BATCH_BEGIN, 0, first, &frame);
        let mut sequences = Vec::with_capacity(self.messages.len());
        for (index, (kind, flags, body, _)) in self.messages.iter_mut().enumerate() {
            // A large table is not held twice.
            let body = std::mem::take(body);
            let sequence = socket.next_sequence();
            sequences.push(sequence);
            let ack = if index == last { netlink::ACK } else { 0 };
            bytes.extend(netlink::message(*kind, *flags | ack, sequence, &body));
        }
        let end = socket.next_sequence();
        bytes.extend(netlink::message(BATCH_END, 0, end, &frame));
        socket.send(&bytes)?;
        let refused = |what: String, error: i32| Error::Refused {
            what,
            table: self.table.clone(),
            source: io::Error::from_raw_os_error(error),
        };
        let mut fault = None;
        loop {
            for answer in socket.receive()? {
                // Error answers repeat the header of the message they belong to.
                let mine = answer.sequence == first
                    || answer.sequence == end
                    || sequences.contains(&answer.sequence);
                if !mine || !netlink::is_error(&answer) {
                    continue;
                }
                let error = netlink::error_of(&answer.body);
                let index = sequences.iter().position(|s| *s == answer.sequence);
                if error != 0 && fault.is_none() {
                    let what = index
                        .and_then(|i| self.messages.get(i))
                        .map_or_else(|| "the transaction".to_owned(), |m| m.3.clone());
                    fault = Some(refused(what, error));
                }
                if index == Some(last) || (index.is_none() && error != 0) {
                    return fault.map_or(Ok(()), Err);
                }
            }
        }
    }
}

/// Whether a table of this name exists.
pub(crate) fn has_table(socket: &mut Socket, family: Family, table: &str) -> Result<bool, Error> {
    let mut body = Writer::default();
    body.raw(&[family.number(), 0, 0, 0]).text(1, table);
    match socket.get(SUBSYSTEM | GET_TABLE, &body.0) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// An element read back from the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dumped {
    pub(crate) key: Vec<u8>,
    pub(crate) data: Vec<u8>,
    /// Its time limit in milliseconds, 0 when that of the set.
    pub(crate) timeout: u64,
    /// Milliseconds until it goes.
    pub(crate) expires: u64,
}

/// The elements of a set; none when table or set do not exist.
pub(crate) fn dump_elements(
    socket: &mut Socket,
    family: Family,
    table: &str,
    set: &str,
) -> Result<Vec<Dumped>, Error> {
    let mut body = Writer::default();
    body.raw(&[family.number(), 0, 0, 0]).text(1, table).text(2, set);
    let mut out = Vec::new();
    let value = |element: &[u8], kind| {
        attribute(element, kind).and_then(|d| attribute(d, 1)).map(<[u8]>::to_vec)
    };
    let result = socket.dump(SUBSYSTEM | GET_ELEMENT, &body.0, |received| {
        let list = received.body.get(4..).and_then(|b| attribute(b, 3)).unwrap_or_default();
        for (_, element) in attributes(list) {
            let number = |kind| {
                let bytes = attribute(element, kind).and_then(|v| v.try_into().ok());
                bytes.map_or(0, u64::from_be_bytes)
            };
            if let Some(key) = value(element, 1) {
                out.push(Dumped {
                    key,
                    data: value(element, 2).unwrap_or_default(),
                    timeout: number(4),
                    expires: number(5),
                });
            }
        }
    });
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(out),
    }
}

/// Calls `each` with the chain and the number of packets of each counter in the rules of a table;
/// never when the table does not exist.
pub(crate) fn dump_counters(
    socket: &mut Socket,
    family: Family,
    table: &str,
    mut each: impl FnMut(&str, u64),
) -> Result<(), Error> {
    let mut body = Writer::default();
    body.raw(&[family.number(), 0, 0, 0]).text(1, table);
    let result = socket.dump(SUBSYSTEM | GET_RULE, &body.0, |received| {
        let list = received.body.get(4..).unwrap_or_default();
        // Kernels before 4.14 report the rules of all tables.
        let text = |kind| attribute(list, kind).and_then(|v| v.strip_suffix(b"\0"));
        if text(1) != Some(table.as_bytes()) {
            return;
        }
        let Some(chain) = text(2).and_then(|name| std::str::from_utf8(name).ok()) else { return };
        for (_, expression) in attributes(attribute(list, 4).unwrap_or_default()) {
            if attribute(expression, 1) == Some(b"counter\0") {
                let packets = attribute(expression, 2).and_then(|counter| attribute(counter, 2));
                let packets = packets.and_then(|v| v.try_into().ok()).map(u64::from_be_bytes);
                each(chain, packets.unwrap_or(0));
            }
        }
    });
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests;
