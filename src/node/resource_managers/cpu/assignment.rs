//! Which CPUs a container gets: whole NUMA nodes, sockets, caches and cores first, as in the
//! kubelet's `takeByTopologyNUMAPacked`.

use std::collections::BTreeSet;

use super::super::cpu_set::CpuSet;
use super::super::cpu_topology::{CpuDetails, CpuTopology, Level};

/// Why CPUs cannot be assigned; texts as upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AssignmentError {
    #[error(
        "not enough cpus available to satisfy request: requested={requested}, \
         available={available}"
    )]
    NotEnough { requested: usize, available: usize },
    #[error("failed to allocate cpus")]
    Failed,
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    TooFew(usize),
    #[error("accounting error, too many CPUs allocated, remaining: -{0}")]
    TooMany(usize),
}

/// Free CPUs, of which some are taken step by step.
pub(super) struct Accumulator<'a> {
    topology: &'a CpuTopology,
    /// The CPUs that are still free.
    pub(super) free: CpuDetails,
    pub(super) needed: usize,
    pub(super) taken: CpuSet,
}

impl<'a> Accumulator<'a> {
    pub(super) fn new(topology: &'a CpuTopology, available: &CpuSet, needed: usize) -> Self {
        let free = topology.details.keep_only(available);
        Self { topology, free, needed, taken: CpuSet::default() }
    }

    /// Whether NUMA nodes contain sockets; otherwise sockets contain NUMA nodes.
    fn is_numa_first(&self) -> bool {
        self.topology.count(Level::Socket) >= self.topology.count(Level::Numa)
    }

    /// Sorts parts by the number of their free CPUs, then by their own number.
    fn sorted(&self, level: Level, parts: BTreeSet<usize>) -> Vec<usize> {
        let mut parts: Vec<usize> = parts.into_iter().collect();
        parts.sort_by_cached_key(|id| (self.free.count_in(level, *id), *id));
        parts
    }

    /// The parts at a level inside of the parts of another one, in the order of those.
    fn sorted_in(&self, level: Level, outer: Level, parts: &[usize]) -> Vec<usize> {
        let inside = |id: &usize| self.sorted(level, self.free.parts_in(level, outer, *id));
        parts.iter().flat_map(inside).collect()
    }

    /// The parts at a level in the order in which they are taken.
    pub(super) fn order(&self, level: Level) -> Vec<usize> {
        let (outer, inner) = if self.is_numa_first() {
            (Level::Numa, Level::Socket)
        } else {
            (Level::Socket, Level::Numa)
        };
        match level {
            level if level == outer => self.sorted(outer, self.free.parts(outer)),
            level if level == inner => self.sorted_in(inner, outer, &self.order(outer)),
            Level::Uncore => self.sorted_in(Level::Uncore, Level::Numa, &self.order(Level::Numa)),
            _ => self.sorted_in(Level::Core, inner, &self.order(inner)),
        }
    }

    /// Whether all CPUs of a part are free. Upstream compares sockets and cores with the average
    /// size of the machine.
    fn is_free(&self, level: Level, id: usize) -> bool {
        let size = match level {
            Level::Socket | Level::Core => self.topology.cpus_per(level),
            Level::Numa | Level::Uncore => self.topology.details.count_in(level, id),
        };
        self.free.count_in(level, id) == size
    }

    /// The free parts at a level, in order.
    pub(super) fn free_parts(&self, level: Level) -> Vec<usize> {
        self.order(level).into_iter().filter(|id| self.is_free(level, *id)).collect()
    }

    /// The free CPUs, core by core.
    pub(super) fn free_cpus(&self) -> Vec<usize> {
        let cores = self.order(Level::Core).into_iter();
        cores
            .flat_map(|core| self.free.cpus_in(Level::Core, core).iter().collect::<Vec<_>>())
            .collect()
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.union(cpus);
        self.free = self.free.keep_only(&self.free.cpus().difference(cpus));
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    pub(super) fn is_satisfied(&self) -> bool {
        self.needed == 0
    }

    /// Takes free parts of a level as long as the whole part is needed.
    fn take_full(&mut self, level: Level) {
        for id in self.free_parts(level) {
            let cpus = self.topology.details.cpus_in(level, id);
            if self.needed >= cpus.len() {
                self.take(&cpus);
            }
        }
    }

    /// Takes the rest from one cache, if that gives exactly the number that is needed.
    fn take_part_of_uncore(&mut self, uncore: usize) {
        let per_core = self.topology.cpus_per(Level::Core);
        if per_core == 0 {
            return;
        }
        let cores = self.free.parts_in(Level::Core, Level::Uncore, uncore);
        let cores = cores.into_iter().take(self.needed.div_ceil(per_core));
        let mut cpus: Vec<usize> = cores
            .flat_map(|core| self.free.cpus_in(Level::Core, core).iter().collect::<Vec<_>>())
            .collect();
        cpus.sort_unstable();
        if !self.needed.is_multiple_of(2) && per_core > 1 && cpus.len() > self.needed {
            cpus.pop();
        }
        if cpus.len() == self.needed {
            self.take(&cpus.into_iter().collect());
        }
    }

    fn take_uncore_caches(&mut self) {
        for uncore in self.order(Level::Uncore) {
            if self.needed >= self.topology.cpus_per(Level::Uncore) {
                self.take_full(Level::Uncore);
            }
            if self.is_satisfied() {
                return;
            }
            self.take_part_of_uncore(uncore);
            if self.is_satisfied() {
                return;
            }
        }
    }
}

/// Takes CPUs so that as few parts of the machine as possible are touched. `align_uncore` takes
/// whole last-level caches before cores (the option `prefer-align-cpus-by-uncorecache`).
///
/// # Errors
///
/// Fewer CPUs are available than requested.
pub(crate) fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    count: usize,
    align_uncore: bool,
) -> Result<CpuSet, AssignmentError> {
    let mut acc = Accumulator::new(topology, available, count);
    if acc.is_satisfied() {
        return Ok(acc.taken);
    }
    if count > acc.free.0.len() {
        let available = available.len();
        return Err(AssignmentError::NotEnough { requested: count, available });
    }
    let levels = match acc.is_numa_first() {
        true => [Level::Numa, Level::Socket],
        false => [Level::Socket, Level::Numa],
    };
    for level in levels {
        acc.take_full(level);
    }
    if align_uncore && !acc.is_satisfied() {
        acc.take_uncore_caches();
    }
    if !acc.is_satisfied() {
        acc.take_full(Level::Core);
    }
    let rest: CpuSet = acc.free_cpus().into_iter().take(acc.needed).collect();
    acc.take(&rest);
    if acc.is_satisfied() { Ok(acc.taken) } else { Err(AssignmentError::Failed) }
}

#[cfg(test)]
mod tests;
