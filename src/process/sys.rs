//! Functions of the C library without a safe wrapper.

/// Number of arenas: one for each worker of the runtime. glibc creates up to eight per processor by
/// default, and most threads live for one call.
#[cfg(target_env = "gnu")]
const ARENAS: nix::libc::c_int = 2;

/// Limits the number of arenas of glibc's allocator; must run before other threads start.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(crate) fn limit_arenas() {
    // SAFETY: mallopt takes two numbers by value, and no other thread allocates yet.
    unsafe { nix::libc::mallopt(nix::libc::M_ARENA_MAX, ARENAS) };
}

/// Returns free pages of glibc's allocator to the system. It takes milliseconds, during which
/// allocations of other threads wait.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(crate) fn trim_heap() {
    // SAFETY: glibc's malloc_trim may be called by any thread at any time; it touches free memory
    // only.
    unsafe { nix::libc::malloc_trim(0) };
}
