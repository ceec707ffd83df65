//! Calls of the C library that no safe wrapper has.

/// One for each worker of the runtime; glibc makes up to eight for each processor, and most threads live for one call.
#[cfg(target_env = "gnu")]
const POOLS: nix::libc::c_int = 2;

/// Has glibc's allocator keep few pools. Only before there are other threads.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(crate) fn bound_allocator() {
    // SAFETY: mallopt takes two numbers by value; nobody else allocates now.
    unsafe { nix::libc::mallopt(nix::libc::M_ARENA_MAX, POOLS) };
}

/// Gives free pages of the allocator back to the system; costs milliseconds, and holds up who allocates meanwhile.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(crate) fn give_back() {
    // SAFETY: glibc's malloc_trim may be called by any thread at any time; it touches free memory only.
    unsafe { nix::libc::malloc_trim(0) };
}
