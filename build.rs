//! Hands the names of the workspace crates and the commit to the program, and options to the linker.

use std::process::Command;

// Cargo says through the environment what is built.
#[allow(clippy::disallowed_methods)]
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=Cargo.toml");
    let manifest = std::fs::read_to_string("Cargo.toml").unwrap_or_default();
    println!("cargo:rustc-env=KUBE_LITE_CRATES={}", crates(&manifest).join(","));
    let var = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo:rustc-env=KUBE_LITE_BUILD={}", commit().unwrap_or_default());
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

/// `, commit 0123456789ab, 2026-01-31`: the commit of the sources and its date; `None` if they are
/// neither a checkout nor an archive that `git archive` has made.
fn commit() -> Option<String> {
    // git replaces the placeholders of this file in an archive (.gitattributes: export-subst).
    println!("cargo:rerun-if-changed=src/commit.txt");
    let archived = std::fs::read_to_string("src/commit.txt").unwrap_or_default();
    let line = match archived.trim() {
        text if !text.is_empty() && !text.starts_with('$') => text.to_owned(),
        _ => {
            let log = git(&["log", "-1", "--format=%H %cs"])?;
            // HEAD changes with the branch, its log with each commit.
            for name in ["HEAD", "logs/HEAD"] {
                println!("cargo:rerun-if-changed={}", git(&["rev-parse", "--git-path", name])?);
            }
            log
        }
    };
    let (commit, date) = line.split_once(' ')?;
    Some(format!(", commit {}, {date}", commit.get(..12)?))
}

/// Output of a git command in this checkout; `None` if there is no git or no repository.
#[allow(clippy::disallowed_methods)]
fn git(arguments: &[&str]) -> Option<String> {
    // A repository around the sources of an archive has another history.
    if !std::path::Path::new(".git").exists() {
        return None;
    }
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Version of this machine's C library.
#[allow(clippy::disallowed_methods)]
fn glibc() -> Option<(u32, u32)> {
    let said = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let said = String::from_utf8(said.stdout).ok()?;
    let (major, minor) = said.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
