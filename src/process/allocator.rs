//! The allocator: in the static build mimalloc, since musl's own takes one global lock for every allocation; else glibc's, which
//! is made to give back what it does not need any more.

#[cfg(all(target_env = "musl", feature = "mimalloc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Sets up the allocator; before there are other threads.
pub fn prepare() {
    #[cfg(target_env = "gnu")]
    crate::process::sys::bound_allocator();
}

/// Has memory given back after bursts of work: what the allocator has free, where it does not do so by itself, as mimalloc
/// does, and the pages of files that were read.
pub(crate) fn keep_small(tasks: &base::Tasks) {
    let shutdown = tasks.shutdown().clone();
    let keeping = base::memory::keep_small(shutdown, || {
        store::advise_dontneed();
        #[cfg(target_env = "gnu")]
        crate::process::sys::give_back();
    });
    tasks.spawn(base::Kind::Critical, "memory", keeping);
}
