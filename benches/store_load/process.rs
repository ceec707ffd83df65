//! What processes have used, as the kernel counts it.

use std::fs;

use anyhow::Context;

/// CPU time and bytes written.
#[derive(Clone, Copy, Default)]
pub(crate) struct Usage {
    pub(crate) cpu_ns: u64,
    pub(crate) written: u64,
}

impl Usage {
    /// Of these processes together.
    pub(crate) fn of(processes: &[u32]) -> anyhow::Result<Self> {
        let mut sum = Self::default();
        for process in processes {
            sum.cpu_ns += cpu_ns(*process)?;
            let io = fs::read_to_string(format!("/proc/{process}/io"))?;
            let written = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
            sum.written += written.context("/proc/PID/io without write_bytes")?.parse::<u64>()?;
        }
        Ok(sum)
    }

    /// Of this process.
    pub(crate) fn own() -> anyhow::Result<u64> {
        cpu_ns(std::process::id())
    }
}

/// Nanoseconds that the threads of a process ran. Threads that have ended are missing; neither side
/// ends any while it is measured.
fn cpu_ns(process: u32) -> anyhow::Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{process}/task"))
        .with_context(|| format!("process {process} is not there"))?
    {
        // One that ends between the two.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        sum += text.split(' ').next().unwrap_or_default().parse::<u64>()?;
    }
    Ok(sum)
}
