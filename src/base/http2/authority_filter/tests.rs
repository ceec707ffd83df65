//! Header blocks written by hand, as bytes of the filter and as requests of the server behind it.

use std::convert::Infallible;

use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

use super::*;

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    frame_of(1, kind, flags, payload)
}

fn frame_of(stream: u8, kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// `:method POST`, an `:authority` that enters the dynamic table, and `:path /`.
fn block(authority: &str) -> Vec<u8> {
    let length = u8::try_from(authority.len()).unwrap();
    [&[0x83, 0x41, length], authority.as_bytes(), &[0x84]].concat()
}

/// The same fields without a table.
const ENCODED: &[u8] = b"\0\x07:method\x04POST\0\x0a:authority\x09localhost\0\x05:path\x01/";

/// What is read of `sent` when it comes in pieces of this size.
async fn filtered(sent: Vec<u8>, piece: usize) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(piece);
    let writing = async move { client.write_all(&sent).await };
    let mut out = Vec::new();
    let mut filter = AuthorityFilter::new(server);
    let (written, read) = tokio::join!(writing, filter.read_to_end(&mut out));
    written.unwrap();
    read.unwrap();
    out
}

/// What hyper's server makes of header blocks behind the filter: `:authority` and `:path` of each
/// request, in the order of the streams 1, 3, 5 ...; None for one that it resets.
async fn served(frames: &[Vec<u8>], streams: u8) -> Vec<Option<(String, String)>> {
    served_in_steps(&[(frames.concat(), streams)]).await
}

/// As [`served`]: bytes, and the streams that must have ended before the next ones are sent.
async fn served_in_steps(steps: &[(Vec<u8>, u8)]) -> Vec<Option<(String, String)>> {
    let streams = steps.last().unwrap().1;
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let (requests, mut received) = mpsc::channel(16);
    let service = service_fn(move |request: Request<Incoming>| {
        let authority = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let _ = requests.try_send((authority, request.uri().path().to_owned()));
        async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(AuthorityFilter::new(server)), service);
    let talking = async {
        client.write_all(&[&PREFACE[..], &frame_of(0, 4, 0, &[])].concat()).await.unwrap();
        let (mut answer, mut at, mut reset, mut ended) = (Vec::new(), 0, Vec::new(), 0);
        for (sent, streams) in steps {
            if client.write_all(sent).await.is_err() {
                break;
            }
            // Until the end of the connection, if that comes first.
            while ended < *streams && client.read_buf(&mut answer).await.unwrap() > 0 {
                while let Some(frame) = Frame::first(&answer[at..]).filter(|f| f.payload.is_some())
                {
                    if frame.kind == 3 {
                        reset.push(frame.stream[3]);
                    }
                    let end = frame.kind == HEADERS && frame.flags & END_STREAM != 0;
                    ended += u8::from(end || frame.kind == 3);
                    at += frame.size();
                }
            }
        }
        drop(client);
        reset
    };
    let (_, reset) = tokio::join!(serving, talking);
    (0..streams)
        .map(
            |stream| {
                if reset.contains(&(2 * stream + 1)) { None } else { received.try_recv().ok() }
            },
        )
        .collect()
}

/// A request of stream 1: `:method POST`, `:scheme http`, `:path /`, then this.
fn request(rest: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, &[b"\x83\x86\x84", rest].concat())
}

fn answered(authority: &str) -> Vec<Option<(String, String)>> {
    vec![Some((authority.to_owned(), "/".to_owned()))]
}

#[tokio::test]
async fn authorities_that_grpc_go_accepts_are_served() {
    let literal = |kind: &[u8], value: &str| {
        [kind, &[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat()
    };
    // With indexing, without it, never indexed; the name by its index and in full.
    for kind in [&b"\x41"[..], b"\x01", b"\x11", b"\x40\x0a:authority", b"\x00\x0a:authority"] {
        let invalid =
            ["http://127.0.0.1:2379", "#initially=[127.0.0.1:2379]", "/etcd.sock", "a\tb", ""];
        for value in invalid {
            let requests = [request(&literal(kind, value))];
            assert_eq!(served(&requests, 1).await, answered("localhost"), "{kind:x?} {value:?}");
        }
        for value in ["127.0.0.1:2379", "[::1]:2379", "etcd.example.com"] {
            let requests = [request(&literal(kind, value))];
            assert_eq!(served(&requests, 1).await, answered(value), "{kind:x?} {value:?}");
            let bytes = [&PREFACE[..], &requests[0]].concat();
            assert_eq!(filtered(bytes.clone(), 4096).await, bytes, "unchanged");
        }
        // Go's HTTP/2 refuses a control character, too.
        for value in ["a\x01", "a\x7f", "a\nb"] {
            let requests = [request(&literal(kind, value))];
            assert_eq!(served(&requests, 1).await, [None], "{kind:x?} {value:?}");
        }
    }
    // "/index.html" as Huffman code, not UTF-8, the empty one of the static table, and none.
    let coded = b"\x41\x88\x60\xd5\x48\x5f\x2b\xce\x9a\x68";
    for rest in [&coded[..], b"\x41\x02\xff\xfe", b"\x81"] {
        assert_eq!(served(&[request(rest)], 1).await, answered("localhost"), "{rest:x?}");
    }
    assert_eq!(served(&[request(b"")], 1).await, answered(""));
    // grpc-go refuses several ones.
    for rest in [&b"\x81\x81"[..], b"\x41\x01/\xbe", b"\x41\x01a\x81"] {
        assert_eq!(served(&[request(rest)], 1).await, [None], "{rest:x?}");
    }
}

#[tokio::test]
async fn later_requests_refer_to_the_table_of_the_client() {
    let of = |stream: u8, rest: &[u8]| {
        let block = [b"\x83\x86", rest].concat();
        frame_of(stream, HEADERS, END_HEADERS | END_STREAM, &block)
    };
    let requests = [
        // Enters `:path /p` and a valid authority; the bytes pass.
        of(1, b"\x44\x02/p\x41\x01a"),
        // Refers to both, then the empty authority with indexing: 62 is the empty one now.
        of(3, b"\xbf\xbe"),
        of(5, b"\xbf\x41\x00"),
        of(7, b"\xc0\xbe"),
        // The name of entry 62 with a literal, which enters and becomes 62.
        of(9, b"\xc0\x7e\x08http://a"),
        of(11, b"\xc1\xbe"),
        // The valid authority is entry 64, and a new path becomes 62.
        of(13, b"\x44\x02/q\xc1"),
        // A table of no octets, then an index into it: h2 refuses the connection.
        of(15, b"\xbe\xbf"),
    ];
    let entry = |authority: &str, path: &str| Some((authority.to_owned(), path.to_owned()));
    let expected = [
        entry("a", "/p"),
        entry("a", "/p"),
        entry("localhost", "/p"),
        entry("localhost", "/p"),
        entry("localhost", "/p"),
        entry("localhost", "/p"),
        entry("a", "/q"),
        entry("localhost", "/q"),
    ];
    assert_eq!(served(&requests, 8).await, expected);
}

/// After a block that the filter cannot decode, h2 must not resolve an index with its own table.
#[tokio::test]
async fn a_table_that_no_longer_matches_is_never_used() {
    let of = |stream: u8, rest: &[u8]| {
        let block = [b"\x83\x86", rest].concat();
        frame_of(stream, HEADERS, END_HEADERS | END_STREAM, &block)
    };
    // h2 has `:path /p` as entry 63 until the filter empties its table.
    let first = [of(1, b"\x44\x02/p\x41\x01a"), of(3, b"\xbf\x41\x00")].concat();
    // A list over the limit, which passes as it is: 16 010 octets of value, and 60 for each of ten.
    let value = [&b"\x00\x01x\x7f\x8b\x7c"[..], &[b'y'; 16_010]].concat();
    let long = of(5, &[b"\xbf\xbe", &value[..], &[0x90; 10]].concat());
    assert!(long.len() < FRAME_MAX);
    let bytes = [&PREFACE[..], &first, &long].concat();
    let out = filtered(bytes, 4096).await;
    assert!(out.ends_with(&long));
    // h2 ends the connection: it has no such entries.
    let served = served_in_steps(&[(first, 2), (long, 3), (of(7, b"\xbf\xbe"), 4)]).await;
    let entry = |authority: &str| Some((authority.to_owned(), "/p".to_owned()));
    assert_eq!(served, [entry("a"), entry("localhost"), None, None]);
}

#[tokio::test]
async fn blocks_over_several_frames_are_served() {
    let whole = b"\x83\x86\x84\x41\x15http://127.0.0.1:2379\x00\x02te\x08trailers";
    for authority in [&b"http://127.0.0.1:2379"[..], b"aaaaaaaaaaaaaaaaaaaaa"] {
        let mut whole = whole.to_vec();
        whole[5..26].copy_from_slice(authority);
        let expected = match authority {
            [b'a', ..] => answered("aaaaaaaaaaaaaaaaaaaaa"),
            _ => answered("localhost"),
        };
        for cut in 0..whole.len() {
            let (first, second) = whole.split_at(cut);
            let frames = [
                frame(HEADERS, END_STREAM, first),
                frame(CONTINUATION, 0, &[]),
                frame(CONTINUATION, END_HEADERS, second),
            ];
            assert_eq!(served(&frames, 1).await, expected, "{cut}");
        }
        // With padding and priority, the first frame ends in the priority's place.
        let padded = [&[3, 0, 0, 0, 0, 9][..], &whole[..7], &[0, 0, 0]].concat();
        let frames = [
            frame(HEADERS, END_STREAM | PADDED | PRIORITY, &padded),
            frame(CONTINUATION, END_HEADERS, &whole[7..]),
        ];
        assert_eq!(served(&frames, 1).await, expected);
    }
}

#[tokio::test]
async fn the_longest_list_that_h2_accepts_is_served() {
    // The limit minus the octets of the list without its longest value: the pseudo-headers, one of
    // them with `localhost`, and one more field. h2 accepts less than the limit.
    let octets = LIST_MAX - (43 + 43 + 38 + 51 + 33) - 8;
    // `0` has the Huffman code 00000.
    assert_eq!(octets % 8, 0);
    let coded = vec![0; octets * 5 / 8];
    let length = coded.len() - 0x7f;
    let high = u8::try_from(length >> 7).unwrap();
    let length = [0xff, u8::try_from(length & 0x7f | 0x80).unwrap(), high];
    let rest = [b"\x81\x00\x01x".as_slice(), &length, &coded].concat();
    assert_eq!(served(&[request(&rest)], 1).await, answered("localhost"));
    let out = filtered([&PREFACE[..], &request(&rest)].concat(), 4096).await;
    assert!(out.len() > octets && out.len() - PREFACE.len() < FRAME_MAX);
}

#[tokio::test]
async fn invalid_authorities_are_replaced_however_the_frames_are_split() {
    let other = [PREFACE.to_vec(), frame(4, 0, &[]), frame(0, 0, &[7; 70])].concat();
    // Pad length 2, then the priority's five octets.
    let padded = |block: &[u8]| [&[2, 0, 0, 0, 0, 9], block, &[0, 0]].concat();
    let make = |block: &[u8]| {
        let mut out = other.clone();
        out.extend(frame(HEADERS, END_HEADERS, block));
        out.extend(frame(0, 1, b"body"));
        out.extend(frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded(block)));
        out.extend(frame(HEADERS, 0, &block[..4]));
        out.extend(frame(CONTINUATION, END_HEADERS, &block[4..]));
        out.extend(&frame(HEADERS, END_HEADERS, b"cut")[..11]);
        out
    };
    let (invalid, valid) = (block("http://127.0.0.1:2379"), block("127.0.0.1:2379"));
    let mut expected = other.clone();
    expected.extend(frame(HEADERS, END_HEADERS, &[b"\x20", ENCODED].concat()));
    expected.extend(frame(0, 1, b"body"));
    let priority = [b"\0\0\0\0\x09", ENCODED].concat();
    expected.extend(frame(HEADERS, END_HEADERS | PRIORITY, &priority));
    expected.extend(frame(HEADERS, END_HEADERS, ENCODED));
    expected.extend(&frame(HEADERS, END_HEADERS, b"cut")[..11]);
    for piece in [1, 2, 9, 64, 4096] {
        assert_eq!(filtered(make(&invalid), piece).await, expected, "{piece}");
        assert_eq!(filtered(make(&valid), piece).await, make(&valid), "{piece}");
    }
}

#[tokio::test]
async fn invalid_frames_pass_unchanged() {
    let valid = request(&block("http://a")[1..]);
    let rest = &block("http://a");
    let invalid = [
        // A frame between, a CONTINUATION of another stream, and one without a beginning.
        [frame(HEADERS, 0, rest), frame(0, 0, b"x"), frame(CONTINUATION, END_HEADERS, &[])]
            .concat(),
        [frame(HEADERS, 0, rest), frame_of(3, CONTINUATION, END_HEADERS, &[])].concat(),
        [frame(HEADERS, 0, rest), frame(CONTINUATION, 0, &[]).repeat(6)].concat(),
        [frame(HEADERS, 0, &[0; 16_384]), frame(CONTINUATION, END_HEADERS, &[0; 300])].concat(),
        // More padding than there is, no room for a priority, and a frame over the limit.
        frame(HEADERS, END_HEADERS | PADDED, &[9, 0x81]),
        frame(HEADERS, END_HEADERS | PRIORITY, &[0x81; 4]),
        frame(HEADERS, END_HEADERS, &[0x81; 16_385]),
        // Blocks that do not decode.
        frame(HEADERS, END_HEADERS, &[0x81, 0x80]),
        frame(HEADERS, END_HEADERS, &[0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
    ];
    for frames in invalid {
        let sent = [&PREFACE[..], &frames, &valid].concat();
        for piece in [1, 13, 32_768] {
            assert_eq!(filtered(sent.clone(), piece).await, sent, "{:x?}", &frames[..16]);
        }
    }
}

/// Each byte in turn is another one: the pieces that the bytes come in make no difference.
#[tokio::test]
async fn damaged_bytes_are_treated_alike_in_all_pieces() {
    let first = [&b"\x83\x86\x84\x41\x08http://a\x40\x01x\x82\xf1\xe3"[..], b"\x7e\x01y"].concat();
    let sent = [
        &PREFACE[..],
        &frame(HEADERS, 0, &first[..9]),
        &frame(CONTINUATION, END_HEADERS, &first[9..]),
        &frame_of(3, HEADERS, END_HEADERS | PADDED, b"\x01\x83\x86\x84\xbe\xc0\0"),
        &frame(0, 1, b"body"),
    ]
    .concat();
    for at in 0..sent.len() {
        for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            let mut sent = sent.clone();
            sent[at] ^= change;
            let whole = filtered(sent.clone(), sent.len()).await;
            assert_eq!(filtered(sent.clone(), 1).await, whole, "{at} {change}");
            assert_eq!(filtered(sent, 7).await, whole, "{at} {change}");
        }
    }
}

#[tokio::test]
async fn http1_passes_as_it_is() {
    let sent = b"PUT /health HTTP/1.1\r\n\r\n\0\0\x05\x01\x04\0\0\0\0\x41\x03///".to_vec();
    assert_eq!(filtered(sent.clone(), 5).await, sent);
}
