//! The part of the page about the machine (`metrics/prometheus_machine.go`), and the results of
//! the measurements.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use super::escaped;
use crate::machine::Machine;
use crate::resource_managers::cpu_topology::Level;
use crate::resource_managers::machine_topology::MachineTopology;

/// A metric of the machine.
struct MachineMetric {
    name: &'static str,
    help: &'static str,
    /// Name and value of a further label.
    label: Option<(&'static str, &'static str)>,
    value: u64,
}

const fn metric(name: &'static str, help: &'static str, value: u64) -> MachineMetric {
    MachineMetric { name, help, label: None, value }
}

/// Parts of the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) cores: u64,
    pub(super) sockets: u64,
}

/// Cores and sockets, which need several files for each CPU.
static CPUS: OnceLock<(u64, u64)> = OnceLock::new();

impl Parts {
    /// Reads the parts of this machine; what cannot be read is zero. CPUs are read once.
    pub(super) fn read() -> Self {
        let (cores, sockets) = *CPUS.get_or_init(|| {
            let topology = MachineTopology::read(Path::new("/sys")).unwrap_or_default();
            let count = |level| u64::try_from(topology.cpus.count(level)).unwrap_or_default();
            (count(Level::Core), count(Level::Socket))
        });
        Self { cores, sockets }
    }
}

/// Writes the metrics. There are neither books and drawers, which are parts of s390x, nor modules
/// of non-volatile memory, for which cAdvisor needs a library of Intel: they are zero there, too.
pub(super) fn write(out: &mut String, machine: &Machine, parts: Parts) {
    let number = |value: i64| u64::try_from(value).unwrap_or_default();
    let nvm = |mode| MachineMetric {
        label: Some(("mode", mode)),
        ..metric("machine_nvm_capacity", NVM_HELP, 0)
    };
    let metrics = [
        metric("machine_cpu_books", "Number of CPU books.", 0),
        metric("machine_cpu_cores", "Number of logical CPU cores.", number(machine.cpus)),
        metric("machine_cpu_drawers", "Number of CPU drawers.", 0),
        metric("machine_cpu_physical_cores", "Number of physical CPU cores.", parts.cores),
        metric("machine_cpu_sockets", "Number of CPU sockets.", parts.sockets),
        metric(
            "machine_memory_bytes",
            "Amount of memory installed on the machine.",
            number(machine.memory),
        ),
        metric("machine_nvm_avg_power_budget_watts", "NVM power budget.", 0),
        nvm("app_direct_mode"),
        nvm("memory_mode"),
        metric(
            "machine_swap_bytes",
            "Amount of swap memory available on the machine.",
            number(machine.swap),
        ),
    ];
    let _ = write!(
        out,
        "# HELP {VERSION} {VERSION_HELP}\n# TYPE {VERSION} gauge\n{VERSION}{{cadvisorRevision=\"\",\
         cadvisorVersion=\"\",dockerVersion=\"\",kernelVersion=\"{}\",osVersion=\"{}\"}} 1\n",
        escaped(&machine.kernel),
        escaped(&machine.os_image)
    );
    write_result(out, "container_scrape_error", "getting container metrics, 0 otherwise");
    let mut last = "";
    for MachineMetric { name, help, label, value } in metrics {
        if name != last {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n");
        }
        last = name;
        let further = label.map(|(name, value)| format!("{name}=\"{value}\",")).unwrap_or_default();
        let _ = writeln!(
            out,
            "{name}{{boot_id=\"{}\",machine_id=\"{}\",{further}system_uuid=\"{}\"}} {value}",
            escaped(&machine.boot_id),
            escaped(&machine.machine_id),
            escaped(&machine.system_uuid)
        );
    }
    write_result(out, "machine_scrape_error", "getting machine metrics, 0 otherwise.");
}

const VERSION: &str = "cadvisor_version_info";
const VERSION_HELP: &str = "A metric with a constant '1' value labeled by kernel version, OS version, docker version, \
     cadvisor version & cadvisor revision.";
const NVM_HELP: &str = "NVM capacity value labeled by NVM mode (memory mode or app direct mode).";

/// Writes that a measurement has succeeded.
fn write_result(out: &mut String, name: &str, what: &str) {
    let help = format!("1 if there was an error while {what}");
    let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} 0\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_the_families_of_cadvisor() {
        let machine = Machine {
            cpus: 4,
            memory: 1024,
            swap: 5,
            page_size: 4096,
            kernel: "6.1".into(),
            os_image: "Debian".into(),
            boot_id: "b".into(),
            machine_id: "m".into(),
            system_uuid: "s".into(),
        };
        let mut out = String::new();
        write(&mut out, &machine, Parts { cores: 2, sockets: 1 });
        for line in [
            "machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} 4\n",
            "machine_cpu_physical_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} 2\n",
            "machine_swap_bytes{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} 5\n",
            "{boot_id=\"b\",machine_id=\"m\",mode=\"memory_mode\",system_uuid=\"s\"} 0\n",
            "dockerVersion=\"\",kernelVersion=\"6.1\",osVersion=\"Debian\"} 1\n",
            "container_scrape_error 0\n",
            "machine_scrape_error 0\n",
        ] {
            assert!(out.contains(line), "{line}: {out}");
        }
        assert_eq!(out.matches("# TYPE machine_nvm_capacity gauge\n").count(), 1);
    }
}
