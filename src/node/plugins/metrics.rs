//! The number of plugins by socket, as in the kubelet.

use std::fmt::Write as _;

use parking_lot::Mutex;

const NAME: &str = "plugin_manager_total_plugins";
const HELP: &str = "[ALPHA] Number of plugins in Plugin Manager";

/// A socket path with its states that apply.
pub(super) type SocketStates = (String, [Option<&'static str>; 2]);

/// The plugin is registered.
pub(super) const REGISTERED: &str = "actual_state_of_world";
/// The socket exists.
pub(super) const PRESENT: &str = "desired_state_of_world";

/// The sockets as last counted, sorted.
static SOCKETS: Mutex<Vec<SocketStates>> = Mutex::new(Vec::new());

/// Replaces the counted sockets, which are sorted by path.
pub(super) fn set(sockets: Vec<SocketStates>) {
    *SOCKETS.lock() = sockets;
}

/// Renders the metric in the Prometheus text format.
pub(crate) fn render() -> String {
    text(&SOCKETS.lock())
}

pub(super) fn text(sockets: &[SocketStates]) -> String {
    let mut out = String::new();
    for (path, states) in sockets {
        for state in states.iter().flatten() {
            // Writing to a string cannot fail. A quoted path escapes as the format does.
            let _ = writeln!(out, "{NAME}{{socket_path={path:?},state=\"{state}\"}} 1");
        }
    }
    if out.is_empty() {
        return out;
    }
    let mut head = String::new();
    base::metrics::head(&mut head, NAME, "gauge", HELP);
    head + &out
}
