//! Rules as lists of expressions over 4-byte registers.

use crate::netlink::Writer;
use settings::addr::{Cidr, Family, octets};

/// Sixteen 4-byte registers, numbered from 0 here.
pub(crate) type Register = u8;

fn register(number: Register) -> u32 {
    8 + u32::from(number)
}

/// `continue`-less verdicts of an immediate expression.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Verdict<'a> {
    Drop,
    Accept,
    Jump(&'a str),
    Goto(&'a str),
    Return,
}

/// One rule; built left to right like nft's own text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rule(Vec<(&'static str, Writer)>);

fn data(w: &mut Writer, kind: u16, value: &[u8]) {
    w.nest(kind, |w| {
        w.attr(1, value);
    });
}

impl Rule {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        for (name, attributes) in &self.0 {
            w.nest(1, |w| {
                w.text(1, name).attr(2 | 0x8000, &attributes.0);
            });
        }
    }

    fn add(mut self, name: &'static str, fill: impl FnOnce(&mut Writer)) -> Self {
        let mut writer = Writer::default();
        fill(&mut writer);
        self.0.push((name, writer));
        self
    }

    /// Loads header bytes: base 1 network, 2 transport.
    fn payload(self, to: Register, base: u32, offset: u32, length: u32) -> Self {
        self.add("payload", |w| {
            w.be32(1, register(to)).be32(2, base).be32(3, offset).be32(4, length);
        })
    }

    /// Loads bytes of the link-layer frame: its destination is at offset 0, its type at offset 12.
    pub(crate) fn frame(self, to: Register, offset: u32, length: u32) -> Self {
        self.payload(to, 0, offset, length)
    }

    /// Bytes of the network header.
    pub(crate) fn network(self, to: Register, offset: u32, length: u32) -> Self {
        self.payload(to, 1, offset, length)
    }

    pub(crate) fn source(self, to: Register, family: Family) -> Self {
        let offset = if family == Family::V4 { 12 } else { 8 };
        self.payload(to, 1, offset, u32::from(family.length()))
    }

    pub(crate) fn destination(self, to: Register, family: Family) -> Self {
        let offset = if family == Family::V4 { 16 } else { 24 };
        self.payload(to, 1, offset, u32::from(family.length()))
    }

    /// The transport destination port.
    pub(crate) fn port(self, to: Register) -> Self {
        self.payload(to, 2, 2, 2)
    }

    pub(crate) fn meta(self, to: Register, key: u32) -> Self {
        self.add("meta", |w| {
            w.be32(1, register(to)).be32(2, key);
        })
    }

    /// `meta l4proto`.
    pub(crate) fn protocol(self, to: Register) -> Self {
        self.meta(to, 16)
    }

    /// `meta l4proto` is this.
    pub(crate) fn only_protocol(self, number: u8) -> Self {
        self.protocol(0).compare(0, true, &[number])
    }

    pub(crate) fn compare(self, from: Register, equal: bool, value: &[u8]) -> Self {
        self.add("cmp", |w| {
            w.be32(1, register(from)).be32(2, u32::from(!equal));
            data(w, 3, value);
        })
    }

    /// What was loaded is less than this.
    pub(crate) fn below(self, from: Register, value: &[u8]) -> Self {
        self.add("cmp", |w| {
            // NFT_CMP_LT
            w.be32(1, register(from)).be32(2, 2);
            data(w, 3, value);
        })
    }

    pub(crate) fn bitwise(self, at: Register, mask: &[u8], xor: &[u8]) -> Self {
        let length = u32::try_from(mask.len()).unwrap_or(0);
        self.add("bitwise", |w| {
            w.be32(1, register(at)).be32(2, register(at)).be32(3, length);
            data(w, 4, mask);
            data(w, 5, xor);
        })
    }

    /// Matches an address already loaded against a block.
    pub(crate) fn within(self, at: Register, block: &Cidr, inside: bool) -> Self {
        let zero = vec![0; usize::from(block.family().length())];
        self.bitwise(at, &block.mask(), &zero).compare(at, inside, &octets(block.first()))
    }

    /// `mark or bit`.
    pub(crate) fn set_mark(self, bit: u32) -> Self {
        self.meta(0, 3).bitwise(0, &(!bit).to_ne_bytes(), &bit.to_ne_bytes()).add("meta", |w| {
            w.be32(2, 3).be32(3, register(0));
        })
    }

    /// Matches when the bit is set, and clears it.
    pub(crate) fn take_mark(self, bit: u32) -> Self {
        let zero = 0_u32.to_ne_bytes();
        self.meta(0, 3)
            .bitwise(0, &bit.to_ne_bytes(), &zero)
            .compare(0, false, &zero)
            .meta(0, 3)
            .bitwise(0, &(!bit).to_ne_bytes(), &zero)
            .add("meta", |w| {
                w.be32(2, 3).be32(3, register(0));
            })
    }

    /// Sends a map's 4-byte value through the packet mark, which is kept in `spare` meanwhile. The
    /// kernel needs none of it, but `nft` 1.0 aborts when it lists a rule whose lookup key holds
    /// another lookup's value.
    pub(crate) fn copy_via_mark(self, at: Register, spare: Register) -> Self {
        let set = |rule: Self, from: Register| {
            rule.add("meta", |w| {
                w.be32(2, 3).be32(3, register(from));
            })
        };
        let rule = set(self.meta(spare, 3), at).meta(at, 3);
        set(rule, spare)
    }

    /// `iifname` (6) or `oifname` (7) is this.
    pub(crate) fn interface(self, key: u32, name: &str) -> Self {
        self.compare_interface(key, name, true)
    }

    /// As [`Self::interface`], for all other interfaces.
    pub(crate) fn other_interface(self, key: u32, name: &str) -> Self {
        self.compare_interface(key, name, false)
    }

    fn compare_interface(self, key: u32, name: &str, equal: bool) -> Self {
        let mut value = name.as_bytes().to_vec();
        value.resize(16, 0);
        self.meta(0, key).compare(0, equal, &value)
    }

    /// `ct state established,related`.
    pub(crate) fn known_connection(self) -> Self {
        self.conntrack_bits(0, 2 | 4)
    }

    /// The first byte of the transport header lies between these: the type of an ICMP message.
    pub(crate) fn message_type(self, first: u8, last: u8) -> Self {
        let rule = self.payload(0, 2, 0, 1);
        let bound = |rule: Self, operator: u32, value: u8| {
            rule.add("cmp", |w| {
                w.be32(1, register(0)).be32(2, operator);
                data(w, 3, &[value]);
            })
        };
        // NFT_CMP_GTE and NFT_CMP_LTE.
        bound(bound(rule, 5, first), 3, last)
    }

    /// `ct state new`.
    pub(crate) fn new_connection(self) -> Self {
        self.conntrack_bits(0, 8)
    }

    /// The packet belongs to no connection: it is neither translated nor remembered.
    pub(crate) fn untracked(self) -> Self {
        self.add("notrack", |_| {})
    }

    /// `ct status dnat`.
    pub(crate) fn translated(self) -> Self {
        self.conntrack_bits(2, 32)
    }

    fn conntrack_bits(self, key: u32, bits: u32) -> Self {
        let zero = 0_u32.to_ne_bytes();
        self.add("ct", |w| {
            w.be32(1, register(0)).be32(2, key);
        })
        .bitwise(0, &bits.to_ne_bytes(), &zero)
        .compare(0, false, &zero)
    }

    /// `fib saddr type local` (flag 1) or `fib daddr type local` (flag 2).
    pub(crate) fn fib_local(self, flag: u32) -> Self {
        // RTN_LOCAL is 2.
        self.add("fib", |w| {
            w.be32(1, register(0)).be32(2, 3).be32(3, flag);
        })
        .compare(0, true, &2_u32.to_ne_bytes())
    }

    pub(crate) fn immediate(self, to: Register, value: &[u8]) -> Self {
        self.add("immediate", |w| {
            w.be32(1, register(to));
            data(w, 2, value);
        })
    }

    /// Continues only when the key from `from` on is in the set.
    pub(crate) fn lookup(self, set: &str, from: Register) -> Self {
        self.add("lookup", |w| {
            w.text(1, set).be32(2, register(from));
        })
    }

    /// Continues only when the key is not in the set.
    pub(crate) fn lookup_absent(self, set: &str, from: Register) -> Self {
        self.add("lookup", |w| {
            w.text(1, set).be32(2, register(from)).be32(5, 1);
        })
    }

    /// Continues only when the key is in the map; its value lands in `to`.
    pub(crate) fn lookup_to(self, map: &str, from: Register, to: Register) -> Self {
        self.add("lookup", |w| {
            w.text(1, map).be32(2, register(from)).be32(3, register(to));
        })
    }

    /// Continues only when the key is in the verdict map, with the verdict of the element.
    pub(crate) fn lookup_verdict(self, map: &str, from: Register) -> Self {
        self.add("lookup", |w| {
            // Register 0 of the kernel is that of verdicts.
            w.text(1, map).be32(2, register(from)).be32(3, 0);
        })
    }

    /// Counts packets and bytes.
    pub(crate) fn counter(self) -> Self {
        self.add("counter", |w| {
            w.be64(1, 0).be64(2, 0);
        })
    }

    /// Continues at most for this many packets per this many seconds, and for `burst` more after a
    /// pause.
    pub(crate) fn limit(self, packets: u64, seconds: u64, burst: u32) -> Self {
        self.add("limit", |w| {
            w.be64(1, packets).be64(2, seconds).be32(3, burst);
        })
    }

    /// Sends the packet to the listeners of a group of NFLOG.
    pub(crate) fn log(self, group: u16, prefix: &str) -> Self {
        self.add("log", |w| {
            w.attr(1, &group.to_be_bytes()).text(2, prefix);
        })
    }

    /// A random number below `modulus`.
    pub(crate) fn random(self, to: Register, modulus: u32) -> Self {
        self.add("numgen", |w| {
            w.be32(1, register(to)).be32(2, modulus).be32(3, 1).be32(4, 0);
        })
    }

    /// Adds or refreshes an element from registers.
    pub(crate) fn update(self, map: &str, key: Register, value: Register, timeout_ms: u64) -> Self {
        self.add("dynset", |w| {
            w.text(1, map).be32(3, 1).be32(4, register(key)).be32(5, register(value));
            w.be64(6, timeout_ms);
        })
    }

    /// Removes the element of this key, if there is one. The kernel wants a value register for maps
    /// here too.
    pub(crate) fn forget(self, map: &str, key: Register, value: Register) -> Self {
        self.add("dynset", |w| {
            w.text(1, map).be32(3, 2).be32(4, register(key)).be32(5, register(value));
        })
    }

    /// Destination NAT to address and port from registers.
    pub(crate) fn dnat(self, family: Family, address: Register, port: Register) -> Self {
        self.add("nat", |w| {
            w.be32(1, 1).be32(2, u32::from(family.number()));
            // NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED
            w.be32(3, register(address)).be32(5, register(port)).be32(7, 3);
        })
    }

    /// Masquerade, with ports drawn at random (`NF_NAT_RANGE_PROTO_RANDOM_FULLY`).
    pub(crate) fn masquerade(self) -> Self {
        self.add("masq", |w| {
            w.be32(1, 16);
        })
    }

    /// ICMP port unreachable.
    pub(crate) fn reject(self, family: Family) -> Self {
        let code = if family == Family::V4 { 3 } else { 4 };
        self.add("reject", |w| {
            w.be32(1, 0).attr(2, &[code]);
        })
    }

    /// TCP reset.
    pub(crate) fn reset(self) -> Self {
        self.add("reject", |w| {
            w.be32(1, 1);
        })
    }

    pub(crate) fn verdict(self, verdict: Verdict<'_>) -> Self {
        let (code, chain) = match verdict {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Jump(chain) => (-3_i32, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
        };
        self.add("immediate", |w| {
            w.be32(1, 0).nest(2, |w| {
                w.nest(2, |w| {
                    w.attr(1, &code.to_be_bytes());
                    if let Some(chain) = chain {
                        w.text(2, chain);
                    }
                });
            });
        })
    }
}
