//! NUMA nodes of the machine with their CPUs, memory and distances, from `/sys`. The rules are
//! those of cadvisor (`utils/sysinfo`) and of the kubelet's discovery of CPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use super::cpu_set::CpuSet;
use super::cpu_topology::{CpuDetails, CpuPlace, CpuTopology};
use super::numa_mask::{NODES_MAX, NumaMask};

/// Caches above this level may be shared by several cores.
const CORE_CACHE_LEVEL: u32 = 2;
/// Indexes of caches that are read for each core: more than any processor has.
const CACHES_MAX: usize = 16;

/// Why the topology of the machine is not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TopologyError {
    #[error("could not detect number of cpus")]
    NoCpus,
    /// The number of a node is beyond what a mask of nodes holds.
    #[error("NUMA node {0} has a number above {max}", max = NODES_MAX - 1)]
    NodeNumber(usize),
    #[error("cannot read {path}: {source}")]
    Read { path: String, source: io::Error },
}

/// A NUMA node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NumaNode {
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Number of huge pages by their size in bytes.
    pub(crate) huge_pages: BTreeMap<u64, u64>,
    /// Distances to the nodes of the machine, in their order; empty if they are not known.
    pub(crate) distances: Vec<u64>,
}

/// The machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MachineTopology {
    pub(crate) cpus: CpuTopology,
    pub(crate) nodes: BTreeMap<usize, NumaNode>,
}

impl MachineTopology {
    /// Reads the topology below `sys`, which is `/sys`. A machine without NUMA nodes has one for
    /// each socket, without memory.
    ///
    /// # Errors
    ///
    /// A folder cannot be read, no CPU is online, or a node has too high a number.
    pub(crate) fn read(sys: &Path) -> Result<Self, TopologyError> {
        let folder = sys.join("devices/system/cpu");
        let all: Vec<usize> = numbered(&folder, "cpu")?;
        let folder_of_nodes = sys.join("devices/system/node");
        let numbers =
            if folder_of_nodes.is_dir() { numbered(&folder_of_nodes, "node")? } else { Vec::new() };
        let mut out = Self::default();
        for number in &numbers {
            if *number >= NODES_MAX {
                return Err(TopologyError::NodeNumber(*number));
            }
            let path = folder_of_nodes.join(format!("node{number}"));
            out.nodes.insert(*number, read_node(&path));
            out.add_cpus(&folder, &numbered(&path, "cpu")?, Some(*number));
        }
        if numbers.is_empty() {
            out.add_cpus(&folder, &all, None);
            for place in out.cpus.details.0.values() {
                out.nodes.entry(place.numa).or_default();
            }
        }
        if out.cpus.details.0.is_empty() {
            return Err(TopologyError::NoCpus);
        }
        match out.nodes.keys().find(|number| **number >= NODES_MAX) {
            Some(number) => Err(TopologyError::NodeNumber(*number)),
            None => Ok(out),
        }
    }

    /// The mask of all nodes.
    pub(crate) fn all_nodes(&self) -> NumaMask {
        NumaMask::new(self.nodes.keys().copied())
    }

    /// The numbers of all nodes.
    pub(crate) fn node_numbers(&self) -> Vec<usize> {
        self.nodes.keys().copied().collect()
    }

    /// Adds the CPUs of one node that are online; without a node the socket is the node.
    fn add_cpus(&mut self, folder: &Path, numbers: &[usize], node: Option<usize>) {
        // Threads by socket and number of the core.
        let mut cores: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        for cpu in numbers {
            let path = folder.join(format!("cpu{cpu}"));
            // The first CPU has no such file where it cannot be taken offline.
            let is_offline = number(&path.join("online")) == Some(0);
            let socket = number(&path.join("topology/physical_package_id"));
            let core = number(&path.join("topology/core_id"));
            if let (false, Some(socket), Some(core)) = (is_offline, socket, core) {
                cores.entry((socket, core)).or_default().push(*cpu);
            }
        }
        let mut sizes: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        for (socket, _) in cores.keys() {
            *sizes.entry(node.or(Some(*socket))).or_default() += 1;
        }
        for ((socket, _), threads) in cores {
            let numa = node.unwrap_or(socket);
            let on_node = sizes.get(&Some(numa)).copied().unwrap_or_default() * threads.len();
            let Some(core) = threads.iter().min().copied() else { continue };
            let cache = shared_cache(&folder.join(format!("cpu{core}")), on_node);
            let uncore = cache.unwrap_or(socket);
            for cpu in threads {
                self.cpus.details.0.insert(cpu, CpuPlace { numa, socket, core, uncore });
            }
        }
    }
}

/// The numbers in the names of entries such as `cpu12`, sorted.
fn numbered(folder: &Path, prefix: &str) -> Result<Vec<usize>, TopologyError> {
    let error = |source| TopologyError::Read { path: folder.display().to_string(), source };
    let mut out = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        let number: Option<usize> =
            name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        out.extend(number);
    }
    Ok(out.into_iter().collect())
}

fn number(path: &Path) -> Option<usize> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number of the first cache that a core shares with a part of its node of `on_node` CPUs.
fn shared_cache(cpu: &Path, on_node: usize) -> Option<usize> {
    let of = |index: usize| {
        let path = cpu.join(format!("cache/index{index}"));
        let level = number(&path.join("level")).and_then(|level| u32::try_from(level).ok())?;
        let list = std::fs::read_to_string(path.join("shared_cpu_list")).ok()?;
        let shared = CpuSet::parse(list.trim()).ok()?.len();
        let is_shared = level > CORE_CACHE_LEVEL && shared != on_node;
        number(&path.join("id")).filter(|_| is_shared)
    };
    (0..CACHES_MAX).find_map(of)
}

/// Reads memory, huge pages and distances; what is missing is empty.
fn read_node(path: &Path) -> NumaNode {
    let text = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let meminfo = text("meminfo");
    let total = meminfo.lines().find_map(|line| line.split_once("MemTotal:"));
    let kb = total.and_then(|(_, rest)| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let mut huge_pages = BTreeMap::new();
    for entry in std::fs::read_dir(path.join("hugepages")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let size = name.to_str().and_then(|n| n.strip_prefix("hugepages-")?.strip_suffix("kB"));
        let size = size.and_then(|kb| kb.parse::<u64>().ok()?.checked_mul(1024));
        let pages = number(&entry.path().join("nr_hugepages"));
        if let (Some(size), Some(pages)) = (size, pages.and_then(|n| u64::try_from(n).ok())) {
            huge_pages.insert(size, pages);
        }
    }
    let distances = text("distance");
    NumaNode {
        memory: kb.unwrap_or_default().saturating_mul(1024),
        huge_pages,
        distances: distances.split_whitespace().filter_map(|text| text.parse().ok()).collect(),
    }
}

impl CpuDetails {
    /// The CPUs on the nodes of a mask.
    pub(crate) fn cpus_in_mask(&self, mask: NumaMask) -> CpuSet {
        self.cpus_on(|node| mask.contains(node))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cpu_topology::Level;
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn write_cpu(root: &Path, cpu: usize, socket: usize, core: usize, cache: Option<&str>) {
        let path = |name: &str| format!("devices/system/cpu/cpu{cpu}/{name}");
        write(root, &path("topology/physical_package_id"), &format!("{socket}\n"));
        write(root, &path("topology/core_id"), &format!("{core}\n"));
        if let Some(shared) = cache {
            write(root, &path("cache/index3/level"), "3\n");
            write(root, &path("cache/index3/id"), &format!("{}\n", core / 2));
            write(root, &path("cache/index3/shared_cpu_list"), &format!("{shared}\n"));
        }
    }

    #[test]
    fn nodes_have_cores_memory_and_distances() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        // Two nodes with two cores of two threads; CPU 7 is offline.
        for cpu in 0..8 {
            write_cpu(root, cpu, cpu % 4 / 2, cpu % 4, None);
        }
        write(root, "devices/system/cpu/cpu7/online", "0\n");
        write(root, "devices/system/cpu/cpu6/online", "1\n");
        write(root, "devices/system/cpu/online", "0-6\n");
        for (node, cpus, distance) in [(0, [0, 1, 4, 5], "10 20"), (1, [2, 3, 6, 7], "20 10")] {
            let base = format!("devices/system/node/node{node}");
            for cpu in cpus {
                std::fs::create_dir_all(root.join(format!("{base}/cpu{cpu}"))).unwrap();
            }
            write(
                root,
                &format!("{base}/meminfo"),
                "Node 0 MemTotal:  1024 kB\nNode 0 MemFree: 1 kB",
            );
            write(root, &format!("{base}/hugepages/hugepages-2048kB/nr_hugepages"), "3\n");
            write(root, &format!("{base}/distance"), distance);
        }
        let machine = MachineTopology::read(root).unwrap();
        assert_eq!(machine.cpus.details.cpus().to_string(), "0-6");
        assert_eq!(machine.cpus.details.cpus_in(Level::Numa, 1).to_string(), "2-3,6");
        assert_eq!(machine.cpus.details.cpus_in(Level::Core, 0).to_string(), "0,4");
        assert_eq!(machine.cpus.details.0[&5].core, 1);
        let want = NumaNode {
            memory: 1 << 20,
            huge_pages: BTreeMap::from([(2 << 20, 3)]),
            distances: vec![20, 10],
        };
        assert_eq!(machine.nodes[&1], want);
    }

    #[test]
    fn caches_of_a_part_of_a_node_are_known_and_sockets_replace_missing_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert!(matches!(MachineTopology::read(root), Err(TopologyError::Read { .. })));
        for cpu in 0..4 {
            write_cpu(root, cpu, 0, cpu, Some(if cpu < 2 { "0-1" } else { "2-3" }));
        }
        let machine = MachineTopology::read(root).unwrap();
        let uncore: Vec<usize> = machine.cpus.details.0.values().map(|p| p.uncore).collect();
        assert_eq!((uncore, machine.node_numbers()), (vec![0, 0, 1, 1], vec![0]));
        // A cache that the whole node shares is none of a part.
        for cpu in 0..4 {
            write_cpu(root, cpu, 0, cpu, Some("0-3"));
        }
        let machine = MachineTopology::read(root).unwrap();
        assert!(machine.cpus.details.0.values().all(|place| place.uncore == 0));
    }

    #[test]
    fn this_machine_has_cpus() {
        let machine = MachineTopology::read(Path::new("/sys")).unwrap();
        assert!(!machine.cpus.details.0.is_empty() && !machine.all_nodes().is_empty());
    }
}
