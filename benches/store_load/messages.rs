//! The few messages of etcd's interface that the load consists of, written and read in place.

/// A number as protobuf writes it.
fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn number(out: &mut Vec<u8>, field: u64, value: u64) {
    varint(out, field << 3);
    varint(out, value);
}

fn bytes(out: &mut Vec<u8>, field: u64, value: &[u8]) {
    varint(out, field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// `PutRequest`
pub(crate) fn put(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len() + value.len() + 16);
    bytes(&mut out, 1, key);
    bytes(&mut out, 2, value);
    out
}

/// `RangeRequest`
pub(crate) fn range(key: &[u8], end: &[u8], serializable: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    bytes(&mut out, 1, key);
    if !end.is_empty() {
        bytes(&mut out, 2, end);
    }
    if serializable {
        number(&mut out, 7, 1);
    }
    out
}

/// `TxnRequest` as Kubernetes writes: put if the key is still as read, else read it again.
pub(crate) fn put_if_unchanged(key: &[u8], mod_revision: u64, value: &[u8]) -> Vec<u8> {
    let mut compare = Vec::new();
    number(&mut compare, 2, 2); // target MOD, result EQUAL
    bytes(&mut compare, 3, key);
    number(&mut compare, 6, mod_revision);
    let step = |field, request: &[u8]| {
        let mut op = Vec::new();
        bytes(&mut op, field, request);
        op
    };
    let mut out = Vec::new();
    bytes(&mut out, 1, &compare);
    bytes(&mut out, 2, &step(2, &put(key, value)));
    bytes(&mut out, 3, &step(1, &range(key, b"", false)));
    out
}

/// `WatchRequest` that begins a watch.
pub(crate) fn watch(key: &[u8]) -> Vec<u8> {
    let mut create = Vec::new();
    bytes(&mut create, 1, key);
    let mut out = Vec::new();
    bytes(&mut out, 1, &create);
    out
}

/// A field of a message.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields of a message in their order; ends where it is broken.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Value::Number(self.number()?),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                let (value, rest) = self.0.split_at_checked(length)?;
                self.0 = rest;
                Value::Bytes(value)
            }
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

/// The modification revision of the first pair of a `RangeResponse`.
pub(crate) fn mod_revision(response: &[u8]) -> Option<u64> {
    let kv = Fields(response).find_map(|field| match field {
        (2, Value::Bytes(kv)) => Some(kv),
        _ => None,
    })?;
    Fields(kv).find_map(|field| match field {
        (3, Value::Number(revision)) => Some(revision),
        _ => None,
    })
}

/// Whether a `TxnResponse` says that the comparison held.
pub(crate) fn succeeded(response: &[u8]) -> bool {
    Fields(response).any(|field| matches!(field, (2, Value::Number(1))))
}

/// Of a `WatchResponse`: how many events it has, and whether it says that a watch began or ended.
pub(crate) fn events(response: &[u8]) -> (u64, bool, bool) {
    let (mut events, mut created, mut canceled) = (0, false, false);
    for (field, value) in Fields(response) {
        match (field, value) {
            (11, _) => events += 1,
            (3, Value::Number(1)) => created = true,
            (4, Value::Number(1)) => canceled = true,
            _ => {}
        }
    }
    (events, created, canceled)
}
