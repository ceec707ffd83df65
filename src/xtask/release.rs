//! Makes a release: `cargo run -p xtask -- release --key FILE`.
//!
//! The release host serves the output directory as it is:
//!
//! ```text
//! install.sh                          the installer with the public key of the release
//! channels/stable                     the version that the channel installs
//! VERSION/kube-lite-ARCH.gz           the program
//! VERSION/kubectl-ARCH.gz             kubectl (--kubectl)
//! VERSION/runtime-ARCH.tar.gz         containerd, its shim and runc (--runtime)
//! VERSION/images-ARCH.tar             archives of images (--images)
//! VERSION/kube-lite-ARCH.cdx.json     bill of materials
//! VERSION/kube-lite-image-ARCH.tar    image of the program
//! VERSION/sha256sum-ARCH.txt          checksums of these and of the unpacked programs
//! VERSION/sha256sum-ARCH.txt.sig      its signature
//! VERSION/kube-lite-bundle-ARCH.tar   all that a machine without internet access needs
//! ```

mod archive;
pub(crate) mod compare;
mod image;
mod programs;
mod sbom;
mod signature;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;

use self::archive::{Tar, gzip, read, sha256, write};
use self::programs::Architecture;
use self::signature::Key;

/// Programs of a container runtime. The first three are required.
const RUNTIME: [&str; 6] =
    ["containerd", "containerd-shim-runc-v2", "runc", "crun", "ctr", "crictl"];

/// Makes a release from this checkout.
#[derive(Debug, Parser)]
#[command(name = "xtask release")]
pub(crate) struct Arguments {
    /// Version of the release [default: v and the version in Cargo.toml]
    #[arg(long)]
    version: Option<String>,
    /// Directory that the release host serves
    #[arg(long, default_value = "target/release-host")]
    out: PathBuf,
    /// Private Ed25519 key in PEM (openssl genpkey -algorithm ed25519)
    #[arg(long, required_unless_present = "unsigned")]
    key: Option<PathBuf>,
    /// Sign nothing; the installer refuses such a release
    #[arg(long, conflicts_with = "key")]
    unsigned: bool,
    /// URL of the release host, which the published installer uses by default
    #[arg(long)]
    url: Option<String>,
    /// Channel that points to this version
    #[arg(long, default_value = "stable")]
    channel: String,
    /// Architectures to build
    #[arg(long, value_enum, default_values_t = [Architecture::X8664, Architecture::Aarch64])]
    arch: Vec<Architecture>,
    /// Cargo profile of the build
    #[arg(long, default_value = "release")]
    profile: String,
    /// Take this program instead of building one; may be repeated, one per architecture
    #[arg(long, value_name = "FILE", conflicts_with_all = ["profile", "arch"])]
    program: Vec<PathBuf>,
    /// kubectl to publish; may be repeated, one per architecture
    #[arg(long, value_name = "FILE")]
    kubectl: Vec<PathBuf>,
    /// Directory with containerd, containerd-shim-runc-v2 and runc; may be repeated, one per
    /// architecture. For the image they must be static
    #[arg(long, value_name = "DIR")]
    runtime: Vec<PathBuf>,
    /// Directory of image archives for machines without internet access
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// CA certificates of the image
    #[arg(long, value_name = "FILE", default_value = "/etc/ssl/certs/ca-certificates.crt")]
    ca_certificates: PathBuf,
}

/// What is the same for all architectures.
struct Release<'a> {
    root: &'a Path,
    arguments: &'a Arguments,
    version: String,
    key: Option<Key>,
    /// Date of the sources in seconds since 1970, and in RFC 3339.
    date: (u64, String),
    /// The published installer.
    installer: String,
}

/// Makes the release.
///
/// # Errors
/// An argument without effect, a failed build, or a file that cannot be read or written.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let names = std::iter::once("xtask release").chain(arguments.iter().map(String::as_str));
    let arguments = Arguments::try_parse_from(names).unwrap_or_else(|error| error.exit());
    let key = arguments.key.as_deref().map(Key::read).transpose()?;
    let programs = programs(root, &arguments)?;
    let version = match &arguments.version {
        Some(version) => version.clone(),
        None => {
            format!("v{}", sbom::version(&sbom::metadata(root, &Architecture::X8664.target())?)?)
        }
    };
    for (what, name) in [("version", &version), ("channel", &arguments.channel)] {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        ensure!(
            name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain),
            "--{what}={name}: letters, digits, dots, dashes and underscores only"
        );
    }
    let directory = arguments.out.join(&version);
    ensure!(
        !directory.exists(),
        "{} exists, and a release does not change: choose another --version or --out",
        directory.display()
    );
    let seconds = programs::source_date(root)?;
    let release = Release {
        root,
        arguments: &arguments,
        installer: installer(root, key.as_ref(), arguments.url.as_deref())?,
        version,
        key,
        date: (seconds, rfc3339(seconds)),
    };
    let staged = arguments.out.join(format!(".{}.new", release.version));
    let _ = fs::remove_dir_all(&staged);
    for (architecture, program) in &programs {
        release.publish(&staged, *architecture, program)?;
    }
    fs::rename(&staged, &directory).context("cannot publish the release")?;
    write(&arguments.out.join("install.sh"), release.installer.as_bytes())?;
    let channel = arguments.out.join("channels").join(&arguments.channel);
    write(&channel, format!("{}\n", release.version).as_bytes())?;
    report(&release, &directory)
}

/// The programs by architecture.
fn programs(root: &Path, arguments: &Arguments) -> Result<BTreeMap<Architecture, Vec<u8>>> {
    let mut programs = BTreeMap::new();
    if arguments.program.is_empty() {
        for architecture in &arguments.arch {
            let path = programs::build(root, *architecture, &arguments.profile)?;
            programs.insert(*architecture, read(&path)?);
        }
    }
    for path in &arguments.program {
        let (architecture, program) = program(path)?;
        let other = programs.insert(architecture, program);
        ensure!(other.is_none(), "--program: two programs for {}", architecture.name());
    }
    Ok(programs)
}

fn program(path: &Path) -> Result<(Architecture, Vec<u8>)> {
    let bytes = read(path)?;
    let architecture = Architecture::of(&bytes).with_context(|| path.display().to_string())?;
    Ok((architecture, bytes))
}

/// The installer with the public key and the URL of this release.
fn installer(root: &Path, key: Option<&Key>, url: Option<&str>) -> Result<String> {
    let text = String::from_utf8(read(&root.join("install.sh"))?)?;
    let mut lines = Vec::new();
    let mut replaced = 0;
    for line in text.lines() {
        let value = match line.split_once('=').map(|(name, _)| name) {
            Some("public_key") => key.map(|key| format!("public_key={}", key.public())),
            Some("release_url") => url.map(|url| format!("release_url='{url}'")),
            _ => None,
        };
        replaced += usize::from(value.is_some());
        lines.push(value.unwrap_or_else(|| line.to_owned()));
    }
    let want = usize::from(key.is_some()) + usize::from(url.is_some());
    ensure!(replaced == want, "install.sh has not one line public_key= and one release_url=");
    ensure!(!url.is_some_and(|url| url.contains(['\'', '\n'])), "--url contains a quote");
    Ok(lines.join("\n") + "\n")
}

impl Release<'_> {
    /// Writes the files of one architecture.
    fn publish(&self, directory: &Path, architecture: Architecture, program: &[u8]) -> Result<()> {
        let name = architecture.name();
        let mut sums = BTreeMap::new();
        let mut bundled = vec!["install.sh".to_owned()];
        let mut put = |name: String, content: &[u8], is_bundled: bool| {
            sums.insert(name.clone(), sha256(content));
            write(&directory.join(&name), content)?;
            if is_bundled {
                bundled.push(name);
            }
            anyhow::Ok(())
        };
        put("install.sh".to_owned(), self.installer.as_bytes(), false)?;
        put(format!("kube-lite-{name}.gz"), &gzip(program)?, true)?;
        let kubectl = self.kubectl(architecture)?;
        if let Some(kubectl) = &kubectl {
            put(format!("kubectl-{name}.gz"), &gzip(kubectl)?, true)?;
        }
        let runtime = self.runtime(architecture)?;
        if !runtime.is_empty() {
            let archive = gzip(&self.directory_of(&runtime, 0o755)?)?;
            put(format!("runtime-{name}.tar.gz"), &archive, true)?;
        }
        if let Some(images) = &self.arguments.images {
            let archive = self.directory_of(&images_in(images)?, 0o644)?;
            put(format!("images-{name}.tar"), &archive, true)?;
        }
        let metadata = sbom::metadata(self.root, &architecture.target())?;
        let lock = fs::read_to_string(self.root.join("Cargo.lock"))?;
        let document = sbom::document(&metadata, &lock, &self.version, &self.date.1)?;
        put(format!("kube-lite-{name}.cdx.json"), document.as_bytes(), false)?;
        let image = image::layout(&image::Content {
            architecture,
            version: &self.version,
            date: (self.date.0, &self.date.1),
            program,
            runtime: &runtime,
            certificates: fs::read(&self.arguments.ca_certificates).ok().as_deref(),
        })?;
        put(format!("kube-lite-image-{name}.tar"), &image, false)?;
        // Programs that are installed already are compared with these.
        sums.insert(format!("kube-lite-{name}"), sha256(program));
        if let Some(kubectl) = &kubectl {
            sums.insert(format!("kubectl-{name}"), sha256(kubectl));
        }
        self.sign(directory, architecture, &sums, &mut bundled)?;
        self.bundle(directory, architecture, &bundled)
    }

    /// Writes the checksums and their signature.
    fn sign(
        &self,
        directory: &Path,
        architecture: Architecture,
        sums: &BTreeMap<String, String>,
        bundled: &mut Vec<String>,
    ) -> Result<()> {
        let mut text = String::new();
        for (name, sum) in sums {
            writeln!(text, "{sum}  {name}")?;
        }
        let file = format!("sha256sum-{}.txt", architecture.name());
        write(&directory.join(&file), text.as_bytes())?;
        if let Some(key) = &self.key {
            // The comment ties the checksums to the version: an old release under a new name is
            // refused.
            let comment = format!("kube-lite {} {}", self.version, architecture.name());
            let signature = key.sign(text.as_bytes(), &comment);
            write(&directory.join(format!("{file}.sig")), signature.as_bytes())?;
            bundled.push(format!("{file}.sig"));
        }
        bundled.push(file);
        Ok(())
    }

    /// Writes the archive for machines without internet access.
    fn bundle(&self, directory: &Path, architecture: Architecture, names: &[String]) -> Result<()> {
        let name = architecture.name();
        let top = format!("kube-lite-{}-{name}", self.version);
        let mut tar = Tar::new(self.date.0);
        tar.directory(&top, 0o755)?;
        tar.file(&format!("{top}/version"), 0o644, format!("{}\n", self.version).as_bytes())?;
        let mut names = names.to_vec();
        names.sort();
        for file in &names {
            let mode = if file == "install.sh" { 0o755 } else { 0o644 };
            tar.file(&format!("{top}/{file}"), mode, &read(&directory.join(file))?)?;
        }
        write(&directory.join(format!("kube-lite-bundle-{name}.tar")), &tar.finish())
    }

    fn kubectl(&self, architecture: Architecture) -> Result<Option<Vec<u8>>> {
        for path in &self.arguments.kubectl {
            let (of, bytes) = program(path)?;
            if of == architecture {
                return Ok(Some(bytes));
            }
        }
        Ok(None)
    }

    /// The programs of the container runtime for this architecture.
    fn runtime(&self, architecture: Architecture) -> Result<Vec<(String, Vec<u8>)>> {
        for directory in &self.arguments.runtime {
            let (of, _) = program(&directory.join("containerd"))?;
            if of != architecture {
                continue;
            }
            let mut programs = Vec::new();
            for (index, name) in RUNTIME.iter().enumerate() {
                let path = directory.join(name);
                if index < 3 || path.exists() {
                    let (of, bytes) = program(&path)?;
                    ensure!(of == architecture, "{}: for {}", path.display(), of.name());
                    programs.push(((*name).to_owned(), bytes));
                }
            }
            return Ok(programs);
        }
        Ok(Vec::new())
    }

    fn directory_of(&self, files: &[(String, Vec<u8>)], mode: u32) -> Result<Vec<u8>> {
        let mut tar = Tar::new(self.date.0);
        for (name, content) in files {
            tar.file(name, mode, content)?;
        }
        Ok(tar.finish())
    }
}

/// Name and content of the image archives in a directory.
fn images_in(directory: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(directory).with_context(|| directory.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if ![".tar", ".tar.gz", ".tgz", ".tar.zst"].iter().any(|end| name.ends_with(end)) {
            bail!("{} is no archive of images (tar, tar.gz, tar.zst)", path.display());
        }
        files.push((name, read(&path)?));
    }
    files.sort();
    ensure!(!files.is_empty(), "{} contains no archive of images", directory.display());
    Ok(files)
}

/// A date as `2026-01-31T12:00:00Z`.
fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Prints what was made.
#[allow(clippy::print_stdout, reason = "the output of a development task")]
fn report(release: &Release<'_>, directory: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        files.push((entry.file_name(), entry.metadata()?.len()));
    }
    files.sort();
    println!("{} in {}", release.version, directory.display());
    for (name, size) in files {
        println!("  {size:>10}  {}", name.to_string_lossy());
    }
    match &release.key {
        Some(key) => println!("public key: {}", key.public()),
        None => println!("not signed"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), want);
        }
    }

    #[test]
    fn an_unsigned_release_must_be_asked_for() {
        let parse = |arguments: &[&str]| Arguments::try_parse_from(arguments).is_ok();
        assert!(!parse(&["release"]));
        assert!(parse(&["release", "--unsigned"]));
        assert!(parse(&["release", "--key=k", "--program=p"]));
        assert!(!parse(&["release", "--key=k", "--unsigned"]));
    }
}
