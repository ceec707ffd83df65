//! Sets, maps and their elements.

use crate::netlink::Writer;
use settings::addr::{Family, octets};
use std::net::IpAddr;

const INTERVAL: u32 = 4;
const MAP: u32 = 8;
const TIMEOUT: u32 = 16;
const EVAL: u32 = 32;
const CONCAT: u32 = 128;

/// A field of a key or value; each fills whole 4-byte registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    Address(Family),
    Protocol,
    Port,
    Number,
    /// A link's.
    Name,
    /// The only field of the data of a verdict map; see [`Element::to_chain`].
    Verdict,
}

impl Field {
    /// nft's own type numbers, so that `nft list ruleset` can print what we made.
    fn datatype(self) -> u32 {
        match self {
            Self::Address(Family::V4) => 7,
            Self::Address(Family::V6) => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Number => 19,
            Self::Name => 41,
            // `NFT_DATA_VERDICT`
            Self::Verdict => 0xffff_ff00,
        }
    }

    fn length(self) -> u32 {
        match self {
            Self::Address(family) => u32::from(family.length()),
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Number => 4,
            Self::Name | Self::Verdict => 16,
        }
    }
}

fn datatype(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |all, f| all << 6 | f.datatype())
}

fn length(fields: &[Field]) -> u32 {
    match fields {
        [one] => one.length(),
        many => many.iter().map(|f| f.length().next_multiple_of(4)).sum(),
    }
}

/// A set or map.
#[derive(Debug, Clone)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) key: Vec<Field>,
    pub(crate) data: Vec<Field>,
    pub(crate) interval: bool,
    /// Filled by packets, each element with a time limit.
    pub(crate) dynamic: bool,
}

/// Elements that packets may add; beyond it the kernel stops adding and a client merely loses its
/// affinity.
const DYNAMIC_ELEMENTS_MAX: u32 = 65_536;

impl Set {
    pub(crate) fn of(name: &str, key: &[Field]) -> Self {
        Self::map(name, key, &[])
    }

    pub(crate) fn map(name: &str, key: &[Field], data: &[Field]) -> Self {
        Self {
            name: name.to_owned(),
            key: key.to_vec(),
            data: data.to_vec(),
            interval: false,
            dynamic: false,
        }
    }

    pub(crate) fn interval(mut self) -> Self {
        self.interval = true;
        self
    }

    pub(crate) fn dynamic(mut self) -> Self {
        self.dynamic = true;
        self
    }

    pub(super) fn encode(&self, w: &mut Writer, id: u32) {
        let mut flags = 0;
        let concat = self.interval && self.key.len() > 1;
        for (on, flag) in [
            (!self.data.is_empty(), MAP),
            (self.interval, INTERVAL),
            (concat, CONCAT),
            (self.dynamic, EVAL | TIMEOUT),
        ] {
            if on {
                flags |= flag;
            }
        }
        w.text(2, &self.name).be32(3, flags);
        w.be32(4, datatype(&self.key)).be32(5, length(&self.key));
        if !self.data.is_empty() {
            w.be32(6, datatype(&self.data)).be32(7, length(&self.data));
        }
        w.be32(10, id);
        if concat || self.dynamic {
            w.nest(9, |w| {
                if self.dynamic {
                    w.be32(1, DYNAMIC_ELEMENTS_MAX);
                }
                if concat {
                    w.nest(2, |w| {
                        for field in &self.key {
                            w.nest(1, |w| {
                                w.be32(1, field.length());
                            });
                        }
                    });
                }
            });
        }
    }
}

/// One element of a set or map.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Element {
    pub(crate) key: Vec<u8>,
    /// The inclusive upper end, in a set of concatenated intervals.
    pub(crate) end: Option<Vec<u8>>,
    pub(crate) data: Vec<u8>,
    /// The chain to which the element of a verdict map leads.
    pub(crate) chain: Option<String>,
    /// Time limit and what is left of it, in milliseconds.
    pub(crate) timeout: Option<(u64, u64)>,
}

impl Element {
    pub(crate) fn key(key: Vec<u8>) -> Self {
        Self { key, end: None, data: Vec::new(), chain: None, timeout: None }
    }

    pub(crate) fn pair(key: Vec<u8>, data: Vec<u8>) -> Self {
        Self { data, ..Self::key(key) }
    }

    /// An element of a verdict map: packets go on in this chain.
    pub(crate) fn to_chain(key: Vec<u8>, chain: String) -> Self {
        Self { chain: Some(chain), ..Self::key(key) }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.nest(1, |w| {
            w.attr(1, &self.key);
        });
        if let Some(end) = &self.end {
            w.nest(10, |w| {
                w.attr(1, end);
            });
        }
        if !self.data.is_empty() {
            w.nest(2, |w| {
                w.attr(1, &self.data);
            });
        }
        if let Some(chain) = &self.chain {
            w.nest(2, |w| {
                w.nest(2, |w| {
                    // `NFT_GOTO`
                    w.attr(1, &(-4_i32).to_be_bytes()).text(2, chain);
                });
            });
        }
        if let Some((timeout, left)) = self.timeout {
            w.be64(4, timeout).be64(5, left);
        }
    }
}

/// A concatenated value under construction; each part starts a new 4-byte register.
#[derive(Debug, Clone, Default)]
pub(crate) struct Value(pub(crate) Vec<u8>);

impl Value {
    pub(crate) fn address(mut self, address: IpAddr) -> Self {
        self.0.extend(octets(address));
        self
    }

    pub(crate) fn protocol(mut self, number: u8) -> Self {
        self.0.extend([number, 0, 0, 0]);
        self
    }

    pub(crate) fn port(mut self, port: u16) -> Self {
        self.0.extend(port.to_be_bytes());
        self.0.extend([0, 0]);
        self
    }

    /// The name of a link.
    pub(crate) fn name(mut self, name: &str) -> Self {
        let end = self.0.len() + 16;
        self.0.extend(name.bytes().take(15));
        self.0.resize(end, 0);
        self
    }

    pub(crate) fn number(mut self, number: u32) -> Self {
        self.0.extend(number.to_ne_bytes());
        self
    }
}
