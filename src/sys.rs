//! Calls of the C library that no safe wrapper has.

/// Gives free pages of the allocator back to the system; costs milliseconds, and holds up who allocates meanwhile.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "no safe wrapper exists")]
pub(crate) fn give_back() {
    // SAFETY: glibc's malloc_trim may be called by any thread at any time; it touches free memory only.
    unsafe { nix::libc::malloc_trim(0) };
}
