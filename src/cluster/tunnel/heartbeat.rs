//! The heartbeat stream: each end writes a byte per interval and discards received bytes.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::MissedTickBehavior;

/// Sends heartbeats until the stream ends.
pub(super) async fn send_heartbeats(io: impl AsyncRead + AsyncWrite, interval: Duration) {
    let (mut reader, mut writer) = tokio::io::split(io);
    let write = async {
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if writer.write_all(b".").await.is_err() || writer.flush().await.is_err() {
                return;
            }
        }
    };
    let read = async {
        let mut bytes = [0; 64];
        while reader.read(&mut bytes).await.is_ok_and(|n| n > 0) {}
    };
    tokio::select! {
        () = write => {}
        () = read => {}
    }
}
