//! The CNI plugin: the runtime runs this executable, which hands the request to the running agent
//! over a socket.

mod attach;
mod bandwidth;
mod install;
mod plugin_list;
mod request;
mod server;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};

#[cfg(test)]
pub(crate) use attach::host_link;
pub(crate) use install::{install, uninstall};
pub use plugin_list::{PluginList, PluginListError};
pub(crate) use request::{Command, Failure, Reply, Request};
pub(crate) use server::Server;

/// Versions of the CNI specification spoken.
const VERSIONS: [&str; 6] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "0.2.0"];
/// Longest request or answer.
const MESSAGE_MAX: u64 = 1 << 20;
/// The agent waits for a pod block at most half of this.
const ANSWER_MAX: Duration = Duration::from_secs(60);

#[expect(
    clippy::disallowed_methods,
    reason = "the CNI protocol passes its arguments in the environment"
)]
fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Whether this process was started as a CNI plugin.
pub fn is_cni_call() -> bool {
    !variable("CNI_COMMAND").is_empty()
}

/// Answers one CNI call on standard input and output.
pub fn cni_main() -> ExitCode {
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(MESSAGE_MAX).read_to_end(&mut input);
    let config: Value = match read.map(|_| serde_json::from_slice(&input)) {
        Ok(Ok(config)) => config,
        _ if variable("CNI_COMMAND") == "VERSION" => json!({}),
        Ok(Err(error)) => {
            return finish(
                "1.0.0",
                &Reply::failed(Failure::decode(format!("bad network configuration: {error}"))),
            );
        }
        Err(error) => {
            return finish(
                "1.0.0",
                &Reply::failed(Failure::io(format!("cannot read standard input: {error}"))),
            );
        }
    };
    let version = config["cniVersion"].as_str().unwrap_or("1.0.0").to_owned();
    let request = Request {
        command: variable("CNI_COMMAND"),
        container: variable("CNI_CONTAINERID"),
        netns: variable("CNI_NETNS"),
        interface: variable("CNI_IFNAME"),
        args: variable("CNI_ARGS"),
        config,
    };
    finish(&version, &answer(&request, &version))
}

fn answer(request: &Request, version: &str) -> Reply {
    if request.command == "VERSION" {
        return Reply::done(json!({"cniVersion": version, "supportedVersions": VERSIONS}));
    }
    if !VERSIONS.contains(&version) {
        let text = format!("cniVersion {version:?} is not supported, only {}", VERSIONS.join(", "));
        return Reply::failed(Failure { code: 1, message: text });
    }
    if request.config["type"] == "loopback" {
        return attach::loopback(request);
    }
    let socket = request.config["socket"].as_str().unwrap_or_default();
    match ask(Path::new(socket), request) {
        Ok(reply) => reply,
        // The runtime removes the network namespace and with it the link; the agent gives the
        // addresses back when it finds the link gone.
        Err(_) if request.command == "DEL" => Reply::done(Value::Null),
        Err(error) if request.command == "STATUS" => Reply::failed(Failure::unavailable(format!(
            "the kube-lite agent does not answer on {socket:?} ({error})"
        ))),
        Err(error) => Reply::failed(Failure::again(format!(
            "the kube-lite agent does not answer on {socket:?} ({error}); is kube-lite running on this node?"
        ))),
    }
}

fn ask(socket: &Path, request: &Request) -> std::io::Result<Reply> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    stream.write_all(&serde_json::to_vec(request)?)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = Vec::new();
    stream.take(MESSAGE_MAX).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

fn finish(version: &str, reply: &Reply) -> ExitCode {
    let (mut body, code) = match reply {
        Reply { failure: Some(failure), .. } => {
            (json!({"code": failure.code, "msg": failure.message}), ExitCode::FAILURE)
        }
        Reply { result, .. } => (result.clone(), ExitCode::SUCCESS),
    };
    if body.is_null() {
        return code;
    }
    if let Some(object) = body.as_object_mut() {
        object.insert("cniVersion".into(), version.into());
    }
    let written = std::io::stdout().lock().write_all(body.to_string().as_bytes());
    if written.is_err() { ExitCode::FAILURE } else { code }
}
