//! Headers of the PROXY protocol, by which a proxy in front of the cluster tells the address of a
//! client (the specification `proxy-protocol.txt` of HAProxy, versions 1 and 2); pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// How version 1 begins.
const TEXT: &[u8] = b"PROXY ";
/// The longest header of version 1, with its line end (2.1).
const TEXT_BYTES_MAX: usize = 107;
/// How version 2 begins (2.2).
const BINARY: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// The bytes of version 2 before the addresses: how it begins, version and command, family,
/// length.
const BINARY_BYTES: usize = 16;
/// Bytes after those that are accepted: two IPv6 addresses and 2 KB of options.
const OPTION_BYTES_MAX: usize = 2084;

/// What the first bytes of a connection are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Header {
    /// They may become a header once more bytes have come.
    Partial,
    /// No header.
    Absent,
    /// A header of `length` bytes.
    Complete {
        /// Bytes before those of the client.
        length: usize,
        /// The address of the client; `None` if the proxy made the connection for itself.
        client: Option<SocketAddr>,
    },
}

/// Why a header is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadHeader {
    #[error("the header of the PROXY protocol has no end within {TEXT_BYTES_MAX} bytes")]
    NoEnd,
    #[error("the line of the PROXY protocol is malformed")]
    Line,
    #[error("version or command of the PROXY protocol is unknown: {0:#04x}")]
    Command(u8),
    #[error(
        "the header of the PROXY protocol has {0} bytes after its fixed part, which do not fit"
    )]
    Length(usize),
}

/// Parses the first bytes of a connection.
///
/// # Errors
/// A header that the specification does not allow, or that is too long.
pub(super) fn parse(bytes: &[u8]) -> Result<Header, BadHeader> {
    for (start, parse) in
        [(TEXT, parse_text as fn(&[u8]) -> Result<Header, BadHeader>), (BINARY, parse_binary)]
    {
        if bytes.starts_with(start) {
            return parse(bytes);
        }
        if start.starts_with(bytes) {
            return Ok(Header::Partial);
        }
    }
    Ok(Header::Absent)
}

fn parse_text(bytes: &[u8]) -> Result<Header, BadHeader> {
    let window = bytes.get(..TEXT_BYTES_MAX).unwrap_or(bytes);
    let Some(end) = window.windows(2).position(|two| two == b"\r\n") else {
        return if bytes.len() < TEXT_BYTES_MAX {
            Ok(Header::Partial)
        } else {
            Err(BadHeader::NoEnd)
        };
    };
    let line = window.get(TEXT.len()..end).unwrap_or_default();
    let line = std::str::from_utf8(line).map_err(|_| BadHeader::Line)?;
    let fields: Vec<&str> = line.split(' ').collect();
    let client = match *fields.as_slice() {
        // The rest of the line is ignored (2.1).
        ["UNKNOWN", ..] => None,
        [family @ ("TCP4" | "TCP6"), source, destination, source_port, destination_port] => {
            let address = |text: &str| -> Result<IpAddr, BadHeader> {
                match family {
                    "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::V4),
                    _ => text.parse::<Ipv6Addr>().map(IpAddr::V6),
                }
                .map_err(|_| BadHeader::Line)
            };
            address(destination)?;
            port(destination_port)?;
            Some(SocketAddr::new(address(source)?, port(source_port)?))
        }
        _ => return Err(BadHeader::Line),
    };
    Ok(Header::Complete { length: end + 2, client })
}

/// A port in decimal digits without a sign or leading zeros.
fn port(text: &str) -> Result<u16, BadHeader> {
    let is_plain =
        text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if !is_plain {
        return Err(BadHeader::Line);
    }
    text.parse().map_err(|_| BadHeader::Line)
}

fn parse_binary(bytes: &[u8]) -> Result<Header, BadHeader> {
    let fixed =
        bytes.get(BINARY.len()..BINARY_BYTES).and_then(|fixed| <[u8; 4]>::try_from(fixed).ok());
    let Some([command, family, high, low]) = fixed else { return Ok(Header::Partial) };
    let size = usize::from(u16::from_be_bytes([high, low]));
    if !matches!(command, 0x20 | 0x21) {
        return Err(BadHeader::Command(command));
    }
    if size > OPTION_BYTES_MAX {
        return Err(BadHeader::Length(size));
    }
    let length = BINARY_BYTES + size;
    let Some(rest) = bytes.get(BINARY_BYTES..length) else { return Ok(Header::Partial) };
    // Of the command LOCAL, and of families other than TCP over IP, addresses are skipped (2.2).
    let client = match (command, family) {
        (0x21, 0x11) => Some(v4(rest).ok_or(BadHeader::Length(size))?),
        (0x21, 0x21) => Some(v6(rest).ok_or(BadHeader::Length(size))?),
        _ => None,
    };
    Ok(Header::Complete { length, client })
}

/// Addresses and ports of TCP over IPv4: source, destination, source port, destination port.
fn v4(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes: [u8; 12] = bytes.get(..12)?.try_into().ok()?;
    let [a, b, c, d, _, _, _, _, high, low, _, _] = bytes;
    Some(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([high, low])))
}

fn v6(bytes: &[u8]) -> Option<SocketAddr> {
    let address: [u8; 16] = bytes.get(..16)?.try_into().ok()?;
    // The destination's address and both ports.
    let [high, low, _, _]: [u8; 4] = bytes.get(32..36)?.try_into().ok()?;
    Some(SocketAddr::new(Ipv6Addr::from(address).into(), u16::from_be_bytes([high, low])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete(length: usize, client: Option<&str>) -> Result<Header, BadHeader> {
        Ok(Header::Complete { length, client: client.map(|text| text.parse().unwrap()) })
    }

    #[test]
    fn lines_of_version_1() {
        let longest = "PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n";
        for (line, expected) in [
            (
                "PROXY TCP4 198.51.100.7 192.0.2.1 56324 443\r\n",
                complete(45, Some("198.51.100.7:56324")),
            ),
            (
                "PROXY TCP6 2001:db8::7 2001:db8::1 1 80\r\nGET",
                complete(41, Some("[2001:db8::7]:1")),
            ),
            ("PROXY UNKNOWN\r\n", complete(15, None)),
            (longest, complete(longest.len(), None)),
            ("PROXY TCP4 198.51.100.7", Ok(Header::Partial)),
            ("PRO", Ok(Header::Partial)),
            ("", Ok(Header::Partial)),
            ("PROPFIND / HTTP/1.1\r\n", Ok(Header::Absent)),
            ("GET / HTTP/1.1\r\n", Ok(Header::Absent)),
            ("PROXY TCP4 198.51.100.7 192.0.2.1 56324\r\n", Err(BadHeader::Line)),
            ("PROXY TCP4 198.51.100.7 192.0.2.1 056 443\r\n", Err(BadHeader::Line)),
            ("PROXY TCP4 198.51.100.7 192.0.2.1 70000 443\r\n", Err(BadHeader::Line)),
            ("PROXY TCP4 198.51.100.07 192.0.2.1 1 443\r\n", Err(BadHeader::Line)),
            ("PROXY TCP4 2001:db8::7 192.0.2.1 1 443\r\n", Err(BadHeader::Line)),
            ("PROXY TCP4  198.51.100.7 192.0.2.1 1 443\r\n", Err(BadHeader::Line)),
            ("PROXY UDP4 198.51.100.7 192.0.2.1 1 443\r\n", Err(BadHeader::Line)),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line:?}");
        }
        let endless = format!("PROXY TCP4 {}", "1".repeat(200));
        assert_eq!(parse(endless.as_bytes()), Err(BadHeader::NoEnd));
    }

    fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [BINARY, &[command, family], &length, rest].concat()
    }

    #[test]
    fn headers_of_version_2() {
        let four = [198, 51, 100, 7, 192, 0, 2, 1, 0xdc, 4, 1, 0xbb];
        let with_options = [&four[..], &[4, 0, 1, 0]].concat();
        let source: Ipv6Addr = "2001:db8::7".parse().unwrap();
        let six = [&source.octets()[..], &[0; 16], &[0, 1, 0, 80]].concat();
        let client = Some("198.51.100.7:56324");
        assert_eq!(parse(&binary(0x21, 0x11, &four)), complete(28, client));
        assert_eq!(parse(&binary(0x21, 0x11, &with_options)), complete(32, client));
        assert_eq!(parse(&binary(0x21, 0x21, &six)), complete(52, Some("[2001:db8::7]:1")));
        assert_eq!(parse(&binary(0x20, 0, &[])), complete(16, None), "a health check");
        assert_eq!(parse(&binary(0x21, 0x31, &[1; 216])), complete(232, None), "a Unix socket");
        assert_eq!(parse(&binary(0x11, 0x11, &four)), Err(BadHeader::Command(0x11)));
        assert_eq!(parse(&binary(0x22, 0x11, &four)), Err(BadHeader::Command(0x22)));
        assert_eq!(parse(&binary(0x21, 0x11, &four[..11])), Err(BadHeader::Length(11)));
        assert_eq!(parse(&binary(0x21, 0x21, &four)), Err(BadHeader::Length(12)));
        assert_eq!(parse(&binary(0x21, 0x11, &[0; 3000])), Err(BadHeader::Length(3000)));
        let whole = binary(0x21, 0x21, &six);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), Ok(Header::Partial), "{length}");
        }
    }
}
