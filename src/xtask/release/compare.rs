//! Builds packages in two directories as a release does, and compares their libraries.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use super::archive::{read, sha256};
use super::programs::{Architecture, cargo_build};

/// Builds packages in two clones of the commit, and compares the bytes of all libraries. Both are
/// removed afterwards.
#[derive(Debug, Parser)]
#[command(name = "xtask compare-builds")]
struct Arguments {
    /// Architecture to build for
    #[arg(long, value_enum, default_value_t = Architecture::X8664)]
    arch: Architecture,
    /// Packages to build; they may be dependencies
    #[arg(required = true)]
    packages: Vec<String>,
}

/// Compares the builds.
///
/// # Errors
/// A failed build, or libraries that differ.
#[allow(clippy::print_stdout, reason = "the output of a development task")]
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let names = std::iter::once("xtask compare-builds").chain(arguments.iter().map(String::as_str));
    let arguments = Arguments::try_parse_from(names).unwrap_or_else(|error| error.exit());
    let work = Directory::new()?;
    // Paths of different length move everything that contains them.
    let first = libraries(root, &work.0.join("first"), &arguments)?;
    let second = libraries(root, &work.0.join("second/longer-path"), &arguments)?;
    ensure!(!first.is_empty(), "the build made no library");
    let differ = differences(&first, &second);
    ensure!(differ.is_empty(), "not equal in two directories: {}", differ.join(", "));
    println!("{} libraries are equal", first.len());
    Ok(())
}

/// A temporary directory, removed with its content.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("kube-lite-compare.{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds the packages in a new clone and returns the checksums of the libraries by file name.
fn libraries(
    root: &Path,
    directory: &Path,
    arguments: &Arguments,
) -> Result<BTreeMap<String, String>> {
    let source = directory.join("source");
    let target_dir = directory.join("target");
    fs::create_dir_all(&target_dir)?;
    let status =
        Command::new("git").args(["clone", "-q"]).arg(root).arg(&source).status().context("git")?;
    ensure!(status.success(), "cannot clone {}: {status}", root.display());
    // One at a time: beside a member of the workspace, cargo finds only its dependencies.
    for package in &arguments.packages {
        let status = cargo_build(&source, &target_dir, arguments.arch)?
            .args(["-q", "--package", package])
            .status()
            .context("cannot run cargo zigbuild")?;
        ensure!(status.success(), "the build of {package} in {} failed", source.display());
    }
    let mut sums = BTreeMap::new();
    let made = target_dir.join(arguments.arch.target()).join("debug/deps");
    for entry in fs::read_dir(&made).with_context(|| made.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".rlib") {
            sums.insert(name, sha256(&read(&entry.path())?));
        }
    }
    Ok(sums)
}

/// Names that are not in both, or whose checksums differ.
fn differences(first: &BTreeMap<String, String>, second: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = first.keys().chain(second.keys()).collect();
    names.into_iter().filter(|name| first.get(*name) != second.get(*name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_bytes_and_other_names_are_differences() {
        let map = |list: &[(&str, &str)]| {
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let first = map(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert!(differences(&first, &first).is_empty());
        let second = map(&[("a", "1"), ("b", "3"), ("d", "3")]);
        assert_eq!(differences(&first, &second), ["b", "c", "d"]);
    }
}
