//! CPUs with their cores, sockets, NUMA nodes and last-level caches
//! (`pkg/kubelet/cm/cpumanager/topology`).

use std::collections::{BTreeMap, BTreeSet};

use super::cpu_set::CpuSet;

/// Where a CPU (a hardware thread) is. A core has the number of its lowest CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CpuPlace {
    pub(crate) numa: usize,
    pub(crate) socket: usize,
    pub(crate) core: usize,
    /// The last-level cache, shared by a part of a socket; the socket where it is not known.
    pub(crate) uncore: usize,
}

/// A part of the machine that contains CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Numa,
    Socket,
    Core,
    Uncore,
}

impl CpuPlace {
    /// The number of the part that contains the CPU.
    pub(crate) fn at(&self, level: Level) -> usize {
        match level {
            Level::Numa => self.numa,
            Level::Socket => self.socket,
            Level::Core => self.core,
            Level::Uncore => self.uncore,
        }
    }
}

/// CPUs by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CpuDetails(pub(crate) BTreeMap<usize, CpuPlace>);

impl CpuDetails {
    pub(crate) fn cpus(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// Those CPUs that are in `cpus`.
    pub(crate) fn keep_only(&self, cpus: &CpuSet) -> Self {
        let kept = self.0.iter().filter(|(id, _)| cpus.contains(**id));
        Self(kept.map(|(id, place)| (*id, *place)).collect())
    }

    /// The numbers of the parts at a level.
    pub(crate) fn parts(&self, level: Level) -> BTreeSet<usize> {
        self.0.values().map(|place| place.at(level)).collect()
    }

    /// The CPUs in one part.
    pub(crate) fn cpus_in(&self, level: Level, id: usize) -> CpuSet {
        self.0.iter().filter(|(_, place)| place.at(level) == id).map(|(cpu, _)| *cpu).collect()
    }

    /// Number of CPUs in one part.
    pub(crate) fn count_in(&self, level: Level, id: usize) -> usize {
        self.0.values().filter(|place| place.at(level) == id).count()
    }

    /// The parts at `level` that have CPUs in one part of another level.
    pub(crate) fn parts_in(&self, level: Level, outer: Level, id: usize) -> BTreeSet<usize> {
        let inside = self.0.values().filter(|place| place.at(outer) == id);
        inside.map(|place| place.at(level)).collect()
    }

    /// The CPUs on these NUMA nodes.
    pub(crate) fn cpus_on(&self, nodes: impl Fn(usize) -> bool) -> CpuSet {
        self.0.iter().filter(|(_, place)| nodes(place.numa)).map(|(cpu, _)| *cpu).collect()
    }
}

/// All CPUs of the machine that are online.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CpuTopology {
    pub(crate) details: CpuDetails,
}

impl CpuTopology {
    pub(crate) fn count(&self, level: Level) -> usize {
        self.details.parts(level).len()
    }

    /// CPUs in each part of a level, if they are of equal size.
    pub(crate) fn cpus_per(&self, level: Level) -> usize {
        self.details.0.len().checked_div(self.count(level)).unwrap_or_default()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A topology from a function of the number of the CPU: NUMA node, socket, core, uncore cache.
    pub(crate) fn topology(
        cpus: usize,
        place: impl Fn(usize) -> (usize, usize, usize, usize),
    ) -> CpuTopology {
        let place = |cpu: usize| {
            let (numa, socket, core, uncore) = place(cpu);
            (cpu, CpuPlace { numa, socket, core, uncore })
        };
        CpuTopology { details: CpuDetails((0..cpus).map(place).collect()) }
    }

    /// One socket with hyper-threads: cores {0,4}, {1,5}, {2,6}, {3,7}.
    pub(crate) fn single_8() -> CpuTopology {
        topology(8, |cpu| (0, 0, cpu % 4, 0))
    }

    /// Two sockets with hyper-threads: core `i` has the CPUs `i` and `i + 6`, even ones are on
    /// socket and node 0.
    pub(crate) fn dual_12() -> CpuTopology {
        topology(12, |cpu| (cpu % 2, cpu % 2, cpu % 6, cpu % 2))
    }

    /// Two sockets without hyper-threads: 0-3 and 4-7.
    pub(crate) fn dual_8() -> CpuTopology {
        topology(8, |cpu| (cpu / 4, cpu / 4, cpu, cpu / 4))
    }

    /// Two sockets with two nodes each: core `i` has the CPUs `i` and `i + 40`, node `n` the cores
    /// from `10n`.
    pub(crate) fn multi_80() -> CpuTopology {
        topology(80, |cpu| {
            let core = cpu % 40;
            (core / 10, core / 20, core, core / 20)
        })
    }

    /// Two nodes with two sockets each: core `i` has the CPUs `i` and `i + 40`, socket `s` the
    /// cores from `10s`.
    pub(crate) fn four_sockets_80() -> CpuTopology {
        topology(80, |cpu| {
            let core = cpu % 40;
            (core / 20, core / 10, core, core / 10)
        })
    }

    #[test]
    fn parts_are_counted() {
        let dual = dual_12();
        assert_eq!(dual.count(Level::Core), 6);
        assert_eq!(dual.cpus_per(Level::Core), 2);
        assert_eq!(dual.cpus_per(Level::Socket), 6);
        assert_eq!(dual.details.cpus_in(Level::Socket, 1).to_string(), "1,3,5,7,9,11");
        assert_eq!(dual.details.parts_in(Level::Core, Level::Numa, 1), BTreeSet::from([1, 3, 5]));
        assert_eq!(CpuTopology::default().cpus_per(Level::Core), 0);
    }
}
