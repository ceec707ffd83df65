//! Why this process is asked to end: it stops and pods go on, or the machine is switched off and pods end with it.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// systemd is asked this long; then it is a stop of this process alone. It answers within milliseconds, but on a slow machine that ends
/// everything at once the program that asks needs seconds to start, and pods would not get their time.
const ASK_MAX: Duration = Duration::from_secs(20);

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// This process stops, pods go on.
    Stop,
    /// The machine is switched off.
    PowerOff,
}

/// Waits for SIGTERM, SIGINT, or SIGPWR, which says by itself that the machine is switched off.
pub(crate) async fn asked_to_end() -> End {
    let of = |kind| signal(kind);
    let (Ok(mut terminate), Ok(mut interrupt), Ok(mut power)) = (
        of(SignalKind::terminate()),
        of(SignalKind::interrupt()),
        of(SignalKind::from_raw(nix::libc::SIGPWR)),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => return End::Stop,
        _ = power.recv() => return End::PowerOff,
    }
    if machine_goes_down().await { End::PowerOff } else { End::Stop }
}

/// Whether the service manager is about to switch the machine off.
async fn machine_goes_down() -> bool {
    if Path::new("/run/systemd/system").is_dir() {
        let asked = Command::new("systemctl").arg("is-system-running").kill_on_drop(true).output();
        let answer = tokio::time::timeout(ASK_MAX, asked).await;
        return answer.is_ok_and(|a| a.is_ok_and(|o| is_stopping(&o.stdout)));
    }
    let level = std::fs::read("/run/openrc/softlevel");
    level.is_ok_and(|level| is_off(&level))
}

fn is_stopping(answer: &[u8]) -> bool {
    answer.trim_ascii() == b"stopping"
}

/// OpenRC's run levels in which a machine ends.
fn is_off(level: &[u8]) -> bool {
    matches!(level.trim_ascii(), b"shutdown" | b"reboot")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_machine_ends_pods() {
        assert!(is_stopping(b"stopping\n") && !is_stopping(b"running\n") && !is_stopping(b""));
        assert!(is_off(b"shutdown\n") && is_off(b"reboot") && !is_off(b"default\n"));
    }
}
