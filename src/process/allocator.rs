//! The allocator: mimalloc in the static build, since musl's own takes a global lock for every
//! allocation; otherwise glibc's, configured to return unused memory.

#[cfg(all(target_env = "musl", feature = "mimalloc"))]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Configures the allocator; must run before other threads start.
pub fn prepare() {
    #[cfg(target_env = "gnu")]
    crate::process::sys::limit_arenas();
}

/// Returns memory to the system after bursts of work: free memory of glibc's allocator (mimalloc
/// returns it by itself), and cached pages of files.
pub(crate) fn trim_after_bursts(tasks: &base::Tasks) {
    let shutdown = tasks.shutdown().clone();
    let keeping = base::memory::keep_small(shutdown, || {
        store::advise_dontneed();
        #[cfg(target_env = "gnu")]
        crate::process::sys::trim_heap();
    });
    tasks.spawn(base::Kind::Critical, "memory", keeping);
}
