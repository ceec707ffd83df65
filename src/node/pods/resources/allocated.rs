//! The allocated resources of a container that can change while it runs.

use api::k8s::api::core::v1 as core;
use proto::runtime::v1 as cri;

use super::{get, requests};

/// The allocated resources of a container that can change while it runs, in units of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AllocatedResources {
    /// Shares and quota.
    pub(crate) cpu: (i64, i64),
    /// Limit in bytes.
    pub(crate) memory: i64,
    /// Request in bytes, which the kernel does not know: a change of it may require a restart.
    pub(crate) memory_request: i64,
}

impl AllocatedResources {
    /// Those of a container with the resources `linux` in the runtime.
    pub(crate) fn of(container: &core::Container, linux: &cri::LinuxContainerResources) -> Self {
        Self {
            cpu: (linux.cpu_shares, linux.cpu_quota),
            memory: linux.memory_limit_in_bytes,
            memory_request: get(requests(container), "memory").map_or(0, |q| q.value()),
        }
    }

    /// Formats the value of the container's annotation.
    pub(crate) fn text(self) -> String {
        format!("{} {} {} {}", self.cpu.0, self.cpu.1, self.memory, self.memory_request)
    }

    /// Parses an annotation; `None` if its format is unknown.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|n| n.parse::<i64>().ok());
        let mut next = || numbers.next().flatten();
        let (cpu, memory) = ((next()?, next()?), next()?);
        Some(Self { cpu, memory, memory_request: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn allocated_resources_round_trip_through_the_annotation() {
        let resources = json!({"requests": {"memory": "32Mi"}});
        let container = json!({"name": "a", "resources": resources});
        let container = serde_json::from_value(container).unwrap();
        let linux = cri::LinuxContainerResources {
            cpu_shares: 102,
            cpu_quota: 20_000,
            memory_limit_in_bytes: 64 << 20,
            ..cri::LinuxContainerResources::default()
        };
        let allocated = AllocatedResources::of(&container, &linux);
        assert_eq!(allocated.text(), "102 20000 67108864 33554432");
        assert_eq!(AllocatedResources::parse(&allocated.text()), Some(allocated));
        // A container of an earlier version is taken as it is.
        assert_eq!(AllocatedResources::parse("102 20000 67108864"), None);
    }
}
