//! Every error that ends a command: an id, what is wrong, why, and how to fix it.

use std::fmt;

/// One kind of error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CatalogueEntry {
    /// `KL` and four digits: 01xx command line and configuration, 02xx host, 03xx data,
    /// 04xx network, 05xx runtime, 06xx a part that failed.
    pub id: &'static str,
    /// What is wrong, in one sentence.
    pub what: &'static str,
    /// Why the command stops; empty where the message says it.
    pub why: &'static str,
    /// What to do, with a command where there is one.
    pub fix: &'static str,
}

macro_rules! entries {
    ($(
        $(#[$doc:meta])*
        $name:ident = $id:literal, $what:literal, $why:literal, $fix:literal;
    )*) => {
        $(
            $(#[$doc])*
            pub const $name: CatalogueEntry =
                CatalogueEntry { id: $id, what: $what, why: $why, fix: $fix };
        )*
        /// All entries.
        pub const ALL: &[CatalogueEntry] = &[$($name),*];
    };
}

entries! {
    /// Unknown flag or command.
    USAGE = "KL0101", "The command line has an unknown flag, command or value.",
        "The command line was not understood, so nothing was started.",
        "Run the command with --help for its flags and their defaults.";
    /// Known to k3s, not to us.
    UNSUPPORTED_FLAG = "KL0102", "This k3s flag is known but not supported yet.",
        "Ignoring it would start a cluster with other settings than requested.",
        "Remove the flag; `kube-lite server --help` lists the supported flags.";
    /// Invalid config.yaml.
    CONFIG_FILE = "KL0103", "The configuration file cannot be used.",
        "It cannot be read, is not a YAML mapping, or has a key that is not a flag of this command.",
        "Correct the line named above; keys are flag names without the leading dashes.";
    /// Invalid value of a flag.
    BAD_VALUE = "KL0104", "The value of a flag is invalid.",
        "",
        "Correct the value named above; `kube-lite server --help` describes its format.";
    /// The etcd-compatible API is off.
    ETCD_OFF = "KL0105", "The server does not serve the etcd-compatible API.",
        "The etcd-compatible API of the store is off by default.",
        "Start the server with `kube-lite server --etcd-listen=127.0.0.1:2379`, or put `etcd-listen: 127.0.0.1:2379` into its config.yaml, and try again.";
    /// Not root.
    NEED_ROOT = "KL0201", "The node part needs root.",
        "Only root can set up containers, cgroups and the pod network.",
        "Run `sudo kube-lite server`, or `kube-lite server --disable-agent` to run the control plane only.";
    /// cgroups.
    NO_CGROUPS = "KL0202", "A cgroup controller that pods need is missing.",
        "Without it the kernel cannot enforce the limits of pods; on a Raspberry Pi the memory controller is off by default.",
        "Add `cgroup_memory=1 cgroup_enable=memory` to the line in /boot/firmware/cmdline.txt and reboot, or run with --disable-agent.";
    /// Kernel features.
    NO_KERNEL_FEATURE = "KL0203", "The kernel lacks a feature that the node needs.",
        "Containers and the pod network need overlay file systems, bridges, veth pairs and nftables.",
        "Load it: `modprobe overlay br_netfilter nf_tables bridge veth`, or run with --disable-agent.";
    /// Clock.
    BAD_CLOCK = "KL0204", "The clock of this machine is wrong.",
        "Certificates created now would be not yet valid, or already expired.",
        "Set the clock (`timedatectl set-ntp true`, or `date -s`) and start again.";
    /// WireGuard.
    NO_WIREGUARD = "KL0205", "The kernel has no WireGuard.",
        "--flannel-backend=wireguard-native, here or on the server, requires encryption between nodes; without WireGuard pod traffic would not be encrypted.",
        "Load it: `modprobe wireguard` (Linux has it from 5.6 on; some distributions ship it in a package of additional modules), or run every node with --flannel-backend=vxlan, which does not encrypt.";
    /// Settings of the kernel.
    KERNEL_DEFAULTS = "KL0206", "Kernel settings differ from the defaults of the kubelet.",
        "They control what the machine does when it runs out of memory or the kernel panics; kube-lite never changes them.",
        "Write the expected values into /etc/sysctl.d/90-kubelet.conf and run `sysctl --system`, or start without --protect-kernel-defaults.";
    /// runc.
    OLD_RUNC = "KL0207", "The container runtime has a known security vulnerability.",
        "An image or a container can escape to the node.",
        "Install runc 1.1.12 or later, or crun, or your distribution's package with the fix; `kube-lite status` shows which one is used.";
    /// A second node on one machine.
    NODE_RUNS = "KL0208", "Another kube-lite already runs a node on this machine.",
        "Both would serve the network plugin and the container runtime from the same run directory, and pods of the first one could no longer start.",
        "Stop the other one (`systemctl stop kube-lite`), start this one with --disable-agent, or give it separate directories, names and ports: `kube-lite server --help`, section `Several nodes on one machine`.";
    /// The kubeconfig of a second server.
    KUBECONFIG_IN_USE = "KL0209", "The kubeconfig file belongs to another running server.",
        "Overwriting it would remove the administrator's access to that server.",
        "Choose another file with --write-kubeconfig, or stop the other server (`systemctl stop kube-lite`).";
    /// Port.
    PORT_IN_USE = "KL0401", "A port that kube-lite listens on is in use.",
        "Another program, perhaps another kube-lite or k3s, listens on it.",
        "Find it with `ss -ltnp`, stop it, or choose another port: --https-listen-port for the API, --kubelet-port for the kubelet API; a second kube-lite on this machine also needs --data-dir and --disable-agent, or the flags of the section `Several nodes on one machine` in `kube-lite server --help`.";
    /// Data directory.
    DATA_DIR = "KL0301", "The data directory cannot be used.",
        "It is not writable, or it contains data of another program.",
        "Check its owner and the free space, or choose another directory with --data-dir.";
    /// Two processes on one data directory.
    DATA_DIR_LOCKED = "KL0302", "Another kube-lite uses this data directory.",
        "Two servers would corrupt the store, and two agents would conflict over its pods.",
        "Stop the other one (`systemctl stop kube-lite`), or choose another directory with --data-dir.";
    /// Store damage.
    STORE_DAMAGED = "KL0303", "The store on disk is damaged.",
        "A checksum does not match the stored data; nothing was changed.",
        "Keep a copy of the directory, then restore a snapshot (`kube-lite server --cluster-reset --cluster-reset-restore-path=FILE`) or follow the message above.";
    /// The store is missing.
    STORE_LOST = "KL0312", "The store of this server is missing.",
        "An empty store would look healthy, and nodes would stop the pods that it does not know; nothing was changed.",
        "Restore server/db from a backup, restore a snapshot (`kube-lite server --cluster-reset --cluster-reset-restore-path=FILE`), or, where other servers have the data, delete this server's node (`kubectl delete node NAME`) and start with --server=https://OTHER:6443 and --token. To start a new, empty cluster, use another --data-dir.";
    /// The node name changed.
    NODE_RENAMED = "KL0304", "This machine has pods of a node with another name.",
        "Under the new name it would still run the pods of the old node, while the cluster starts them elsewhere.",
        "Keep the name with --node-name, or drain and delete the old node before starting with a new name.";
    /// Snapshot commands.
    SNAPSHOT_COMMAND = "KL0305", "The etcd-snapshot command failed.",
        "The snapshot directory cannot be used, the snapshot does not exist, or the store could not be saved there.",
        "Correct what the message names; `kube-lite etcd-snapshot ls` lists the snapshots.";
    /// Cluster reset.
    RESET = "KL0306", "The store was not reset.",
        "A reset replaces all data of the cluster, so it needs a complete and valid snapshot or store.",
        "Correct what the message names and run `kube-lite server --cluster-reset` again, with the server stopped; the existing data is unchanged.";
    /// Commands about encryption at rest.
    SECRETS_ENCRYPT_COMMAND = "KL0307", "The secrets-encrypt command failed.",
        "Keys change on all servers or on none: a server without the newest key could not read Secrets.",
        "Correct what the message names and run the command again; `kube-lite secrets-encrypt status` shows the progress.";
    /// Commands about certificates.
    CERTIFICATE_COMMAND = "KL0308", "The certificate command failed.",
        "A wrong CA would cut off nodes, pods and clients, so all files are checked before any change; nothing was changed.",
        "Correct what the message names and run the command again; `kube-lite certificate rotate-ca` without --path creates valid CAs.";
    /// External datastore.
    DATASTORE = "KL0309", "The external datastore cannot be used.",
        "It does not answer, rejects the connection, does not have the schema of k3s, or another server or k3s uses it; two writers would corrupt it.",
        "Correct what the message names: stop the other server (`systemctl stop k3s`), or correct --datastore-endpoint and its certificates.";
    /// The key of encrypted Secrets is missing.
    MISSING_ENCRYPTION_KEY = "KL0311", "The store has Secrets that this server has no key for.",
        "Secrets are encrypted at rest; without the key they are unreadable, and the other servers could not read Secrets encrypted with a new key.",
        "Restore the key file from a backup of this server, or copy `server/tls/encryption.keys` of another server of the cluster, and start again.";
    /// Migration.
    MIGRATE = "KL0310", "Nothing was migrated.",
        "Data is copied completely or not at all, from a readable source, into a data directory without a store.",
        "Correct what the message names and run `kube-lite migrate --from ENDPOINT --data-dir DIR` again, with that server stopped.";
    /// Runtime missing.
    NO_RUNTIME = "KL0501", "No container runtime was found.",
        "Pods run in containerd, which is neither on PATH nor in the data directory.",
        "Run `apt-get install containerd` (or your distribution's package), give --container-runtime-endpoint, or use --disable-agent.";
    /// Runtime fails.
    RUNTIME_FAILED = "KL0502", "The container runtime does not start or does not answer.",
        "No pod can run on this node without it.",
        "Read its log, agent/containerd/containerd.log in the data directory.";
    /// Server not reachable.
    SERVER_UNREACHABLE = "KL0402", "The server does not answer.",
        "It is not running, still starting, or listens on another address.",
        "Start it with `kube-lite server`, or check its log (`journalctl -u kube-lite`).";
    /// Malformed token.
    BAD_TOKEN = "KL0421", "The token is not a valid join token.",
        "It was probably truncated or changed when it was copied; joining needs the whole token.",
        "Copy it again: `cat /var/lib/kube-lite/server/token` on the server, or `kube-lite token create`.";
    /// The token has no CA hash.
    SHORT_TOKEN = "KL0422", "The token does not contain the CA hash of the cluster.",
        "An attacker on the network could pose as the server and receive the token.",
        "Use the whole token (K10...) that `cat /var/lib/kube-lite/server/token` or `kube-lite token create` prints on the server, or accept the risk with --insecure-join.";
    /// Another cluster, or a man in the middle.
    WRONG_CA = "KL0423", "The server does not belong to the cluster of the token.",
        "The token pins the CA of its cluster; the server that answered has another one. No secret was sent.",
        "Check --server, and copy the token again from /var/lib/kube-lite/server/token of that server; if both are right, the connection is intercepted.";
    /// Unknown token.
    WRONG_TOKEN = "KL0424", "The server does not know this token.",
        "It was replaced, deleted, expired, or has another purpose.",
        "Copy it again from /var/lib/kube-lite/server/token of the server, or create one there: `kube-lite token create`.";
    /// Expired token.
    TOKEN_EXPIRED = "KL0425", "The bootstrap token has expired.",
        "Bootstrap tokens expire, by default after 24 hours.",
        "Create another one on the server: `kube-lite token create --ttl=24h`.";
    /// The node name is taken.
    NAME_TAKEN = "KL0426", "Another machine has joined with this node name.",
        "Two machines with one name would conflict over its pods, and one could read the other's Secrets.",
        "Choose another name with --node-name; if the other machine is permanently gone, run `kubectl delete node NAME` and start again.";
    /// Version skew.
    VERSION_SKEW = "KL0427", "The versions of agent and server are too far apart.",
        "A node may be up to three minor versions older than its server, and never newer.",
        "Install the server's version here (`kube-lite --version` shows it), or upgrade the server first.";
    /// Not a kube-lite server.
    NOT_A_SERVER = "KL0428", "The program at that address is not a kube-lite server.",
        "A node joins at the API port of a server, which serves /cacerts and the join request.",
        "Check host and port of --server; it is https://HOST:6443 unless the server was started with --https-listen-port.";
    /// Data of another node.
    OTHER_CLUSTER = "KL0429", "The data directory belongs to another node or cluster.",
        "Its certificates, pods and volumes belong to that node; continuing would mix the two.",
        "Use the former --node-name and --token. To use this machine for another node or cluster, give it another --data-dir; its pods and volumes here stay until you remove them.";
    /// Anything else.
    JOIN_REFUSED = "KL0430", "This machine could not join.",
        "The server rejected the request, or a requirement of this machine is missing.",
        "Correct what the message names and start the agent again; the server's log has more.";
    /// Token commands.
    TOKEN_COMMAND = "KL0431", "The token command failed.",
        "It needs the administrator's kubeconfig of a running server, and for `rotate` its data directory.",
        "Run it as root on the server, or give the files with --kubeconfig and --data-dir.";
    /// The pinned CA changed.
    OTHER_CA = "KL0432", "The servers have another CA than the one this node joined with.",
        "Either the CA of the cluster was replaced, or another cluster answers at that address; the node trusts neither until it joins again. Its pods keep running.",
        "If it was replaced: stop kube-lite here, delete the node (`kubectl delete node`), remove the agent folder of the data directory and start with --server and the cluster's token; if not, give the address of the right server with --server.";
    /// A part of the agent failed.
    AGENT_STOPPED = "KL0602", "The agent stopped because a component failed.",
        "Continuing without it could harm pods; running pods keep running.",
        "Read the log lines before this one; the service manager restarts the agent.";
    /// A part of the server failed.
    SERVER_STOPPED = "KL0601", "The server stopped because a component failed.",
        "Continuing without it would risk data or pods; running pods keep running.",
        "Read the log lines before this one; the service manager restarts the server.";
}

impl CatalogueEntry {
    /// An error of this kind; exit code 1.
    pub fn error(self, details: impl fmt::Display) -> CommandError {
        CommandError { entry: self, details: details.to_string(), fix: None, code: 1 }
    }

    /// An error in the command line or configuration; exit code 64 (`EX_USAGE` of sysexits.h).
    pub fn usage_error(self, details: impl fmt::Display) -> CommandError {
        CommandError { code: 64, ..self.error(details) }
    }
}

/// An error that ends a command.
#[derive(Debug, Clone)]
pub struct CommandError {
    /// Its kind.
    pub entry: CatalogueEntry,
    /// What exactly is wrong: the flag, path, port or line.
    pub details: String,
    /// What to do in this case, instead of the fix of the catalogue.
    pub fix: Option<String>,
    /// Exit code of the process.
    pub code: u8,
}

impl CommandError {
    /// The same error with a fix for this case.
    pub fn with_fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.entry.id, self.details.trim_end())?;
        if !self.entry.why.is_empty() {
            writeln!(f, "  why: {}", self.entry.why)?;
        }
        write!(f, "  fix: {}", self.fix.as_deref().unwrap_or(self.entry.fix))
    }
}

impl std::error::Error for CommandError {}

/// The entry with this id, in any case.
pub fn find(id: &str) -> Option<CatalogueEntry> {
    ALL.iter().find(|e| e.id.eq_ignore_ascii_case(id.trim())).copied()
}

/// The error for the value of a flag.
pub(crate) fn invalid_flag(
    flag: &str,
    value: impl std::fmt::Display,
    why: impl std::fmt::Display,
) -> CommandError {
    BAD_VALUE.usage_error(format!("--{flag}={value}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_entry_has_a_unique_id_and_complete_sentences() {
        let mut ids = HashSet::new();
        for entry in ALL {
            assert!(ids.insert(entry.id), "{} occurs twice", entry.id);
            assert!(entry.id.len() == 6 && entry.id.starts_with("KL"), "{}", entry.id);
            let why = (!entry.why.is_empty()).then_some(entry.why);
            for text in [entry.what, entry.fix].into_iter().chain(why) {
                assert!(
                    text.ends_with('.') && text.len() > 20,
                    "{}: {text:?} is not a sentence",
                    entry.id
                );
            }
        }
        assert_eq!(find("kl0101"), Some(USAGE));
    }
}
