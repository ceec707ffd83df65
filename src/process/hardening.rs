//! Hides secrets of this process from other processes: memory, created files and arguments.

use std::ffi::{OsStr, OsString};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, umask};

/// Flags whose value is a secret, each with its long form.
const SECRET_FLAGS: [(&str, &str); 13] = [
    ("--agent-token", "--agent-token"),
    ("--token", "--token"),
    ("-t", "--token"),
    ("--etcd-s3-secret-key", "--etcd-s3-secret-key"),
    ("--s3-secret-key", "--etcd-s3-secret-key"),
    ("--etcd-s3-session-token", "--etcd-s3-session-token"),
    ("--s3-session-token", "--etcd-s3-session-token"),
    ("--etcd-s3-proxy", "--etcd-s3-proxy"),
    ("--s3-proxy", "--etcd-s3-proxy"),
    ("--datastore-endpoint", "--datastore-endpoint"),
    ("--from", "--from"),
    ("--kubelet-arg=manifest-url-header", "--kubelet-arg=manifest-url-header"),
    // The value of a `--kubelet-arg` without `=`.
    ("manifest-url-header", "manifest-url-header"),
];

/// Prefix of the placeholder for a secret, followed by the number of the file descriptor that
/// contains it.
const PLACEHOLDER: &str = "in-memory:";

/// Name of the memfd with a secret, which identifies it after `execve`.
const MEMFD_NAME: &str = "kube-lite-token";

/// Makes memory, environment and descriptors of this process unreadable for other processes of the
/// same user, disables core dumps, and removes write permission for group and others from new
/// files. `execve` reverts the first two for programs that this process starts.
pub fn harden_process() {
    // It fails only on a kernel without it, where there is no alternative.
    let _ = nix::sys::prctl::set_dumpable(false);
    // Independent of the service manager's umask; stricter files set their own mode.
    umask(umask(Mode::empty()) | Mode::S_IWGRP | Mode::S_IWOTH);
}

/// The arguments with the secrets that [`hide_arguments`] removed from them; closes the descriptors
/// of the secrets.
pub fn reveal_arguments(arguments: Vec<OsString>) -> Vec<OsString> {
    arguments.into_iter().map(|argument| reveal_argument(&argument).unwrap_or(argument)).collect()
}

fn reveal_argument(argument: &OsStr) -> Option<OsString> {
    let (flag, value) = argument.to_str()?.rsplit_once('=')?;
    let number = value.strip_prefix(PLACEHOLDER)?.parse().ok()?;
    if !SECRET_FLAGS.iter().any(|(_, long)| *long == flag) {
        return None;
    }
    let path = PathBuf::from(format!("/proc/self/fd/{number}"));
    // Any other file with this number must not be read or closed.
    let is_ours = std::fs::read_link(&path).is_ok_and(|to| {
        to.to_str().is_some_and(|to| to.starts_with(&format!("/memfd:{MEMFD_NAME} ")))
    });
    let secret = is_ours.then(|| std::fs::read(&path)).and_then(Result::ok)?;
    let _ = nix::unistd::close::<i32>(number);
    let mut whole = OsString::from(format!("{flag}="));
    whole.push(OsString::from_vec(secret));
    Some(whole)
}

/// Executes this program again without secrets in its arguments, which every user of the machine
/// can read: each secret is passed in a memfd. Returns if there is no secret, or if that fails.
pub fn hide_arguments(arguments: &[OsString]) {
    let mut kept = Vec::new();
    let hidden = replace_secrets(arguments, |secret| {
        let file = memory_file(secret)?;
        let placeholder = format!("{PLACEHOLDER}{}", file.as_raw_fd());
        kept.push(file);
        Some(placeholder)
    });
    let Some(hidden) = hidden else { return };
    let (Some((name, rest)), Ok(own)) = (hidden.split_first(), std::env::current_exe()) else {
        return;
    };
    // `exec` returns only on failure; the process then continues with its arguments.
    let error = std::process::Command::new(own).arg0(name).args(rest).exec();
    let _ = writeln!(std::io::stderr(), "cannot hide secrets in the arguments: {error}");
}

/// A memfd with the secret, which the executed program inherits.
fn memory_file(secret: &OsStr) -> Option<std::fs::File> {
    let mut file = std::fs::File::from(memfd_create(MEMFD_NAME, MFdFlags::empty()).ok()?);
    file.write_all(secret.as_bytes()).ok()?;
    file.rewind().ok()?;
    Some(file)
}

/// Whether the value of a flag may be the next word. That of an argument of a component is in the
/// word of the argument.
fn takes_next_word(flag: &str) -> bool {
    flag.starts_with('-') && !flag.contains('=')
}

/// The arguments with a placeholder for each secret; `None` if there is no secret, or if `store`
/// fails.
fn replace_secrets(
    arguments: &[OsString],
    mut store: impl FnMut(&OsStr) -> Option<String>,
) -> Option<Vec<OsString>> {
    // In other commands a token is an id or a filter, not a secret.
    if !arguments.get(1).is_some_and(|command| command == "server" || command == "agent") {
        return None;
    }
    let (mut out, mut has_secret) = (Vec::new(), false);
    let mut all = arguments.iter();
    while let Some(argument) = all.next() {
        let secret = SECRET_FLAGS.iter().find_map(|(flag, long)| {
            match argument.as_bytes().strip_prefix(flag.as_bytes())? {
                [] if takes_next_word(long) => Some((*long, None)),
                [b'=', value @ ..] => Some((*long, Some(value))),
                value if *flag == "-t" => Some((*long, Some(value))),
                _ => None,
            }
        });
        let Some((long, value)) = secret else {
            out.push(argument.clone());
            continue;
        };
        // The parser rejects a flag without a value.
        let value = match value {
            Some(value) => OsStr::from_bytes(value),
            None => all.next()?,
        };
        if value.as_bytes().starts_with(PLACEHOLDER.as_bytes()) {
            out.push(argument.clone());
            continue;
        }
        has_secret = true;
        out.push(format!("{long}={}", store(value)?).into());
    }
    has_secret.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form of the flags, and no other command.
    #[test]
    fn secrets_are_removed_from_the_arguments() {
        let run = |line: &str| {
            let mut stored = Vec::new();
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let out = replace_secrets(&arguments, |secret| {
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
                "kl agent --kubelet-arg=manifest-url-header=A:b=c --kubelet-arg=max-pods=7",
                "kl agent --kubelet-arg=manifest-url-header=in-memory:1 --kubelet-arg=max-pods=7",
                "A:b=c",
            ),
            (
                "kl agent --kubelet-arg manifest-url-header=A:b",
                "kl agent --kubelet-arg manifest-url-header=in-memory:1",
                "A:b",
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
            "kl agent --kubelet-arg manifest-url-header --debug",
        ] {
            assert_eq!(run(line).0, None, "{line}");
        }
    }

    /// The executed program reads the secret, and no program after it.
    #[test]
    fn a_secret_is_read_once() {
        use std::os::fd::IntoRawFd;
        let number = memory_file(OsStr::new("K10abc::server:x")).unwrap().into_raw_fd();
        let mark = || vec![OsString::from(format!("--token=in-memory:{number}"))];
        assert_eq!(reveal_arguments(mark()), ["--token=K10abc::server:x"]);
        assert_eq!(reveal_arguments(mark()), mark());
        assert_eq!(reveal_arguments(vec!["--token=in-memory:0".into()]), ["--token=in-memory:0"]);
    }
}
