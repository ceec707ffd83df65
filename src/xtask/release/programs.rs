//! Builds the static programs of a release, or takes programs that exist.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A processor architecture, in the names of its users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Architecture {
    #[value(name = "x86_64")]
    X8664,
    #[value(name = "aarch64")]
    Aarch64,
}

impl Architecture {
    /// The name in `uname -m`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::X8664 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name in images.
    pub(super) fn image_name(self) -> &'static str {
        match self {
            Self::X8664 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The target of the Rust compiler.
    pub(super) fn target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// The architecture of an ELF program.
    pub(super) fn of(program: &[u8]) -> Result<Self> {
        ensure!(program.starts_with(b"\x7fELF\x02\x01"), "not a 64-bit little-endian ELF program");
        // e_machine, ELF specification, figure 1-3.
        match program.get(18..20) {
            Some([62, 0]) => Ok(Self::X8664),
            Some([183, 0]) => Ok(Self::Aarch64),
            other => bail!("a program for another architecture (e_machine {other:?})"),
        }
    }
}

/// A variable of the environment, if it is set and not empty.
#[allow(clippy::disallowed_methods, reason = "a development task reads its environment itself")]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The path of cargo.
pub(super) fn cargo() -> String {
    variable("CARGO").unwrap_or_else(|| "cargo".to_owned())
}

/// The date of the sources in seconds since 1970: `SOURCE_DATE_EPOCH`, or that of the commit.
pub(super) fn source_date(root: &Path) -> Result<u64> {
    let text = match variable("SOURCE_DATE_EPOCH") {
        Some(text) => text,
        None => {
            let output = Command::new("git")
                .current_dir(root)
                .args(["log", "-1", "--format=%ct"])
                .output()
                .context("cannot run git; set SOURCE_DATE_EPOCH to the date of the sources")?;
            ensure!(
                output.status.success(),
                "no git checkout; set SOURCE_DATE_EPOCH to the date of the sources"
            );
            String::from_utf8(output.stdout)?
        }
    };
    text.trim().parse().with_context(|| format!("{} is not a number of seconds", text.trim()))
}

/// The flags that keep paths of this machine out of the program: each directory and its
/// replacement. The compiler uses the last one that matches.
fn replacements(root: &Path, target: &Path, home: Option<&Path>) -> Vec<(PathBuf, &'static str)> {
    let mut list = Vec::new();
    if let Some(home) = home {
        list.push((home.to_owned(), "/cargo"));
    }
    list.push((root.to_owned(), "/kube-lite"));
    list.push((target.to_owned(), "/target"));
    list
}

/// Flags for C code: without paths of this machine, and without the time of the build, which
/// mimalloc prints in its diagnostics. zig caches objects without regard to `SOURCE_DATE_EPOCH`,
/// so that the variable does not help.
fn c_flags(replaced: &[(PathBuf, &'static str)]) -> String {
    let mut flags = vec!["-Wno-builtin-macro-redefined".to_owned()];
    for name in ["__DATE__", "__TIME__", "__TIMESTAMP__"] {
        flags.push(format!("-D{name}=\"unknown\""));
    }
    for (from, to) in replaced {
        flags.push(format!("-ffile-prefix-map={}={to}", from.display()));
    }
    flags.join(" ")
}

/// `cargo zigbuild` with the environment that makes its output independent of this machine's
/// directories and clock. `target_dir` exists.
pub(super) fn cargo_build(
    root: &Path,
    target_dir: &Path,
    architecture: Architecture,
) -> Result<Command> {
    let root = root.canonicalize().context("the checkout has no path")?;
    let target_dir = target_dir.canonicalize()?;
    let home = variable("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cargo")));
    let replaced = replacements(&root, &target_dir, home.as_deref());
    let rust_flags: Vec<String> = replaced
        .iter()
        .map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()))
        .collect();
    let target = architecture.target();
    add_standard_library(&root, &target)?;
    let mut command = Command::new(cargo());
    command
        .current_dir(&root)
        .args(["zigbuild", "--locked", "--target", &target])
        .env("PATH", format!("{}:{}", zig(&root)?, variable("PATH").unwrap_or_default()))
        .env("CARGO_TARGET_DIR", &target_dir)
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags.join("\u{1f}"))
        .env(format!("CFLAGS_{}", target.replace('-', "_")), c_flags(&replaced));
    Ok(command)
}

/// Builds the static program with cargo-zigbuild and returns its path.
pub(super) fn build(root: &Path, architecture: Architecture, profile: &str) -> Result<PathBuf> {
    let target_dir =
        variable("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    std::fs::create_dir_all(&target_dir)?;
    let status = cargo_build(root, &target_dir, architecture)?
        .args(["--bin", "kube-lite", "--profile", profile])
        .status()
        .context("cannot run cargo zigbuild")?;
    let target = architecture.target();
    ensure!(status.success(), "the build for {target} failed: {status}");
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(target_dir.canonicalize()?.join(target).join(directory).join("kube-lite"))
}

/// Installs the standard library of the target with rustup, if the toolchain lacks it.
fn add_standard_library(root: &Path, target: &str) -> Result<()> {
    let output = Command::new("rustc")
        .current_dir(root)
        .args(["--print=target-libdir", "--target", target])
        .output()
        .context("cannot run rustc")?;
    if output.status.success() && Path::new(String::from_utf8(output.stdout)?.trim()).exists() {
        return Ok(());
    }
    let status = Command::new("rustup").current_dir(root).args(["target", "add", target]).status();
    ensure!(
        status.is_ok_and(|status| status.success()),
        "the toolchain has no standard library for {target}; install it: rustup target add {target}"
    );
    Ok(())
}

/// The directory of cargo-zigbuild, which a script installs once.
fn zig(root: &Path) -> Result<String> {
    let output =
        Command::new(root.join("tests/lib/zig")).output().context("cannot run tests/lib/zig")?;
    ensure!(
        output.status.success(),
        "tests/lib/zig: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(machine: u8) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01".to_vec();
        bytes.resize(18, 0);
        bytes.extend([machine, 0]);
        bytes
    }

    #[test]
    fn the_architecture_is_that_of_the_elf_header() {
        assert_eq!(Architecture::of(&elf(62)).unwrap(), Architecture::X8664);
        assert_eq!(Architecture::of(&elf(183)).unwrap(), Architecture::Aarch64);
        assert!(Architecture::of(&elf(40)).is_err());
        assert!(Architecture::of(b"#!/bin/sh\n").is_err());
        assert!(Architecture::of(b"\x7fELF\x02\x01").is_err());
    }

    #[test]
    fn a_target_directory_inside_the_checkout_has_its_own_replacement() {
        let list = replacements(Path::new("/a"), Path::new("/a/target"), None);
        assert_eq!(list.last().unwrap().1, "/target");
    }

    #[test]
    fn c_code_has_neither_paths_nor_the_time_of_the_build() {
        let flags = c_flags(&[(PathBuf::from("/a"), "/kube-lite")]);
        for flag in
            ["-D__DATE__=\"unknown\"", "-D__TIME__=\"unknown\"", "-ffile-prefix-map=/a=/kube-lite"]
        {
            assert!(flags.split(' ').any(|word| word == flag), "{flag} is not in {flags}");
        }
    }
}
