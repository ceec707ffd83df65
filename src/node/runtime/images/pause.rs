//! The built-in pause image: a static program of 200 bytes that holds a sandbox's namespaces, and
//! its OCI image.
//!
//! As process 1 it must exit on TERM and INT, and reap the orphans of a shared process namespace.
//! It blocks the three signals and waits for them one by one, so it needs no handlers, no libc and
//! no stack beyond eight bytes.

use bytes::Bytes;

use crate::digest::sha256;
use crate::runtime::images::tarball;

/// Name of the image in the runtime; the host `localhost` prevents pulls from a registry.
pub(crate) const IMAGE: &str = "localhost/kube-lite/pause:1";

/// One blob of an OCI image.
#[derive(Debug, Clone)]
pub(crate) struct ImageBlob {
    pub(crate) media_type: &'static str,
    pub(crate) digest: String,
    pub(crate) bytes: Bytes,
}

impl ImageBlob {
    fn new(media_type: &'static str, bytes: Vec<u8>) -> Self {
        Self { media_type, digest: sha256(&bytes), bytes: bytes.into() }
    }
}

/// Layer, configuration and manifest of the image for this machine, in the order in which they must
/// be stored.
pub(crate) fn image() -> [ImageBlob; 3] {
    let (elf, architecture) = if cfg!(target_arch = "aarch64") {
        (elf(183, &aarch64()), "arm64")
    } else {
        (elf(62, X86_64), "amd64")
    };
    let layer = ImageBlob::new(
        "application/vnd.oci.image.layer.v1.tar",
        tarball::write(&[("pause", 0o755, &elf)]),
    );
    let config = serde_json::json!({
        "architecture": architecture, "os": "linux",
        "config": {"Entrypoint": ["/pause"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [layer.digest]},
        "history": [{"created_by": "kube-lite"}],
    });
    let config =
        ImageBlob::new("application/vnd.oci.image.config.v1+json", config.to_string().into_bytes());
    let descriptor = |b: &ImageBlob| {
        serde_json::json!({"mediaType": b.media_type,
        "digest": b.digest, "size": b.bytes.len()})
    };
    let manifest = serde_json::json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor(&config), "layers": [descriptor(&layer)],
    });
    let manifest = ImageBlob::new(
        "application/vnd.oci.image.manifest.v1+json",
        manifest.to_string().into_bytes(),
    );
    [layer, config, manifest]
}

/// The program for this machine, used by a trial container.
pub(crate) fn program() -> Vec<u8> {
    if cfg!(target_arch = "aarch64") { elf(183, &aarch64()) } else { elf(62, X86_64) }
}

/// An executable with one read-execute segment; `machine` is `e_machine` (62 x86-64, 183 AArch64).
fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let size = HEADERS + code.len() as u64;
    let mut out = Vec::with_capacity(HEADERS as usize + code.len());
    // e_ident: 64 bit, little-endian, version 1, System V.
    out.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    out.extend_from_slice(&2_u16.to_le_bytes()); // ET_EXEC
    out.extend_from_slice(&machine.to_le_bytes());
    out.extend_from_slice(&1_u32.to_le_bytes());
    for word in [BASE + HEADERS, 64, 0] {
        out.extend_from_slice(&word.to_le_bytes()); // entry, program headers, no sections
    }
    out.extend_from_slice(&0_u32.to_le_bytes());
    for half in [64_u16, 56, 1, 64, 0, 0] {
        out.extend_from_slice(&half.to_le_bytes());
    }
    out.extend_from_slice(&1_u32.to_le_bytes()); // PT_LOAD
    out.extend_from_slice(&5_u32.to_le_bytes()); // read, execute
    // Offset, addresses, sizes; 64 KiB satisfies every page size of AArch64.
    for word in [0, BASE, BASE, size, size, 0x1_0000] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(code);
    out
}

/// `rt_sigprocmask(BLOCK, {INT, TERM, CHLD})`, then a loop: `rt_sigtimedwait`; INT or TERM:
/// `exit(0)`; else `wait4` with `WNOHANG` until no child is left.
const X86_64: &[u8] = &[
    0x68, 0x02, 0x40, 0x01, 0x00, // push 0x14002: the set
    0x31, 0xff, 0x48, 0x89, 0xe6, 0x31, 0xd2, // edi = 0, rsi = rsp, edx = 0
    0x6a, 0x08, 0x41, 0x5a, 0x6a, 0x0e, 0x58, 0x0f, 0x05, // r10 = 8, eax = 14, syscall
    // wait: 0x15
    0x48, 0x89, 0xe7, 0x31, 0xf6, 0x31, 0xd2, // rdi = rsp, esi = 0, edx = 0
    0x6a, 0x08, 0x41, 0x5a, 0xb8, 0x80, 0x00, 0x00, 0x00, 0x0f, 0x05, // r10 = 8, eax = 128
    0x83, 0xf8, 0x02, 0x74, 0x1b, // INT: exit
    0x83, 0xf8, 0x0f, 0x74, 0x16, // TERM: exit
    // reap: 0x31
    0x6a, 0xff, 0x5f, 0x31, 0xf6, 0x6a, 0x01, 0x5a, // rdi = -1, esi = 0, edx = WNOHANG
    0x45, 0x31, 0xd2, 0x6a, 0x3d, 0x58, 0x0f, 0x05, // r10 = 0, eax = 61
    0x85, 0xc0, 0x7f, 0xec, 0xeb, 0xce, // one reaped: again; else wait
    // exit: 0x47
    0x31, 0xff, 0x6a, 0x3c, 0x58, 0x0f, 0x05, // edi = 0, eax = 60
];

/// The same program for AArch64.
fn aarch64() -> Vec<u8> {
    const CODE: [u32; 32] = [
        0xD100_43FF, // sub sp, sp, #16
        0xD288_0049, // mov x9, #0x4002
        0xF2A0_0029, // movk x9, #1, lsl #16
        0xF900_03E9, // str x9, [sp]
        0xD280_0000, // mov x0, #0
        0x9100_03E1, // mov x1, sp
        0xD280_0002, // mov x2, #0
        0xD280_0103, // mov x3, #8
        0xD280_10E8, // mov x8, #135 (rt_sigprocmask)
        0xD400_0001, // svc #0
        0x9100_03E0, // wait: mov x0, sp
        0xD280_0001, // mov x1, #0
        0xD280_0002, // mov x2, #0
        0xD280_0103, // mov x3, #8
        0xD280_1128, // mov x8, #137 (rt_sigtimedwait)
        0xD400_0001, // svc #0
        0x7100_081F, // cmp w0, #2
        0x5400_0180, // b.eq exit
        0x7100_3C1F, // cmp w0, #15
        0x5400_0140, // b.eq exit
        0x9280_0000, // reap: mov x0, #-1
        0xD280_0001, // mov x1, #0
        0xD280_0022, // mov x2, #1 (WNOHANG)
        0xD280_0003, // mov x3, #0
        0xD280_2088, // mov x8, #260 (wait4)
        0xD400_0001, // svc #0
        0x7100_001F, // cmp w0, #0
        0x54FF_FF2C, // b.gt reap
        0x17FF_FFEE, // b wait
        0xD280_0000, // exit: mov x0, #0
        0xD280_0BA8, // mov x8, #93 (exit)
        0xD400_0001, // svc #0
    ];
    CODE.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn the_program_exits_with_success_on_term_and_int() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pause");
        std::fs::write(&path, program()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            let mut child = Command::new(&path).spawn().unwrap();
            let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
            // It can handle signals once it waits in rt_sigtimedwait.
            let call = if cfg!(target_arch = "aarch64") { "137 " } else { "128 " };
            let path = format!("/proc/{pid}/syscall");
            while !std::fs::read_to_string(&path).unwrap().starts_with(call) {
                assert!(child.try_wait().unwrap().is_none(), "it ended early");
                std::thread::yield_now();
            }
            kill(pid, signal).unwrap();
            let status = child.wait().unwrap();
            assert_eq!((status.code(), status.signal()), (Some(0), None), "{signal}");
        }
    }
}
