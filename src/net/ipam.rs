//! Pod addresses of this node: one small synced file per sandbox, so that nothing leaks or doubles
//! over a kill.
//!
//! What a sandbox gave back is kept for its pod: after a restart of the machine, or of the sandbox
//! alone, the pod has the addresses that the cluster knows, also where no server is there to tell
//! it of others.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use sorting::CompactSort as _;

use crate::proxy::rules::HostPort;
use settings::addr::Cidr;

/// Addresses kept for pods without a sandbox; of more the oldest are given up. A node has 110 pods
/// by default.
const KEPT_MAX: usize = 256;
/// Ending of the file of a lease, and of one that is kept for its pod.
const HELD: &str = "json";
const KEPT: &str = "kept";

/// What one sandbox interface holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) container: String,
    pub(crate) interface: String,
    /// Uid of the pod; empty where the runtime does not tell.
    #[serde(default)]
    pub(crate) pod: String,
    /// Its namespace and name; empty where the runtime does not tell, and of earlier versions.
    #[serde(default)]
    pub(crate) namespace: String,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) addresses: Vec<IpAddr>,
    /// Its link on the host.
    pub(crate) host_link: String,
    #[serde(default)]
    pub(crate) host_ports: Vec<HostPort>,
}

/// Whose addresses they are, as the runtime tells; what it does not tell is empty.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Owner<'a> {
    pub(crate) uid: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

#[cfg(test)]
impl<'a> From<&'a str> for Owner<'a> {
    fn from(uid: &'a str) -> Self {
        Self { uid, ..Self::default() }
    }
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
    /// A second file of each lease, which lives as long as the links do: until the machine
    /// restarts.
    copies: Option<PathBuf>,
    leases: BTreeMap<(String, String), Lease>,
    used: HashSet<IpAddr>,
    /// What pods without a sandbox had, the oldest first. Nobody else gets it while there is
    /// something else.
    kept: VecDeque<Lease>,
    /// Where the last search ended, so that a freed address rests before it is given again.
    next: BTreeMap<Cidr, u128>,
}

/// The file of a lease (of a container), or of what is kept for a pod.
fn file_name(owner: &str, interface: &str, ending: &str) -> Result<String, Error> {
    let fine = |s: &str| {
        !s.is_empty()
            && s.len() < 120
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    if !fine(owner) || !fine(interface) {
        return Err(Error::BadName(format!("{owner}-{interface}")));
    }
    Ok(format!("{owner}@{interface}.{ending}"))
}

/// The leases of a folder in files of this ending, with the time they were written.
fn read_all(directory: &Path, ending: &str) -> io::Result<Vec<(SystemTime, Lease)>> {
    let mut leases = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_none_or(|e| e != ending) {
            continue;
        }
        let read = serde_json::from_slice::<Lease>(&base::fs::read(&path)?);
        let lease = read.map_err(|error| error.to_string()).and_then(|lease| {
            let owner = if ending == KEPT { &lease.pod } else { &lease.container };
            let name = file_name(owner, &lease.interface, ending).map_err(|e| e.to_string())?;
            let is_its_own = entry.file_name() == name.as_str();
            is_its_own.then_some(lease).ok_or_else(|| format!("it holds the lease of {name}"))
        });
        match lease {
            Ok(lease) => leases.push((entry.metadata()?.modified()?, lease)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "unreadable address lease set aside");
                std::fs::rename(&path, path.with_extension("bad"))?;
            }
        }
    }
    Ok(leases)
}

impl Ipam {
    /// Reads all leases; a torn or foreign file is set aside under `.bad`, since a lease is written
    /// before its use. A lease that is lost while its pod runs is restored from `copies`: its
    /// addresses would be given to another pod.
    pub(crate) fn open(directory: &Path, copies: Option<&Path>) -> io::Result<Self> {
        base::fs::create_dir(directory, 0o700)?;
        let mut this = Self {
            directory: directory.to_owned(),
            copies: copies.map(Path::to_owned),
            leases: BTreeMap::new(),
            used: HashSet::new(),
            kept: VecDeque::new(),
            next: BTreeMap::new(),
        };
        for lease in read_all(directory, HELD)? {
            this.insert(lease.1);
        }
        if let Some(copies) = copies {
            base::fs::create_dir(copies, 0o700)?;
            for (_, lease) in read_all(copies, HELD)? {
                if this.get(&lease.container, &lease.interface).is_none() {
                    tracing::warn!(
                        container = lease.container,
                        pod = lease.name,
                        namespace = lease.namespace,
                        "a pod's address lease is lost: restored from its copy"
                    );
                    this.store(lease).map_err(io::Error::other)?;
                }
            }
            // Those of an earlier version, and of a machine that has restarted, have none.
            for lease in this.leases.values() {
                this.write_copy(lease).map_err(io::Error::other)?;
            }
        }
        let mut kept = read_all(directory, KEPT)?;
        kept.compact_sort_by_key(|(written, _)| *written);
        this.kept = kept.into_iter().map(|(_, lease)| lease).collect();
        let taken = |l: &Lease| l.addresses.iter().any(|a| this.used.contains(a));
        let stale: Vec<Lease> = this.kept.iter().filter(|l| taken(l)).cloned().collect();
        for lease in stale {
            this.give_up(&lease.pod, &lease.interface)?;
        }
        Ok(this)
    }

    fn insert(&mut self, lease: Lease) {
        self.used.extend(&lease.addresses);
        self.leases.insert((lease.container.clone(), lease.interface.clone()), lease);
    }

    fn write_copy(&self, lease: &Lease) -> Result<(), Error> {
        let Some(copies) = &self.copies else { return Ok(()) };
        let path = copies.join(file_name(&lease.container, &lease.interface, HELD)?);
        let json = serde_json::to_vec(lease).map_err(io::Error::other)?;
        if std::fs::read(&path).is_ok_and(|there| there == json) {
            return Ok(());
        }
        Ok(base::fs::write_atomic(&path, &json, 0o600)?)
    }

    /// Keeps nothing for a pod any more; what it had, if anything.
    fn give_up(&mut self, pod: &str, interface: &str) -> io::Result<Option<Lease>> {
        let Some(index) = self.kept.iter().position(|l| l.pod == pod && l.interface == interface)
        else {
            return Ok(None);
        };
        let name = file_name(pod, interface, KEPT).map_err(io::Error::other)?;
        match std::fs::remove_file(self.directory.join(name)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(self.kept.remove(index)),
        }
    }

    /// What is kept for a pod, where all of it is of these blocks and free.
    fn kept_for(&self, pod: &str, interface: &str, blocks: &[Cidr]) -> Option<Vec<IpAddr>> {
        let lease = self.kept.iter().find(|l| l.pod == pod && l.interface == interface)?;
        let fits = lease.addresses.len() == blocks.len()
            && lease.addresses.iter().zip(blocks).all(|(a, block)| block.contains(*a))
            && !lease.addresses.iter().any(|a| self.used.contains(a));
        fits.then(|| lease.addresses.clone())
    }

    pub(crate) fn get(&self, container: &str, interface: &str) -> Option<&Lease> {
        self.leases.get(&(container.to_owned(), interface.to_owned()))
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.leases.values()
    }

    fn pick(&mut self, block: Cidr) -> Result<IpAddr, Error> {
        // The first address is the network's, the second the bridge's, the last of IPv4 the
        // broadcast address.
        let last =
            block.size().saturating_sub(if block.family() == settings::Family::V4 { 2 } else { 1 });
        let start = self.next.get(&block).copied().unwrap_or(2).clamp(2, last.max(2));
        let passed = self.used.len() + self.kept.iter().map(|l| l.addresses.len()).sum::<usize>();
        let limit = u128::try_from(passed).unwrap_or(u128::MAX).saturating_add(1);
        let after = (start..=last).take(usize::try_from(limit).unwrap_or(usize::MAX));
        let before = (2..start.min(last.saturating_add(1)))
            .take(usize::try_from(limit).unwrap_or(usize::MAX));
        let kept: HashSet<IpAddr> =
            self.kept.iter().flat_map(|l| l.addresses.iter().copied()).collect();
        let mut free = after
            .chain(before)
            .filter_map(|index| Some((index, block.nth(index)?)))
            .filter(|(_, ip)| !self.used.contains(ip));
        let found = free.find(|(_, ip)| !kept.contains(ip));
        drop(free);
        // What was kept longest goes first where nothing else is left.
        let Some((index, ip)) = found else {
            let oldest = self.kept.iter().find_map(|l| {
                let ip = l.addresses.iter().find(|a| block.contains(**a))?;
                (!self.used.contains(ip)).then(|| (l.pod.clone(), l.interface.clone(), *ip))
            });
            let Some((pod, interface, ip)) = oldest else {
                return Err(Error::Exhausted { block, used: self.leases.len() });
            };
            self.give_up(&pod, &interface)?;
            return Ok(ip);
        };
        self.next.insert(block, index + 1);
        Ok(ip)
    }

    /// One address of each block, synced to disk; the lease there is already is given again, and so
    /// is what is kept for the pod.
    pub(crate) fn allocate<'a>(
        &mut self,
        container: &str,
        interface: &str,
        pod: impl Into<Owner<'a>>,
        blocks: &[Cidr],
        host_link: &str,
    ) -> Result<Lease, Error> {
        if let Some(lease) = self.get(container, interface) {
            return Ok(lease.clone());
        }
        file_name(container, interface, HELD)?;
        let pod = pod.into();
        let addresses = match self.kept_for(pod.uid, interface, blocks) {
            Some(addresses) => addresses,
            None => blocks.iter().map(|b| self.pick(*b)).collect::<Result<Vec<_>, _>>()?,
        };
        let lease = Lease {
            container: container.to_owned(),
            interface: interface.to_owned(),
            pod: pod.uid.to_owned(),
            namespace: pod.namespace.to_owned(),
            name: pod.name.to_owned(),
            addresses,
            host_link: host_link.to_owned(),
            host_ports: Vec::new(),
        };
        self.store(lease.clone())?;
        self.give_up(pod.uid, interface)?;
        Ok(lease)
    }

    /// Writes a lease.
    pub(crate) fn store(&mut self, lease: Lease) -> Result<(), Error> {
        let path = self.directory.join(file_name(&lease.container, &lease.interface, HELD)?);
        let json = serde_json::to_vec(&lease).map_err(io::Error::other)?;
        base::fs::write_atomic(&path, &json, 0o600)?;
        self.write_copy(&lease)?;
        self.insert(lease);
        Ok(())
    }

    /// Gives addresses back, to be kept for the pod; a lease that is not there is fine.
    pub(crate) fn release(
        &mut self,
        container: &str,
        interface: &str,
    ) -> Result<Option<Lease>, Error> {
        let key = (container.to_owned(), interface.to_owned());
        let Some(lease) = self.leases.get(&key).cloned() else { return Ok(None) };
        let name = file_name(container, interface, HELD)?;
        // The copy first: it would bring the lease back.
        match self.copies.as_ref().map(|copies| std::fs::remove_file(copies.join(&name))) {
            Some(Err(e)) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        let file = self.directory.join(name);
        // A pod may have had two sandboxes: what it got last counts.
        self.give_up(&lease.pod, interface)?;
        let kept = file_name(&lease.pod, interface, KEPT).ok();
        let done = match &kept {
            Some(name) => std::fs::rename(&file, self.directory.join(name)),
            None => std::fs::remove_file(&file),
        };
        match done {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        self.leases.remove(&key);
        for address in &lease.addresses {
            self.used.remove(address);
        }
        if kept.is_some() {
            self.kept.push_back(lease.clone());
            if self.kept.len() > KEPT_MAX
                && let Some((pod, interface)) =
                    self.kept.front().map(|l| (l.pod.clone(), l.interface.clone()))
            {
                self.give_up(&pod, &interface)?;
            }
        }
        Ok(Some(lease))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_unique_survive_a_restart_and_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let blocks = ["10.42.0.0/29".parse().unwrap(), "fd00:42::/64".parse().unwrap()];
        let mut ipam = Ipam::open(directory.path(), None).unwrap();
        let text = |l: &Lease| l.addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let first = ipam.allocate("a", "eth0", "", &blocks, "v").unwrap();
        assert_eq!(text(&first), ["10.42.0.2", "fd00:42::2"]);
        assert_eq!(ipam.allocate("a", "eth0", "", &blocks, "v").unwrap(), first, "ADD twice");
        for name in ["b", "c", "d", "e"] {
            ipam.allocate(name, "eth0", "", &blocks, "v").unwrap();
        }
        let mut ipam = Ipam::open(directory.path(), None).unwrap();
        let full = ipam.allocate("f", "eth0", "", &blocks, "v").unwrap_err().to_string();
        assert!(full.starts_with("all addresses of 10.42.0.0/29 are in use by 5 pods"), "{full}");
        assert_eq!(
            ipam.release("c", "eth0").unwrap().unwrap().addresses[0].to_string(),
            "10.42.0.4"
        );
        assert!(ipam.release("c", "eth0").unwrap().is_none());
        assert_eq!(text(&ipam.allocate("f", "eth0", "", &blocks, "v").unwrap())[0], "10.42.0.4");
        assert!(ipam.allocate("../x", "eth0", "", &blocks, "v").is_err());
    }

    #[test]
    fn a_torn_file_is_set_aside() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a@eth0.json"), b"{\"con").unwrap();
        let ipam = Ipam::open(directory.path(), None).unwrap();
        assert_eq!(ipam.leases().count(), 0);
        assert!(directory.path().join("a@eth0.bad").exists());
    }

    #[test]
    fn a_lease_that_is_lost_while_its_pod_runs_comes_back_from_its_copy() {
        let directory = tempfile::tempdir().unwrap();
        let (leases, copies) = (directory.path().join("leases"), directory.path().join("copies"));
        let open = || Ipam::open(&leases, Some(&copies)).unwrap();
        let blocks = ["10.42.0.0/29".parse().unwrap()];
        // Of an earlier version: without copies.
        let mut ipam = Ipam::open(&leases, None).unwrap();
        let owner = Owner { uid: "u", namespace: "n", name: "p" };
        let first = ipam.allocate("a", "eth0", owner, &blocks, "v").unwrap();
        let second = open().allocate("b", "eth0", "w", &blocks, "v").unwrap();
        std::fs::remove_file(leases.join("a@eth0.json")).unwrap();
        // A torn file, and one of another sandbox.
        for content in [&b"\0\0\0\0"[..], &serde_json::to_vec(&first).unwrap()] {
            std::fs::write(leases.join("b@eth0.json"), content).unwrap();
            let ipam = open();
            assert_eq!(ipam.get("a", "eth0"), Some(&first));
            assert_eq!(ipam.get("b", "eth0"), Some(&second));
            assert_eq!(open().leases().count(), 2);
        }
        let third = open().allocate("c", "eth0", "x", &blocks, "v").unwrap();
        assert!(![&first, &second].iter().any(|l| l.addresses == third.addresses));
        // What is given back does not come back.
        open().release("a", "eth0").unwrap().unwrap();
        assert_eq!(open().get("a", "eth0"), None);
    }

    #[test]
    fn a_pod_gets_again_what_its_former_sandbox_had() {
        let directory = tempfile::tempdir().unwrap();
        let blocks = ["10.42.0.0/29".parse().unwrap(), "fd00:42::/64".parse().unwrap()];
        let mut ipam = Ipam::open(directory.path(), None).unwrap();
        let text = |l: &Lease| l.addresses[0].to_string();
        for (container, pod) in [("a", "one"), ("b", "two"), ("c", "three")] {
            ipam.allocate(container, "eth0", pod, &blocks, "v").unwrap();
        }
        // The machine starts again: the links are gone, the pods come in another order.
        let mut ipam = Ipam::open(directory.path(), None).unwrap();
        for container in ["a", "b", "c"] {
            ipam.release(container, "eth0").unwrap().unwrap();
        }
        let mut ipam = Ipam::open(directory.path(), None).unwrap();
        assert_eq!(text(&ipam.allocate("d", "eth0", "new", &blocks, "v").unwrap()), "10.42.0.5");
        let three = ipam.allocate("e", "eth0", "three", &blocks, "v").unwrap();
        assert_eq!(
            three.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.42.0.4", "fd00:42::4"]
        );
        assert_eq!(text(&ipam.allocate("f", "eth0", "two", &blocks, "v").unwrap()), "10.42.0.3");
        // Nothing else is left than the last free one and what is kept for the first pod.
        assert_eq!(text(&ipam.allocate("g", "eth0", "x", &blocks, "v").unwrap()), "10.42.0.6");
        assert_eq!(text(&ipam.allocate("h", "eth0", "y", &blocks, "v").unwrap()), "10.42.0.2");
        assert!(ipam.allocate("i", "eth0", "one", &blocks, "v").is_err());
        // A block that changed is not what the pod had.
        let other = ["10.43.0.0/29".parse().unwrap(), "fd00:43::/64".parse().unwrap()];
        ipam.release("e", "eth0").unwrap();
        assert_eq!(text(&ipam.allocate("j", "eth0", "three", &other, "v").unwrap()), "10.43.0.2");
        let mut names: Vec<String> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["d@eth0.json", "f@eth0.json", "g@eth0.json", "h@eth0.json", "j@eth0.json"]
        );
    }
}
