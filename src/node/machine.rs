//! Properties of the machine: processors, memory, kernel, identity, disks and interfaces.

use std::path::Path;

use sorting::CompactSort as _;

/// Properties that do not change while the agent runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Machine {
    pub(crate) cpus: i64,
    /// Bytes.
    pub(crate) memory: i64,
    /// Bytes.
    pub(crate) swap: i64,
    /// Bytes.
    pub(crate) page_size: i64,
    pub(crate) kernel: String,
    pub(crate) os_image: String,
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
}

fn line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Go's name of this architecture, such as `amd64`.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns the huge page sizes of this kernel in bytes and the number of pages of each.
pub(crate) fn huge_pages() -> Vec<(i64, i64)> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let size = name.to_str().and_then(huge_page_size);
        let Some(size) = size else { continue };
        let count = std::fs::read_to_string(entry.path().join("nr_hugepages")).ok();
        out.push((size, count.and_then(|t| t.trim().parse::<i64>().ok()).unwrap_or(0)));
    }
    out.compact_sort();
    out
}

/// Parses the size in a name such as `hugepages-2048kB`.
fn huge_page_size(name: &str) -> Option<i64> {
    let kb = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    kb.parse::<i64>().ok()?.checked_mul(1024).filter(|size| *size > 0)
}

impl Machine {
    /// Reads `/proc`, `/sys` and `/etc`; missing values are empty.
    pub(crate) fn read() -> Self {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = |name: &str| {
            let line = memory.lines().find_map(|l| l.strip_prefix(name));
            line.and_then(|l| l.trim().strip_suffix(" kB"))
                .and_then(|kb| kb.trim().parse::<i64>().ok())
                .map_or(0, |kb| kb.saturating_mul(1024))
        };
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let os_image = release
            .lines()
            .find_map(|l| l.strip_prefix("PRETTY_NAME="))
            .map(|v| v.trim_matches('"').to_owned())
            .unwrap_or_else(|| "Linux".to_owned());
        let machine_id = ["/etc/machine-id", "/var/lib/dbus/machine-id"]
            .iter()
            .map(|p| line(p))
            .find(|id| !id.is_empty())
            .unwrap_or_default();
        let uuid = line("/sys/class/dmi/id/product_uuid");
        Self {
            cpus: std::thread::available_parallelism()
                .map_or(1, |n| i64::try_from(n.get()).unwrap_or(1)),
            memory: total("MemTotal:"),
            swap: total("SwapTotal:"),
            page_size: page_size(),
            kernel: line("/proc/sys/kernel/osrelease"),
            os_image,
            system_uuid: if uuid.is_empty() { machine_id.clone() } else { uuid },
            machine_id,
            boot_id: line("/proc/sys/kernel/random/boot_id"),
        }
    }
}

/// Bytes of a page of memory.
fn page_size() -> i64 {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    // `c_long` has 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    size.map_or(4096, i64::from)
}

/// A file system: its bytes and inodes, and those free for unprivileged users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) size: u64,
    pub(crate) free: u64,
    /// Used bytes; the blocks reserved for root are neither used nor free.
    pub(crate) used: u64,
    /// Zero if the file system has no fixed number.
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

/// Returns the file system of `path`.
pub(crate) fn disk(path: &Path) -> Option<Disk> {
    let stat = nix::sys::statvfs::statvfs(path).ok()?;
    let unit = stat.fragment_size();
    Some(Disk {
        size: stat.blocks().saturating_mul(unit),
        free: stat.blocks_available().saturating_mul(unit),
        used: stat.blocks().saturating_sub(stat.blocks_free()).saturating_mul(unit),
        inodes: stat.files(),
        inodes_free: stat.files_available(),
    })
}

/// Bytes of memory available without swapping; `None` if the kernel does not report it.
pub(crate) fn memory_available() -> Option<i64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kb: i64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kb.saturating_mul(1024))
}

/// Processes and threads of the machine: how many there may be, and how many there are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessCounts {
    pub(crate) max: Option<u64>,
    pub(crate) running: Option<u64>,
}

impl ProcessCounts {
    /// Reads `/proc`.
    pub(crate) fn read() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::parse(
            &read("/proc/sys/kernel/pid_max"),
            &read("/proc/sys/kernel/threads-max"),
            &read("/proc/loadavg"),
        )
    }

    /// Parses the texts of `/proc/sys/kernel/pid_max`, `threads-max` and `/proc/loadavg`.
    pub(crate) fn parse(pid_max: &str, threads_max: &str, loadavg: &str) -> Self {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let of_load = loadavg.split_whitespace().nth(3).and_then(|f| f.split_once('/'));
        Self {
            max: number(pid_max).into_iter().chain(number(threads_max)).min(),
            running: of_load.and_then(|(_, total)| number(total)),
        }
    }
}

/// Memory and page faults of the whole machine, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryUsage {
    pub(crate) usage: u64,
    pub(crate) rss: u64,
    pub(crate) page_faults: u64,
    pub(crate) major_page_faults: u64,
    pub(crate) swap_total: u64,
    pub(crate) swap_free: u64,
}

/// Parses the texts of `/proc/meminfo` and `/proc/vmstat`.
pub(crate) fn memory_usage(meminfo: &str, vmstat: &str) -> MemoryUsage {
    let of = |text: &str, name: &str| {
        text.lines()
            .find_map(|l| l.strip_prefix(name)?.split_whitespace().next()?.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let bytes = |name: &str| of(meminfo, name).saturating_mul(1024);
    MemoryUsage {
        usage: bytes("MemTotal:").saturating_sub(bytes("MemFree:")),
        rss: bytes("AnonPages:"),
        page_faults: of(vmstat, "pgfault "),
        major_page_faults: of(vmstat, "pgmajfault "),
        swap_total: bytes("SwapTotal:"),
        swap_free: bytes("SwapFree:"),
    }
}

/// Counters of a network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) rx_bytes: u64,
    pub(crate) rx_packets: u64,
    pub(crate) rx_errors: u64,
    pub(crate) rx_dropped: u64,
    pub(crate) tx_bytes: u64,
    pub(crate) tx_packets: u64,
    pub(crate) tx_errors: u64,
    pub(crate) tx_dropped: u64,
}

/// Parses `/proc/net/dev`, without the loopback and the host's ends of pod interfaces.
pub(crate) fn interfaces(text: &str) -> Vec<Interface> {
    let interface = |line: &str| {
        let (name, counters) = line.split_once(':')?;
        let name = name.trim();
        let counters: Vec<u64> =
            counters.split_whitespace().map_while(|c| c.parse().ok()).collect();
        let ignored = ["lo", "veth", "docker"].iter().any(|prefix| name.starts_with(prefix));
        let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, ref sent @ ..] = *counters
        else {
            return None;
        };
        let [tx_bytes, tx_packets, tx_errors, tx_dropped, ..] = *sent else { return None };
        (!ignored).then(|| Interface {
            name: name.to_owned(),
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
        })
    };
    text.lines().filter_map(interface).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_page_sizes_are_parsed_from_kernel_names() {
        assert_eq!(huge_page_size("hugepages-2048kB"), Some(2 << 20));
        assert_eq!(huge_page_size("hugepages-64kB"), Some(64 << 10));
        assert_eq!(huge_page_size("hugepages-1048576kB"), Some(1 << 30));
        assert_eq!((huge_page_size("hugepages-0kB"), huge_page_size("x")), (None, None));
    }

    #[test]
    fn memory_and_page_faults_are_parsed() {
        let meminfo =
            "MemTotal: 100 kB\nMemFree: 40 kB\nAnonPages: 7 kB\nSwapTotal: 3 kB\nSwapFree: 2 kB\n";
        let usage = memory_usage(meminfo, "pgfault 9\npgmajfault 4\n");
        let expected = MemoryUsage {
            usage: 60 * 1024,
            rss: 7 * 1024,
            page_faults: 9,
            major_page_faults: 4,
            swap_total: 3 * 1024,
            swap_free: 2 * 1024,
        };
        assert_eq!(usage, expected);
    }

    #[test]
    fn interfaces_exclude_loopback_and_pod_interfaces() {
        let text = "Inter-|   Receive |  Transmit\n face |bytes packets errs\n\
            lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 3 0 0 0 0 0 20 4 5 0 0 0 0 0\n\
            veth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        let eth0 = Interface {
            name: "eth0".to_owned(),
            rx_bytes: 10,
            rx_packets: 2,
            rx_errors: 3,
            rx_dropped: 0,
            tx_bytes: 20,
            tx_packets: 4,
            tx_errors: 5,
            tx_dropped: 0,
        };
        assert_eq!(interfaces(text), [eth0]);
    }
}
