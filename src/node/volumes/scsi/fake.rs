//! A machine in a directory, with an `iscsiadm` that creates sessions and links in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use client::{Client, Error, Scope, Transport, WatchStream};
use http::{Request, Response};
use parking_lot::Mutex;

use super::programs::{ProgramError, ProgramOutput, Programs};
use super::{DeviceFiles, Scsi};

/// An API server that refuses everything.
#[derive(Debug)]
struct NoServer;

#[async_trait]
impl Transport for NoServer {
    async fn call(&self, _: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let mut response = Response::default();
        *response.status_mut() = http::StatusCode::NOT_FOUND;
        Ok(response)
    }

    async fn watch(&self, _: &Scope, _: Option<i64>) -> Result<WatchStream, Error> {
        std::future::pending().await
    }
}

/// What the programs of the machine do.
#[derive(Debug, Default)]
pub(crate) struct Behaviour {
    /// The output of `iscsiadm -m iface -o show`.
    pub(crate) iface: String,
    /// Portals at which no target answers.
    pub(crate) unreachable: Vec<String>,
    /// Portals at which a login creates no link.
    pub(crate) without_device: Vec<String>,
    /// The last words of calls that fail, with their statuses.
    pub(crate) failing: Vec<(&'static str, i32)>,
    pub(crate) is_missing: bool,
}

/// Programs that change the fake machine.
#[derive(Debug)]
pub(crate) struct FakePrograms {
    root: PathBuf,
    pub(crate) behaviour: Mutex<Behaviour>,
    /// The calls, with arguments.
    calls: Mutex<Vec<String>>,
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

impl FakePrograms {
    /// Takes the calls since the last time.
    pub(crate) fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }

    /// The number of the host of a portal: its last digit before the port.
    fn host_of(portal: &str) -> u32 {
        let address = portal.trim_end_matches(":3260").trim_end_matches(']');
        address.rsplit(['.', ':']).next().unwrap().parse().unwrap()
    }

    /// Creates the session of a portal and the device `sd<host>` behind it.
    fn log_in(&self, portal: &str, iqn: &str) {
        let host = Self::host_of(portal);
        let sys = self.root.join("sys/class");
        let session = sys.join(format!("iscsi_host/host{host}/device/session{host}"));
        write(&session.join(format!("iscsi_session/session{host}/targetname")), iqn);
        let connection = format!("connection{host}:0");
        let connection = session.join(&connection).join("iscsi_connection").join(&connection);
        let (address, port) = portal.rsplit_once(':').unwrap();
        let address = address.trim_matches(['[', ']']);
        for (name, text) in [
            ("address", address),
            ("port", port),
            ("persistent_address", address),
            ("persistent_port", port),
        ] {
            write(&connection.join(name), text);
        }
        write(&sys.join(format!("scsi_host/host{host}/scan")), "");
        let lun = session.join(format!("target{host}:0:0/{host}:0:0:0/block/sd{host}/size"));
        write(&lun, "1");
        write(&self.root.join(format!("sys/block/sd{host}/device/delete")), "");
        let device = self.root.join(format!("dev/sd{host}"));
        write(&device, "");
        if !self.behaviour.lock().without_device.iter().any(|without| without == portal) {
            let links = self.root.join("dev/disk/by-path");
            std::fs::create_dir_all(&links).unwrap();
            let link = links.join(format!("ip-{address}:{port}-iscsi-{iqn}-lun-0"));
            std::os::unix::fs::symlink(device, link).unwrap();
        }
    }

    fn iscsiadm(&self, arguments: &[String]) -> ProgramOutput {
        let status = |code| ProgramOutput { code: Some(code), ..ProgramOutput::default() };
        let after = |flag: &str| {
            let at = arguments.iter().position(|argument| argument == flag);
            at.and_then(|at| arguments.get(at + 1)).cloned().unwrap_or_default()
        };
        let has = |word: &str| arguments.iter().any(|argument| argument == word);
        if has("show") {
            let text = self.behaviour.lock().iface.clone();
            return ProgramOutput { text, ..status(0) };
        }
        if has("--discover") && self.behaviour.lock().unreachable.contains(&after("-p")) {
            return ProgramOutput { text: "no answer".to_owned(), ..status(8) };
        }
        if has("--login") {
            self.log_in(&after("-p"), &after("-T"));
        }
        if has("--logout") {
            let host = Self::host_of(&after("-p"));
            let session = self.root.join(format!("sys/class/iscsi_host/host{host}"));
            if std::fs::remove_dir_all(session).is_err() {
                return status(21);
            }
        }
        status(0)
    }
}

#[async_trait]
impl Programs for FakePrograms {
    async fn run(
        &self,
        program: &'static str,
        arguments: &[String],
    ) -> Result<ProgramOutput, ProgramError> {
        let call = format!("{program} {}", arguments.join(" "));
        self.calls.lock().push(call.clone());
        let behaviour = self.behaviour.lock();
        if behaviour.is_missing {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(ProgramError::Missing { program, package: "open-iscsi", source });
        }
        let failing = behaviour.failing.iter().find(|(words, _)| call.ends_with(words));
        if let Some((_, code)) = failing {
            return Ok(ProgramOutput { code: Some(*code), ..ProgramOutput::default() });
        }
        drop(behaviour);
        if program == "iscsiadm" {
            return Ok(self.iscsiadm(arguments));
        }
        Ok(ProgramOutput { code: Some(0), ..ProgramOutput::default() })
    }
}

/// A fake machine and the volumes on it.
pub(crate) struct FakeMachine {
    pub(crate) home: tempfile::TempDir,
    pub(crate) scsi: Arc<Scsi>,
    pub(crate) programs: Arc<FakePrograms>,
}

impl FakeMachine {
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = home.path().canonicalize().unwrap();
        let behaviour = Behaviour {
            iface: "# BEGIN RECORD\niface.iscsi_ifacename = default\niface.transport_name = tcp\n\
                iface.initiatorname = <empty>\niface.mtu = 0\n# END RECORD\n"
                .to_owned(),
            ..Behaviour::default()
        };
        let programs = Arc::new(FakePrograms {
            root: root.clone(),
            behaviour: Mutex::new(behaviour),
            calls: Mutex::default(),
        });
        std::fs::create_dir_all(root.join("dev")).unwrap();
        let scsi = Arc::new(Scsi {
            root: root.join("kubelet"),
            client: Client::new(Arc::new(NoServer), "test"),
            files: DeviceFiles::below(&root),
            programs: Arc::clone(&programs) as _,
            locks: Default::default(),
            detaching: Default::default(),
            removing: Default::default(),
        });
        Self { home, scsi, programs }
    }

    /// Writes a file of the machine.
    pub(crate) fn write(&self, path: &str, text: &str) {
        write(&self.home.path().join(path), text);
    }

    /// Reads a file of the machine.
    pub(crate) fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.home.path().join(path)).unwrap_or_default()
    }

    /// The path of a device.
    pub(crate) fn device(&self, name: &str) -> PathBuf {
        self.home.path().canonicalize().unwrap().join("dev").join(name)
    }
}
