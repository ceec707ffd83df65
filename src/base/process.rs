//! Metrics of this process with the names of Prometheus' client libraries, from `/proc`.

/// A metric.
#[derive(Debug)]
pub struct Figure {
    /// Name of the family, which has this one series.
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// HELP text.
    pub help: &'static str,
    /// Value in text format.
    pub value: String,
}

/// `/proc` ticks per second on every supported Linux architecture (`USER_HZ`).
const TICKS: u64 = 100;

/// All metrics, sorted by name; an unreadable value is 0.
pub fn figures() -> [Figure; 9] {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (status, stat) = (read("/proc/self/status"), read("/proc/self/stat"));
    let bytes = |key| (number_behind(&status, key) * 1024).to_string();
    let limits = read("/proc/self/limits");
    let [received, sent] = octets(&read("/proc/self/net/netstat"));
    // utime, stime and starttime of proc_pid_stat(5).
    let ticks = field(&stat, 14) + field(&stat, 15);
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let figure = |name, kind, help, value| Figure { name, kind, help, value };
    [
        figure(
            "process_cpu_seconds_total",
            "counter",
            "CPU time used, in seconds.",
            format!("{}.{:02}", ticks / TICKS, ticks % TICKS),
        ),
        figure(
            "process_max_fds",
            "gauge",
            "Most file descriptors.",
            limit(&limits, "Max open files"),
        ),
        figure(
            "process_network_receive_bytes_total",
            "counter",
            "Bytes received, of the namespace.",
            received.to_string(),
        ),
        figure(
            "process_network_transmit_bytes_total",
            "counter",
            "Bytes sent, of the namespace.",
            sent.to_string(),
        ),
        figure("process_open_fds", "gauge", "Open file descriptors.", open.to_string()),
        figure("process_resident_memory_bytes", "gauge", "Resident memory.", bytes("VmRSS:")),
        figure(
            "process_start_time_seconds",
            "gauge",
            "Start of the process, in seconds since the epoch.",
            started_at(&stat, &read("/proc/stat")).to_string(),
        ),
        figure("process_virtual_memory_bytes", "gauge", "Virtual memory.", bytes("VmSize:")),
        figure(
            "process_virtual_memory_max_bytes",
            "gauge",
            "Most virtual memory.",
            limit(&limits, "Max address space"),
        ),
    ]
}

/// The start of this process in seconds since the epoch; 0 if `/proc` cannot be read.
pub fn started() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    started_at(&read("/proc/self/stat"), &read("/proc/stat"))
}

/// The start of a process, from its `stat` file and that of the machine.
fn started_at(stat: &str, machine: &str) -> u64 {
    number_behind(machine, "btime") + field(stat, 22) / TICKS
}

/// A field of `/proc/self/stat`, numbered from 1 as in its manual; the second one, the program's
/// name, may contain spaces.
fn field(stat: &str, number: usize) -> u64 {
    let behind = stat.rsplit(") ").next().unwrap_or_default();
    let found = number.checked_sub(3).and_then(|at| behind.split(' ').nth(at));
    found.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The number in the first line with this prefix.
fn number_behind(text: &str, begin: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(begin));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn limit(limits: &str, name: &str) -> String {
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    match line.and_then(|line| line.split_whitespace().next()) {
        None | Some("unlimited") => "1.8446744073709552e+19".to_owned(),
        Some(number) => number.to_owned(),
    }
}

/// `InOctets` and `OutOctets` of `/proc/self/net/netstat`, which has pairs of lines with names and
/// values.
fn octets(netstat: &str) -> [u64; 2] {
    let mut lines = netstat.lines().filter(|line| line.starts_with("IpExt:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else { return [0; 2] };
    ["InOctets", "OutOctets"].map(|wanted| {
        let mut pairs = names.split(' ').zip(values.split(' '));
        let found = pairs.find(|(name, _)| *name == wanted);
        found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_found_by_their_name() {
        let text = "TcpExt: A B\nTcpExt: 1 2\nIpExt: X InOctets OutOctets\nIpExt: 1 20 30\n";
        assert_eq!(octets(text), [20, 30]);
        assert_eq!(octets(""), [0, 0]);
    }

    #[test]
    fn fields_and_limits_are_read_as_their_manual_counts_them() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194560 1 0 0 0 250 31 0 0 20 0 1 0 8812 900 80\n";
        assert_eq!([14, 15, 22, 99, 0].map(|number| field(stat, number)), [250, 31, 8812, 0, 0]);
        assert_eq!(number_behind("Name:\ta\nVmRSS:\t    1234 kB\n", "VmRSS:"), 1234);
        assert_eq!(
            limit("Max open files            1024                 4096  files\n", "Max open files"),
            "1024"
        );
        assert_eq!(
            limit("Max address space         unlimited  unlimited\n", "Max address space"),
            "1.8446744073709552e+19"
        );
    }

    #[test]
    fn this_process_has_figures() {
        let figures = figures();
        let of = |name| -> f64 {
            let figure = figures.iter().find(|figure| figure.name == name).unwrap();
            figure.value.parse().unwrap()
        };
        assert!(of("process_resident_memory_bytes") > 500_000.0);
        assert!(of("process_open_fds") >= 3.0);
        let start: u64 = figures[6].value.parse().unwrap();
        assert_eq!((figures[6].name, start), ("process_start_time_seconds", started()));
        let age = crate::clock::unix_time().as_secs_f64() - of("process_start_time_seconds");
        assert!((-2.0..86_400.0).contains(&age), "{age} s old");
        assert!(figures.is_sorted_by_key(|figure| figure.name));
    }
}
