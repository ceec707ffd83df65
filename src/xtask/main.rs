//! Development tasks: `cargo run -p xtask -- codegen [--check] --types types.json`, `protos`,
//! `release`, `compare-builds`.

mod protos;
mod release;
mod schema;
mod supplement;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

const TABLE: &str = "src/api/gen/schema.txt";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("codegen") => codegen(args.get(1..).unwrap_or_default()),
        Some("protos") => {
            let root = root()?;
            protos::run(&root, args.iter().any(|a| a == "--check"))
        }
        Some("release") => release::run(&root()?, args.get(1..).unwrap_or_default()),
        Some("compare-builds") => {
            release::compare::run(&root()?, args.get(1..).unwrap_or_default())
        }
        _ => bail!(
            "usage: xtask codegen [--check] [--types PATH] | protos [--check] | release --help | \
             compare-builds --help"
        ),
    }
}

/// The root of the checkout. Read at run time, since the path at compile time may be that of
/// another checkout with the same target directory.
fn root() -> anyhow::Result<PathBuf> {
    #[allow(clippy::disallowed_methods, reason = "cargo sets it to the directory of this package")]
    let directory =
        std::env::var_os("CARGO_MANIFEST_DIR").context("run it with cargo: cargo xtask")?;
    Ok(Path::new(&directory).join("../.."))
}

/// Writes the generated files, or with `--check` reports those that are stale.
fn codegen(args: &[String]) -> anyhow::Result<()> {
    let mut check = false;
    let mut types: Option<PathBuf> = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--check" => check = true,
            "--types" => types = Some(rest.next().context("--types needs a path")?.into()),
            other => bail!("unknown argument of codegen: {other}"),
        }
    }
    let root = root()?;
    let types = types.unwrap_or_else(|| root.join("../shared/kubernetes-1.37/types.json"));
    let text = std::fs::read_to_string(&types).with_context(|| types.display().to_string())?;
    emit(&root.join(TABLE), &schema::table(&text)?, check)
}

fn emit(path: &Path, content: &str, check: bool) -> anyhow::Result<()> {
    if check {
        let old = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        if old != content {
            bail!("{} is stale: run `cargo run -p xtask -- codegen`", path.display());
        }
        return Ok(());
    }
    std::fs::write(path, content).with_context(|| path.display().to_string())
}
