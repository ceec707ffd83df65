//! WebSocket that clients of exec and attach send: a connection of any bytes ends, and no message
//! is larger than allowed.
#![no_main]

use http::{HeaderMap, HeaderValue, header};
use stream::websocket::{self, Input};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut headers = HeaderMap::new();
    if let Ok(offer) = HeaderValue::from_bytes(bytes) {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, offer.clone());
        headers.insert(header::SEC_WEBSOCKET_KEY, offer);
        headers.insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        let _ = (websocket::one_stream(&headers), websocket::accept(&headers, websocket::V5));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
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
            let (mut sender, mut receiver) = websocket::server(ours).await;
            while let Some(message) = receiver.next().await {
                assert!(message.len() <= 1 << 20, "{} bytes", message.len());
                if let Ok(Some(Input::Stdin(bytes) | Input::Resize(bytes))) =
                    websocket::input(&message)
                {
                    assert_eq!(bytes.len() + 1, message.len());
                }
            }
            sender.close().await;
            drop((sender, receiver));
        };
        let all = async { tokio::join!(client, drain, server) };
        tokio::time::timeout(std::time::Duration::from_secs(5), all)
            .await
            .expect("a connection ends");
    });
});
