//! The system containers `kubelet` and `runtime`: one process each, since both may be in one
//! cgroup.

use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

use crate::cgroups::{Cgroups, GroupUsage};

/// Nanoseconds per clock tick of `/proc/PID/stat`: the kernel's `USER_HZ` is 100 on every
/// architecture.
const TICK: u64 = 10_000_000;

/// One process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Process {
    /// Start time in nanoseconds since the epoch.
    pub(super) started: i64,
    pub(super) usage: GroupUsage,
}

impl Process {
    /// Reads a process, with the pressure of its cgroup.
    pub(super) fn read(pid: u32, booted: i64, cgroups: &Cgroups) -> Option<Self> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok();
        let mut process = Self::parse(&read("stat")?, &read("status")?, booted)?;
        let groups = read("cgroup").unwrap_or_default();
        if let Some(group) = groups.lines().find_map(|l| l.strip_prefix("0::")) {
            process.usage.pressure = cgroups.pressure(group);
        }
        Some(process)
    }

    fn parse(stat: &str, status: &str, booted: i64) -> Option<Self> {
        // The process name, in parentheses, may contain blanks and parentheses; fields after it are
        // counted from 3.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |n: usize| fields.get(n.checked_sub(3)?)?.parse::<u64>().ok();
        let bytes = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let resident = bytes("VmRSS:")?;
        let after_boot = i64::try_from(field(22)?.saturating_mul(TICK)).ok()?;
        Some(Self {
            started: booted.saturating_add(after_boot),
            usage: GroupUsage {
                cpu_ns: field(14)?.saturating_add(field(15)?).saturating_mul(TICK),
                usage: resident,
                working_set: resident,
                rss: bytes("RssAnon:").unwrap_or(resident),
                page_faults: field(10)?.saturating_add(field(12)?),
                major_page_faults: field(12)?,
                swap: bytes("VmSwap:"),
                ..GroupUsage::default()
            },
        })
    }
}

/// Returns the process that listens on a socket; `None` if it is in another PID namespace.
pub(super) fn listener(socket: &Path) -> Option<u32> {
    let stream = UnixStream::connect(socket).ok()?;
    let peer = getsockopt(&stream, PeerCredentials).ok()?;
    u32::try_from(peer.pid()).ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_parsed_from_its_files() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194560 1500 0 3 0 20 30 0 0 20 0 5 0 500 1 2 3";
        let status = "VmRSS:\t  2048 kB\nRssAnon:\t  1024 kB\nVmSwap:\t     4 kB\n";
        let process = Process::parse(stat, status, 1_000_000_000).unwrap();
        assert_eq!(process.started, 6_000_000_000);
        let usage = process.usage;
        assert_eq!(
            (usage.cpu_ns, usage.page_faults, usage.major_page_faults),
            (500_000_000, 1503, 3)
        );
        assert_eq!((usage.usage, usage.rss, usage.swap), (2 << 20, 1 << 20, Some(4096)));
        // A kernel thread has no memory.
        assert_eq!(Process::parse(stat, "", 0), None);
    }

    #[test]
    fn the_listening_process_of_a_socket_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        assert_eq!(listener(&path), Some(std::process::id()));
        assert_eq!(listener(&folder.path().join("none")), None);
    }
}
