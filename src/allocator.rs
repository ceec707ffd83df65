//! The allocator: in the static build mimalloc, since musl's own takes one global lock for every allocation; else glibc's, which
//! is made to give back what it does not need any more.

#[cfg(all(target_env = "musl", feature = "mimalloc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Has memory given back after bursts of work. mimalloc does so by itself.
pub(crate) fn keep_small(tasks: &base::Tasks) {
    #[cfg(target_env = "gnu")]
    {
        let shutdown = tasks.shutdown().clone();
        let keeping = base::memory::keep_small(shutdown, crate::sys::give_back);
        tasks.spawn(base::Kind::Critical, "memory", keeping);
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = tasks;
}
