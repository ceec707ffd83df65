//! What the linker is asked for besides its defaults.

use std::process::Command;

// Cargo says through the environment what is built.
#[allow(clippy::disallowed_methods)]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    // Only the linker that comes with Rust on this target is known to do what follows.
    let lld = var("CARGO_CFG_TARGET_ARCH") == "x86_64" && var("CARGO_CFG_TARGET_ENV") == "gnu";
    if !lld || var("PROFILE") != "release" {
        return;
    }
    // Functions whose code is the same are one: generic code of many kinds is, 2 % of the program. Identity of functions is nothing that
    // Rust promises.
    println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
    // Addresses that the loader moves stand packed (DT_RELR), 6 % of the program; glibc reads that since 2.36.
    if var("HOST") == var("TARGET") && glibc().is_some_and(|version| version >= (2, 36)) {
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Version of this machine's C library.
#[allow(clippy::disallowed_methods)]
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
