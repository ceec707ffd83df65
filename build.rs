//! Hands the names of the workspace crates to the program, and options to the linker.

use std::process::Command;

// Cargo says through the environment what is built.
#[allow(clippy::disallowed_methods)]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.toml");
    let manifest = std::fs::read_to_string("Cargo.toml").unwrap_or_default();
    println!("cargo:rustc-env=KUBE_LITE_CRATES={}", crates(&manifest).join(","));
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

/// The crates of the program: the root package, and what `[workspace.dependencies]` finds under `src`.
fn crates(manifest: &str) -> Vec<String> {
    let name = |line: &str| {
        let (name, dependency) = line.split_once(" = ")?;
        dependency.starts_with("{ path = \"src/").then(|| name.replace('-', "_"))
    };
    let dependencies = manifest.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    let lines = dependencies.lines().take_while(|line| !line.starts_with('['));
    std::iter::once("kube_lite".to_owned()).chain(lines.filter_map(name)).collect()
}

/// Version of this machine's C library.
#[allow(clippy::disallowed_methods)]
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
