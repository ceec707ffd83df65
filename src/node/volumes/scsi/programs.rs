//! Runs programs of the machine, with a deadline and a bound on their output.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// How long a program may run: `iscsiadm` itself gives up a login after two minutes.
const TIMEOUT: Duration = Duration::from_secs(150);
/// Bytes of each output of a program that are read.
const MAX_READ: u64 = 64 << 10;
/// Characters of an output that are shown.
const MAX_SHOWN: usize = 1000;

/// How a program ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProgramOutput {
    /// The exit status; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Its standard output, then its standard error.
    pub(crate) text: String,
}

impl ProgramOutput {
    fn new(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Self {
        let mut text = String::from_utf8_lossy(stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(stderr));
        Self { code: status.code(), signal: status.signal(), text }
    }

    /// Whether it ended with status 0.
    pub(crate) fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// The status in the form of Go.
    pub(crate) fn status(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown status".to_owned(),
        }
    }

    /// The output, cut to what a message may contain.
    pub(crate) fn shown(&self) -> String {
        self.text.chars().take(MAX_SHOWN).collect()
    }
}

/// Why a program has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("cannot run {program}: {source}; install {package} on the node")]
    Missing { program: &'static str, package: &'static str, source: io::Error },
    #[error("cannot run {program}: {source}")]
    Run { program: &'static str, source: io::Error },
    #[error("{program} took longer than {TIMEOUT:?}")]
    Timeout { program: &'static str },
}

/// The packages with a program.
fn package(program: &str) -> &'static str {
    match program {
        "iscsiadm" => "open-iscsi (Debian) or iscsi-initiator-utils",
        "multipath" => "multipath-tools (Debian) or device-mapper-multipath",
        _ => "util-linux",
    }
}

/// Programs of the machine.
#[async_trait]
pub(crate) trait Programs: std::fmt::Debug + Send + Sync {
    /// Runs a program to its end; whatever its status is, it is no error. The arguments may contain
    /// secrets and are not logged.
    async fn run(
        &self,
        program: &'static str,
        arguments: &[String],
    ) -> Result<ProgramOutput, ProgramError>;
}

/// The programs in the path of this process.
#[derive(Debug)]
pub(super) struct MachinePrograms;

#[async_trait]
impl Programs for MachinePrograms {
    async fn run(
        &self,
        program: &'static str,
        arguments: &[String],
    ) -> Result<ProgramOutput, ProgramError> {
        run(program, Command::new(program).args(arguments)).await
    }
}

/// Runs a command; `program` is its name in errors.
pub(super) async fn run(
    program: &'static str,
    command: &mut Command,
) -> Result<ProgramOutput, ProgramError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => {
            ProgramError::Missing { program, package: package(program), source }
        }
        _ => ProgramError::Run { program, source },
    };
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.kill_on_drop(true).spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let running = async {
        let (stdout, stderr, status) = tokio::join!(read(stdout), read(stderr), child.wait());
        Ok(ProgramOutput::new(status?, &stdout?, &stderr?))
    };
    match tokio::time::timeout(TIMEOUT, running).await {
        Ok(output) => output.map_err(failed),
        Err(_) => Err(ProgramError::Timeout { program }),
    }
}

/// Reads an output to its end, and returns its beginning.
async fn read(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    if let Some(mut pipe) = pipe {
        (&mut pipe).take(MAX_READ).read_to_end(&mut out).await?;
        // A program that cannot write would not end.
        tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn a_result_has_the_status_and_both_outputs() {
        let output = run("sh", &mut shell("echo out; echo err >&2; exit 21")).await.unwrap();
        assert_eq!((output.code, output.text.as_str()), (Some(21), "out\nerr\n"));
        assert_eq!(output.status(), "exit status 21");
        let killed = run("sh", &mut shell("kill -9 $$")).await.unwrap();
        assert_eq!((killed.is_success(), killed.status().as_str()), (false, "signal 9"));
    }

    #[tokio::test]
    async fn a_long_output_is_cut_and_the_program_ends() {
        let output = run("sh", &mut shell("head -c 300000 /dev/zero")).await.unwrap();
        assert!(output.is_success());
        assert_eq!(u64::try_from(output.text.len()), Ok(MAX_READ));
        assert_eq!(output.shown().len(), MAX_SHOWN);
    }

    #[tokio::test]
    async fn a_missing_program_names_its_package() {
        let missing = run("iscsiadm", &mut Command::new("/none/iscsiadm")).await.unwrap_err();
        assert_eq!(
            missing.to_string(),
            "cannot run iscsiadm: No such file or directory (os error 2); install open-iscsi \
             (Debian) or iscsi-initiator-utils on the node"
        );
    }
}
