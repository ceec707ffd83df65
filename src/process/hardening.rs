//! What this process lets others on the machine see of it: no memory, no files open to all, no secret among its arguments.

use std::ffi::{OsStr, OsString};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, umask};

/// Flags whose value is a secret, and their long form.
const SECRETS: [(&str, &str); 9] = [
    ("--agent-token", "--agent-token"),
    ("--token", "--token"),
    ("-t", "--token"),
    ("--etcd-s3-secret-key", "--etcd-s3-secret-key"),
    ("--s3-secret-key", "--etcd-s3-secret-key"),
    ("--etcd-s3-session-token", "--etcd-s3-session-token"),
    ("--s3-session-token", "--etcd-s3-session-token"),
    ("--datastore-endpoint", "--datastore-endpoint"),
    ("--from", "--from"),
];

/// Stands for a secret, with the number of the descriptor that it is read from.
const MARK: &str = "in-memory:";

/// Name of the file in memory, by which it is known again.
const NAME: &str = "kube-lite-token";

/// Makes memory, environment and descriptors of this process unreadable for others of the same user, writes no core dump, and
/// lets nobody write what it makes. Programs that it starts are as they always are: `execve` takes the first two back.
pub fn conceal() {
    // Neither can fail but on a kernel without them, and then there is nothing to be done about it.
    let _ = nix::sys::prctl::set_dumpable(false);
    // Whatever the service manager said; what must be stricter says so itself.
    umask(umask(Mode::empty()) | Mode::S_IWGRP | Mode::S_IWOTH);
}

/// The arguments with the secrets that [`hide_arguments`] took out of them; what they were read from is closed.
pub fn reveal_arguments(arguments: Vec<OsString>) -> Vec<OsString> {
    arguments.into_iter().map(|argument| revealed(&argument).unwrap_or(argument)).collect()
}

fn revealed(argument: &OsStr) -> Option<OsString> {
    let (flag, value) = argument.to_str()?.split_once('=')?;
    let number = value.strip_prefix(MARK)?.parse().ok()?;
    if !SECRETS.iter().any(|(_, long)| *long == flag) {
        return None;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{number}"));
    // Another file of that number is not ours to read or close.
    let ours = std::fs::read_link(&path)
        .is_ok_and(|to| to.to_str().is_some_and(|to| to.starts_with(&format!("/memfd:{NAME} "))));
    let secret = ours.then(|| std::fs::read(&path)).and_then(Result::ok)?;
    let _ = nix::unistd::close::<i32>(number);
    let mut whole = OsString::from(format!("{flag}="));
    whole.push(OsString::from_vec(secret));
    Some(whole)
}

/// Starts this process anew without the secrets among its arguments, which everybody on the machine can read: each is handed on
/// in memory. Returns when there was none, or when it cannot be done.
pub fn hide_arguments(arguments: &[OsString]) {
    let mut kept = Vec::new();
    let hidden = without_secrets(arguments, |secret| {
        let file = in_memory(secret)?;
        let mark = format!("{MARK}{}", file.as_raw_fd());
        kept.push(file);
        Some(mark)
    });
    let Some(hidden) = hidden else { return };
    let (Some((name, rest)), Ok(own)) = (hidden.split_first(), std::env::current_exe()) else {
        return;
    };
    // Comes back only when it fails; then the process goes on with the arguments that it has.
    let error = std::process::Command::new(own).arg0(name).args(rest).exec();
    let _ = writeln!(std::io::stderr(), "the token stays among the arguments: {error}");
}

/// A file without a place, which the program that follows inherits.
fn in_memory(secret: &OsStr) -> Option<std::fs::File> {
    let mut file = std::fs::File::from(memfd_create(NAME, MFdFlags::empty()).ok()?);
    file.write_all(secret.as_bytes()).ok()?;
    file.rewind().ok()?;
    Some(file)
}

/// The arguments with a mark for each secret; `None` when there is no secret among them, or one that `store` does not take.
fn without_secrets(
    arguments: &[OsString],
    mut store: impl FnMut(&OsStr) -> Option<String>,
) -> Option<Vec<OsString>> {
    // Of other commands a token is an id, or what is asked for.
    if !arguments.get(1).is_some_and(|command| command == "server" || command == "agent") {
        return None;
    }
    let (mut out, mut found) = (Vec::new(), false);
    let mut all = arguments.iter();
    while let Some(argument) = all.next() {
        let secret = SECRETS.iter().find_map(|(flag, long)| {
            match argument.as_bytes().strip_prefix(flag.as_bytes())? {
                [] => Some((*long, None)),
                [b'=', value @ ..] => Some((*long, Some(value))),
                value if *flag == "-t" => Some((*long, Some(value))),
                _ => None,
            }
        });
        let Some((long, value)) = secret else {
            out.push(argument.clone());
            continue;
        };
        // A flag without a value is the parser's to refuse.
        let value = match value {
            Some(value) => OsStr::from_bytes(value),
            None => all.next()?,
        };
        if value.as_bytes().starts_with(MARK.as_bytes()) {
            out.push(argument.clone());
            continue;
        }
        found = true;
        out.push(format!("{long}={}", store(value)?).into());
    }
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C3.22: no form of the flags leaves a secret behind, and other commands are left alone.
    #[test]
    fn secrets_leave_the_arguments() {
        let run = |line: &str| {
            let mut stored = Vec::new();
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let out = without_secrets(&arguments, |secret| {
                stored.push(secret.to_string_lossy().into_owned());
                Some(format!("in-memory:{}", stored.len()))
            });
            let out = out.map(|all| all.join(OsStr::new(" ")).to_string_lossy().into_owned());
            (out, stored.join(","))
        };
        for (line, want, stored) in [
            ("kl server --token=a --debug", "kl server --token=in-memory:1 --debug", "a"),
            ("kl server --token a --debug", "kl server --token=in-memory:1 --debug", "a"),
            ("kl agent -t a -s https://b", "kl agent --token=in-memory:1 -s https://b", "a"),
            ("kl agent -ta", "kl agent --token=in-memory:1", "a"),
            ("kl agent -t=a", "kl agent --token=in-memory:1", "a"),
            (
                "kl server --etcd-s3-access-key=i --etcd-s3-secret-key=a --s3-session-token b",
                "kl server --etcd-s3-access-key=i --etcd-s3-secret-key=in-memory:1 --etcd-s3-session-token=in-memory:2",
                "a,b",
            ),
            (
                "kl server --agent-token=b --token=a",
                "kl server --agent-token=in-memory:1 --token=in-memory:2",
                "b,a",
            ),
        ] {
            assert_eq!(run(line), (Some(want.to_owned()), stored.to_owned()), "{line}");
        }
        for line in [
            "kl server --token-file=/x --tls-san=t",
            "kl server --token=in-memory:3",
            "kl token delete abc",
            "kl",
            "kl agent -t",
        ] {
            assert_eq!(run(line).0, None, "{line}");
        }
    }

    /// C3.22: the next start has the secret again, and nobody after it.
    #[test]
    fn a_secret_is_read_once() {
        use std::os::fd::IntoRawFd;
        let number = in_memory(OsStr::new("K10abc::server:x")).unwrap().into_raw_fd();
        let mark = || vec![OsString::from(format!("--token=in-memory:{number}"))];
        assert_eq!(reveal_arguments(mark()), ["--token=K10abc::server:x"]);
        assert_eq!(reveal_arguments(mark()), mark());
        assert_eq!(reveal_arguments(vec!["--token=in-memory:0".into()]), ["--token=in-memory:0"]);
    }
}
