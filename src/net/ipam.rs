//! Pod addresses of this node: one small synced file per sandbox, so that nothing leaks or doubles over a kill.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::addr::Cidr;
use crate::proxy::rules::HostPort;

/// What one sandbox interface holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) container: String,
    pub(crate) interface: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// Its link on the host.
    pub(crate) host_link: String,
    #[serde(default)]
    pub(crate) host_ports: Vec<HostPort>,
}

/// Why no address was given.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "all addresses of {block} are in use by {used} pods; delete pods or give nodes a larger block (--cluster-cidr)"
    )]
    Exhausted { block: Cidr, used: usize },
    #[error("the name {0:?} cannot be a file name")]
    BadName(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The addresses given out. Blocks: one per family at most.
#[derive(Debug)]
pub(crate) struct Ipam {
    directory: PathBuf,
    leases: BTreeMap<(String, String), Lease>,
    used: HashSet<IpAddr>,
    /// Where the last search ended, so that a freed address rests before it is given again.
    next: BTreeMap<Cidr, u128>,
}

fn file_name(container: &str, interface: &str) -> Result<String, Error> {
    let fine = |s: &str| {
        !s.is_empty()
            && s.len() < 120
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    if !fine(container) || !fine(interface) {
        return Err(Error::BadName(format!("{container}-{interface}")));
    }
    Ok(format!("{container}@{interface}.json"))
}

impl Ipam {
    /// Reads all leases; a torn or foreign file is set aside under `.bad`, since a lease is written before its use.
    pub(crate) fn open(directory: &Path) -> io::Result<Self> {
        base::fs::create_dir(directory, 0o700)?;
        let mut this = Self {
            directory: directory.to_owned(),
            leases: BTreeMap::new(),
            used: HashSet::new(),
            next: BTreeMap::new(),
        };
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension().is_none_or(|e| e != "json") {
                continue;
            }
            match serde_json::from_slice::<Lease>(&base::fs::read(&path)?) {
                Ok(lease) => {
                    this.used.extend(&lease.addresses);
                    this.leases.insert((lease.container.clone(), lease.interface.clone()), lease);
                }
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "unreadable address lease set aside");
                    std::fs::rename(&path, path.with_extension("bad"))?;
                }
            }
        }
        Ok(this)
    }

    pub(crate) fn get(&self, container: &str, interface: &str) -> Option<&Lease> {
        self.leases.get(&(container.to_owned(), interface.to_owned()))
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    fn pick(&mut self, block: Cidr) -> Result<IpAddr, Error> {
        // The first address is the network's, the second the bridge's, the last of IPv4 the broadcast address.
        let last =
            block.size().saturating_sub(if block.family() == crate::Family::V4 { 2 } else { 1 });
        let start = self.next.get(&block).copied().unwrap_or(2).clamp(2, last.max(2));
        let limit = u128::try_from(self.used.len()).unwrap_or(u128::MAX).saturating_add(1);
        let after = (start..=last).take(usize::try_from(limit).unwrap_or(usize::MAX));
        let before = (2..start.min(last.saturating_add(1)))
            .take(usize::try_from(limit).unwrap_or(usize::MAX));
        let found = after
            .chain(before)
            .filter_map(|index| Some((index, block.nth(index)?)))
            .find(|(_, ip)| !self.used.contains(ip));
        let Some((index, ip)) = found else {
            return Err(Error::Exhausted { block, used: self.leases.len() });
        };
        self.next.insert(block, index + 1);
        Ok(ip)
    }

    /// One address of each block, synced to disk; the lease there is already is given again.
    pub(crate) fn allocate(
        &mut self,
        container: &str,
        interface: &str,
        blocks: &[Cidr],
        host_link: &str,
    ) -> Result<Lease, Error> {
        if let Some(lease) = self.get(container, interface) {
            return Ok(lease.clone());
        }
        file_name(container, interface)?;
        let addresses = blocks.iter().map(|b| self.pick(*b)).collect::<Result<Vec<_>, _>>()?;
        let lease = Lease {
            container: container.to_owned(),
            interface: interface.to_owned(),
            addresses,
            host_link: host_link.to_owned(),
            host_ports: Vec::new(),
        };
        self.store(lease.clone())?;
        Ok(lease)
    }

    /// Writes a lease.
    pub(crate) fn store(&mut self, lease: Lease) -> Result<(), Error> {
        let path = self.directory.join(file_name(&lease.container, &lease.interface)?);
        let json = serde_json::to_vec(&lease).map_err(io::Error::other)?;
        base::fs::write_atomic(&path, &json, 0o600)?;
        self.used.extend(&lease.addresses);
        self.leases.insert((lease.container.clone(), lease.interface.clone()), lease);
        Ok(())
    }

    /// Gives addresses back; a lease that is not there is fine.
    pub(crate) fn release(
        &mut self,
        container: &str,
        interface: &str,
    ) -> Result<Option<Lease>, Error> {
        let key = (container.to_owned(), interface.to_owned());
        if !self.leases.contains_key(&key) {
            return Ok(None);
        }
        match std::fs::remove_file(self.directory.join(file_name(container, interface)?)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let lease = self.leases.remove(&key);
        for address in lease.iter().flat_map(|l| &l.addresses) {
            self.used.remove(address);
        }
        Ok(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_survive_a_restart_and_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let blocks = ["10.42.0.0/29".parse().unwrap(), "fd00:42::/64".parse().unwrap()];
        let mut ipam = Ipam::open(directory.path()).unwrap();
        let text = |l: &Lease| l.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let first = ipam.allocate("a", "eth0", &blocks, "v").unwrap();
        assert_eq!(text(&first), ["10.42.0.2", "fd00:42::2"]);
        assert_eq!(ipam.allocate("a", "eth0", &blocks, "v").unwrap(), first, "ADD twice");
        for name in ["b", "c", "d", "e"] {
            ipam.allocate(name, "eth0", &blocks, "v").unwrap();
        }
        let mut ipam = Ipam::open(directory.path()).unwrap();
        let full = ipam.allocate("f", "eth0", &blocks, "v").unwrap_err().to_string();
        assert!(full.starts_with("all addresses of 10.42.0.0/29 are in use by 5 pods"), "{full}");
        assert_eq!(
            ipam.release("c", "eth0").unwrap().unwrap().addresses[0].to_string(),
            "10.42.0.4"
        );
        assert!(ipam.release("c", "eth0").unwrap().is_none());
        assert_eq!(text(&ipam.allocate("f", "eth0", &blocks, "v").unwrap())[0], "10.42.0.4");
        assert!(ipam.allocate("../x", "eth0", &blocks, "v").is_err());
    }

    #[test]
    fn a_torn_file_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a@eth0.json"), b"{\"con").unwrap();
        let ipam = Ipam::open(directory.path()).unwrap();
        assert_eq!(ipam.leases().count(), 0);
        assert!(directory.path().join("a@eth0.bad").exists());
    }
}
