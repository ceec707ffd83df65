//! The request of the service manager or of the keyboard to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Resolves at SIGTERM or SIGINT.
pub(crate) async fn stop_requested() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
