//! The reason for the end of this process: only the process stops and pods keep running, or the
//! machine shuts down and pods terminate.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// Timeout of the query to systemd, after which only the process stops. systemd answers within
/// milliseconds, but `systemctl` needs seconds to start on a slow machine that stops all its
/// services at once.
const QUERY_TIMEOUT: Duration = Duration::from_secs(20);

/// The reason for the end of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// Only this process stops; pods keep running.
    Stop,
    /// The machine shuts down.
    PowerOff,
}

/// Waits for SIGTERM, SIGINT or SIGPWR. SIGPWR means that the machine shuts down; for SIGTERM the
/// service manager is queried.
pub(crate) async fn wait_for_signal() -> EndReason {
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut power)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
        signal(SignalKind::from_raw(nix::libc::SIGPWR)),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => return EndReason::Stop,
        _ = power.recv() => return EndReason::PowerOff,
    }
    if is_machine_stopping().await { EndReason::PowerOff } else { EndReason::Stop }
}

/// Whether the service manager is shutting the machine down.
async fn is_machine_stopping() -> bool {
    if Path::new("/run/systemd/system").is_dir() {
        let query = Command::new("systemctl").arg("is-system-running").kill_on_drop(true).output();
        let answer = tokio::time::timeout(QUERY_TIMEOUT, query).await;
        return answer.is_ok_and(|a| a.is_ok_and(|o| is_stopping(&o.stdout)));
    }
    let level = std::fs::read("/run/openrc/softlevel");
    level.is_ok_and(|level| is_stopping_runlevel(&level))
}

fn is_stopping(answer: &[u8]) -> bool {
    answer.trim_ascii() == b"stopping"
}

/// Whether this is a run level of OpenRC in which the machine stops.
fn is_stopping_runlevel(level: &[u8]) -> bool {
    matches!(level.trim_ascii(), b"shutdown" | b"reboot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_machine_shutdown_is_a_power_off() {
        assert!(is_stopping(b"stopping\n") && !is_stopping(b"running\n") && !is_stopping(b""));
        assert!(
            is_stopping_runlevel(b"shutdown\n")
                && is_stopping_runlevel(b"reboot")
                && !is_stopping_runlevel(b"default\n")
        );
    }
}
