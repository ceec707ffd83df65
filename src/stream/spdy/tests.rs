//! Round trips, recorded bytes, damaged frames, and a client with a server in one process.

use std::time::Duration;

use base::{Shutdown, Tasks};
use bytes::Bytes;

use super::*;

fn frames() -> Vec<Frame> {
    let headers = Headers::of(&[("streamType", "stdin"), ("port", "8080"), ("requestID", "7")]);
    vec![
        Frame::SynStream { id: 1, fin: false, headers: headers.clone() },
        Frame::SynReply { id: 1, fin: true, headers: Headers::default() },
        Frame::Headers { id: 3, fin: false, headers },
        Frame::Reset { id: 5, status: 5 },
        Frame::Settings(vec![(4, 100), (7, 65536)]),
        Frame::Ping(9),
        Frame::GoAway { last: 7, status: 0 },
        Frame::WindowUpdate { id: 1, delta: 65536 },
    ]
}

fn decode(bytes: &[u8], inflater: &mut Inflater) -> Result<Frame, FrameError> {
    let (head, payload) = bytes.split_first_chunk::<8>().unwrap();
    match Head::parse(*head)? {
        Head::Control { kind, flags, length } => {
            assert_eq!(length, payload.len());
            Frame::control(kind, flags, payload, inflater)
        }
        Head::Data { .. } => panic!("a control frame was expected"),
    }
}

#[test]
fn the_dictionary_matches_the_specification() {
    let dictionary = super::headers::dictionary();
    // Length and Adler-32 of the dictionary; zlib identifies it by the latter in each stream.
    assert_eq!(dictionary.len(), 1423);
    let (mut a, mut b) = (1u32, 0u32);
    for byte in dictionary {
        a = (a + u32::from(*byte)) % 65521;
        b = (b + a) % 65521;
    }
    assert_eq!(b << 16 | a, 0xe3c6_a7c2);
}

#[test]
fn control_frames_round_trip() {
    let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
    for frame in frames().into_iter().chain(frames()) {
        let bytes = frame.encode(&mut deflater).unwrap();
        assert_eq!(decode(&bytes, &mut inflater).unwrap(), frame);
    }
}

#[test]
fn fixed_frames_have_the_bytes_of_the_specification() {
    let mut deflater = Deflater::default();
    let mut bytes = |frame: Frame| frame.encode(&mut deflater).unwrap();
    assert_eq!(bytes(Frame::Ping(1)), [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1]);
    assert_eq!(
        bytes(Frame::Reset { id: 3, status: 5 }),
        [0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0, 5]
    );
    let data = Frame::Data { id: 1, fin: true, bytes: Bytes::from_static(b"abc") };
    assert_eq!(bytes(data), [0, 0, 0, 1, 1, 0, 0, 3]);
}

#[test]
fn damaged_frames_are_refused_without_a_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut deflater = Deflater::default();
    let good: Vec<Vec<u8>> = frames().iter().map(|f| f.encode(&mut deflater).unwrap()).collect();
    for _ in 0..20_000 {
        let mut inflater = Inflater::default();
        let mut bytes = good[random() as usize % good.len()].clone();
        for _ in 0..=random() % 4 {
            let at = random() as usize % bytes.len();
            bytes[at] = random() as u8;
        }
        bytes.truncate(8 + random() as usize % bytes.len());
        if let Some((head, payload)) = bytes.split_first_chunk::<8>() {
            if let Ok(Head::Control { kind, flags, .. }) = Head::parse(*head) {
                let _ = Frame::control(kind, flags, payload, &mut inflater);
            }
        }
    }
}

#[test]
fn a_decompression_bomb_in_headers_is_refused() {
    let (mut deflater, mut inflater) = (Deflater::default(), Inflater::default());
    let long = "a".repeat(2 << 20);
    let bytes = deflater.block(&Headers::of(&[("x", &long)])).unwrap();
    assert!(bytes.len() < 64 * 1024);
    assert_eq!(inflater.block(&bytes), Err(FrameError::Headers));
}

#[tokio::test]
async fn streams_copy_in_both_directions_and_half_close() {
    let tasks = Tasks::new(Shutdown::new());
    let (a, b) = tokio::io::duplex(4096);
    let client = Connection::start(a, Role::Client, &tasks);
    let mut server = Connection::start(b, Role::Server, &tasks);
    let payload = Bytes::from(vec![7u8; 300_000]);
    let expected = payload.len();
    let serve = async {
        let mut stream = server.accept().await.unwrap();
        assert_eq!(stream.headers.get("streamtype"), Some("stdin"));
        let mut total = 0;
        while let Some(piece) = stream.read().await {
            total += piece.len();
        }
        stream.write(Bytes::from(total.to_string())).await.unwrap();
        stream.finish().await.unwrap();
        total
    };
    let ask = async {
        let mut stream = client.open(Headers::of(&[("streamType", "stdin")])).await.unwrap();
        stream.write(payload).await.unwrap();
        stream.finish().await.unwrap();
        let answer = stream.read().await.unwrap();
        assert_eq!(stream.read().await, None);
        answer
    };
    let both = tokio::time::timeout(Duration::from_secs(20), futures::future::join(serve, ask));
    let (total, answer) = both.await.unwrap();
    assert_eq!((total, answer.as_ref()), (expected, b"300000".as_ref()));
}

#[tokio::test]
async fn closing_the_connection_closes_its_streams() {
    let tasks = Tasks::new(Shutdown::new());
    let (a, b) = tokio::io::duplex(4096);
    let client = Connection::start(a, Role::Client, &tasks);
    let mut server = Connection::start(b, Role::Server, &tasks);
    let (opened, accepted) =
        futures::future::join(client.open(Headers::default()), server.accept()).await;
    let mut stream = opened.unwrap();
    drop(accepted);
    drop(server);
    assert_eq!(stream.read().await, None);
    assert!(client.open(Headers::default()).await.is_err());
}
