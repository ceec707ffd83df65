//! SPDY that clients of exec, attach and port-forward send. Frames that are read are the same when
//! they were written and read again; a session of any bytes ends.
#![no_main]

use base::{Shutdown, Tasks};
use libfuzzer_sys::fuzz_target;
use stream::spdy::{Connection, Deflater, Frame, Head, Headers, Inflater, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fuzz_target!(|bytes: &[u8]| {
    frames(bytes);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(session(bytes));
});

fn frames(mut bytes: &[u8]) {
    let (mut inflater, mut deflater, mut back) =
        (Inflater::default(), Deflater::default(), Inflater::default());
    while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
        let Ok(head) = Head::parse(*head) else { return };
        let (Head::Data { length, .. } | Head::Control { length, .. }) = head;
        let Some((payload, rest)) = rest.split_at_checked(length) else { return };
        bytes = rest;
        let Head::Control { kind, flags, .. } = head else { continue };
        let Ok(frame) = Frame::control(kind, flags, payload, &mut inflater) else { return };
        let Ok(written) = frame.encode(&mut deflater) else { continue };
        let Some((head, payload)) = written.split_first_chunk::<8>() else { panic!("no head") };
        // What was read within the bound of compressed bytes may be beyond it when it is compressed
        // less well.
        let Ok(Head::Control { kind, flags, length }) = Head::parse(*head) else { return };
        assert_eq!(length, payload.len());
        let again = Frame::control(kind, flags, payload, &mut back).expect("our own frame");
        assert_eq!(again, lower(frame));
    }
}

/// Names are written in lower case.
fn lower(mut frame: Frame) -> Frame {
    if let Frame::SynStream { headers, .. }
    | Frame::SynReply { headers, .. }
    | Frame::Headers { headers, .. } = &mut frame
    {
        let pairs: Vec<_> = headers.0.drain(..).map(|(k, v)| (k.to_ascii_lowercase(), v)).collect();
        *headers = Headers(pairs);
    }
    frame
}

/// A server that takes whatever is opened, reads it and answers each piece.
async fn session(bytes: &[u8]) {
    let tasks = Tasks::new(Shutdown::new());
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let mut connection = Connection::start(ours, Role::Server, &tasks);
    let (mut read, mut write) = tokio::io::split(theirs);
    let client = async {
        let _ = write.write_all(bytes).await;
        let _ = write.shutdown().await;
    };
    let drain = async {
        let mut sink = [0; 4096];
        while read.read(&mut sink).await.is_ok_and(|n| n > 0) {}
    };
    let server = async {
        while let Some(mut stream) = connection.accept().await {
            while let Some(piece) = stream.read().await {
                if stream.write(piece).await.is_err() {
                    break;
                }
            }
        }
        drop(connection);
    };
    let all = async { tokio::join!(client, drain, server) };
    tokio::time::timeout(std::time::Duration::from_secs(5), all).await.expect("a session ends");
    tasks.shutdown().request();
}
