//! Every refusal that ends a command: an id, what is wrong, why, and the command that mends it.

use std::fmt;

/// One kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// `KL` and four digits: 01xx command line and configuration, 02xx host, 03xx data, 04xx network, 05xx runtime.
    pub id: &'static str,
    /// What is wrong, in one sentence.
    pub what: &'static str,
    /// Why that stops us.
    pub why: &'static str,
    /// What to do, with a command where there is one.
    pub fix: &'static str,
}

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $what:literal, $why:literal, $fix:literal;)*) => {
        $($(#[$doc])* pub const $name: Entry = Entry { id: $id, what: $what, why: $why, fix: $fix };)*
        /// All refusals, by id.
        pub const ALL: &[Entry] = &[$($name),*];
    };
}

entries! {
    /// Bad flag or value.
    USAGE = "KL0101", "A flag, command or value on the command line is not understood.",
        "kube-lite starts nothing on a command line it would have to guess at.",
        "Run `kube-lite server --help` for the flags and their defaults.";
    /// Known to k3s, not to us.
    UNSUPPORTED_FLAG = "KL0102", "This k3s flag is known but not supported yet.",
        "Ignoring it would start a cluster that differs from what was asked for.",
        "Remove the flag; `kube-lite server --help` lists what is supported.";
    /// config.yaml is bad.
    CONFIG_FILE = "KL0103", "The configuration file cannot be used.",
        "It cannot be read, is no YAML mapping, or has a key that is no flag of this command.",
        "Correct the line that the message names; keys are flag names without the leading dashes.";
    /// A value is refused.
    BAD_VALUE = "KL0104", "The value of a flag does not make sense.",
        "It has the wrong form or contradicts another flag.",
        "Correct the value that the message names; `kube-lite server --help` shows the form.";
    /// No interface for etcd's clients.
    ETCD_OFF = "KL0105", "The server does not listen for clients of etcd.",
        "The etcd-compatible interface of the store is off unless it is asked for.",
        "Start the server with `kube-lite server --etcd-listen=127.0.0.1:2379`, or put `etcd-listen: 127.0.0.1:2379` into its config.yaml, and try again.";
    /// Not root.
    NEED_ROOT = "KL0201", "The node part needs root.",
        "Containers, cgroups and the pod network can only be set up by root.",
        "Run `sudo kube-lite server`, or `kube-lite server --disable-agent` for API, store, controllers and scheduler alone.";
    /// cgroups.
    NO_CGROUPS = "KL0202", "A cgroup controller that pods need is missing.",
        "Without it the kernel cannot hold pods to their limits; on a Raspberry Pi the memory controller is off by default.",
        "Add `cgroup_memory=1 cgroup_enable=memory` to the one line of /boot/firmware/cmdline.txt and reboot, or run with --disable-agent.";
    /// Kernel features.
    NO_KERNEL_FEATURE = "KL0203", "The kernel lacks a feature that the node needs.",
        "overlay file systems, bridges, veth pairs and nftables carry containers and their network.",
        "Load it: `modprobe overlay br_netfilter nf_tables bridge veth`, or run with --disable-agent.";
    /// Clock.
    BAD_CLOCK = "KL0204", "The clock of this machine is far off.",
        "Certificates made now would not be valid yet, or not any more.",
        "Set the clock (`timedatectl set-ntp true`, or `date -s`) and start again.";
    /// WireGuard.
    NO_WIREGUARD = "KL0205", "The kernel has no WireGuard.",
        "--flannel-backend=wireguard-native, here or on the server, asks for encryption between nodes; going on without it would send packets of pods in the clear.",
        "Load it: `modprobe wireguard` (Linux has it from 5.6 on; some distributions keep it in a package of further modules), or run every node with --flannel-backend=vxlan, which does not encrypt.";
    /// Settings of the kernel.
    KERNEL_DEFAULTS = "KL0206", "Settings of the kernel are not those that the kubelet wants.",
        "They decide what a machine does that runs out of memory or whose kernel has failed; kube-lite never changes them.",
        "Write them into /etc/sysctl.d/90-kubelet.conf and run `sysctl --system`, or start without --protect-kernel-defaults.";
    /// runc.
    OLD_RUNC = "KL0207", "The container runtime below has a hole that is known.",
        "Whoever makes an image or may start a container can get out of it to the node.",
        "Install runc 1.1.12 or later, or crun, or your distribution's package with the fix; `kube-lite status` tells which one is used.";
    /// A second node.
    NODE_RUNS = "KL0208", "Another kube-lite runs a node on this machine.",
        "Both would answer the network plugin and the container runtime in the same run directory, and pods of the first one would not start any more.",
        "Stop the other one (`systemctl stop kube-lite`), start this one with --disable-agent, or give it directories, names and ports of its own: `kube-lite server --help`, section `Several nodes on one machine`.";
    /// A second server.
    KUBECONFIG_IN_USE = "KL0209", "The kubeconfig file is that of another running server.",
        "Writing it would take the administrator's access to that server away.",
        "Choose another file with --write-kubeconfig, or stop the other server (`systemctl stop kube-lite`).";
    /// Port.
    PORT_IN_USE = "KL0401", "A port that kube-lite listens on is in use.",
        "Another program, perhaps another kube-lite or k3s, has it.",
        "Find it with `ss -ltnp`, stop it, or choose another port: --https-listen-port for the API, --kubelet-port for the kubelet API; a second kube-lite on this machine also needs --data-dir and --disable-agent, or the flags of the section `Several nodes on one machine` in `kube-lite server --help`.";
    /// Data directory.
    DATA_DIR = "KL0301", "The data directory cannot be used.",
        "It cannot be written, or it holds data of something else.",
        "Check owner and free space, or choose another with --data-dir.";
    /// Two servers.
    DATA_DIR_LOCKED = "KL0302", "Another kube-lite works on this data directory.",
        "Two servers on one store would destroy it, and two agents would fight over its pods.",
        "Stop the other one (`systemctl stop kube-lite`), or choose another directory with --data-dir.";
    /// Store damage.
    STORE_DAMAGED = "KL0303", "The store on disk is damaged.",
        "A checksum does not match, so the bytes are not those that were written; nothing was changed.",
        "Keep a copy of the directory, then restore a snapshot or follow what the message says can be saved.";
    /// No store where one was.
    STORE_LOST = "KL0312", "The store of this server is gone.",
        "An empty store in its place would look healthy, and nodes would end the pods that it does not know; nothing was changed.",
        "Bring server/db back from a backup, restore a snapshot (`kube-lite server --cluster-reset --cluster-reset-restore-path=FILE`), or, where other servers have the data, delete this server's node (`kubectl delete node NAME`) and start with --server=https://OTHER:6443 and --token. To begin a new, empty cluster, use another --data-dir.";
    /// Another node name.
    NODE_RENAMED = "KL0304", "This machine is a node of another name, and has pods of it.",
        "Under a new name it would run the former node's pods beside its own, while the cluster starts them elsewhere.",
        "Keep the name with --node-name, or drain and delete the former node before it is started under another.";
    /// Snapshot commands.
    SNAPSHOT_COMMAND = "KL0305", "The command about snapshots could not be carried out.",
        "The folder of snapshots cannot be used, there is no such snapshot, or the store could not be written there.",
        "Mend what the message says; `kube-lite etcd-snapshot ls` shows what there is.";
    /// Cluster reset.
    RESET = "KL0306", "The store was not reset.",
        "A reset replaces all data of the cluster, so it is only begun with a snapshot or store that is whole and can be used.",
        "Mend what the message says and run `kube-lite server --cluster-reset` again, with the server stopped; the former data is untouched.";
    /// Commands about encryption at rest.
    SEAL_COMMAND = "KL0307", "The command about encryption at rest could not be carried out.",
        "Keys are changed on all servers or on none, since a server without the newest key could read no Secret.",
        "Mend what the message says and run the command again; `kube-lite secrets-encrypt status` shows how far it is.";
    /// Commands about certificates.
    CERTIFICATE_COMMAND = "KL0308", "The command about certificates could not be carried out.",
        "A CA that does not fit would cut off nodes, pods and clients, so everything that is given is checked before anything is changed; nothing was.",
        "Mend what the message says and run the command again; `kube-lite certificate rotate-ca` without --path makes CAs that fit.";
    /// External datastore.
    DATASTORE = "KL0309", "The external datastore cannot be used.",
        "It does not answer, refuses us, is no datastore of k3s, or another server or k3s has it; two that write to it would destroy it.",
        "Mend what the message says: stop the other server (`systemctl stop k3s`), or correct --datastore-endpoint and its certificates.";
    /// Keys of encryption at rest that are missing.
    SEALED_WITHOUT_KEY = "KL0311", "The store has Secrets that no key of this server opens.",
        "Secrets are encrypted at rest; with other keys they would be unreadable, and new ones would be encrypted with keys that the other servers do not have.",
        "Put the file back from a backup of this server, or copy `server/tls/encryption.keys` of another server of the cluster, and start again.";
    /// Migration.
    MIGRATE = "KL0310", "Nothing was migrated.",
        "Data is only copied whole, from a source that can be read, into a data directory whose server has none yet.",
        "Mend what the message says and run `kube-lite migrate --from ENDPOINT --data-dir DIR` again, with that server stopped.";
    /// Runtime missing.
    NO_RUNTIME = "KL0501", "No container runtime was found.",
        "Pods run in containerd, which is neither on PATH nor in the data directory.",
        "Run `apt-get install containerd` (or your distribution's package), give --container-runtime-endpoint, or use --disable-agent.";
    /// Runtime fails.
    RUNTIME_FAILED = "KL0502", "The container runtime does not start or does not answer.",
        "Without it no pod can run on this node.",
        "Read its log, agent/containerd/containerd.log in the data directory.";
    /// Server not reachable.
    SERVER_UNREACHABLE = "KL0402", "The server does not answer.",
        "It is not running, still starting, or listens elsewhere.",
        "Start it with `kube-lite server`, or look at its log (`journalctl -u kube-lite`).";
    /// No token.
    BAD_TOKEN = "KL0421", "The token has not the form of a join token.",
        "It was probably cut or changed when it was copied; a machine joins with the whole token only.",
        "Copy it again: `cat /var/lib/kube-lite/server/token` on the server, or `kube-lite token create`.";
    /// Nothing pinned.
    SHORT_TOKEN = "KL0422", "The token does not name the CA of the cluster.",
        "A machine in between could pass for the server and would be sent the token.",
        "Use the whole token (K10...) that `cat /var/lib/kube-lite/server/token` or `kube-lite token create` prints on the server, or accept the risk with --insecure-join.";
    /// Man in the middle, or another cluster.
    WRONG_CA = "KL0423", "The server is not of the cluster that the token names.",
        "The token pins the CA of its cluster; whoever answered has another one. No secret was sent.",
        "Check --server, and copy the token again from /var/lib/kube-lite/server/token of that server; if both are right, somebody intercepts the connection.";
    /// Unknown token.
    WRONG_TOKEN = "KL0424", "The server does not know this token.",
        "It was replaced, deleted, or is of another purpose; an expired bootstrap token is deleted, too.",
        "Copy it again from /var/lib/kube-lite/server/token of the server, or make one there: `kube-lite token create`.";
    /// Old token.
    TOKEN_EXPIRED = "KL0425", "The bootstrap token has expired.",
        "Bootstrap tokens are good for a while only, so that a lost one harms nobody.",
        "Make another one on the server: `kube-lite token create --ttl=24h`.";
    /// Two machines, one name.
    NAME_TAKEN = "KL0426", "The name of this node is another machine's.",
        "Two machines under one name would fight over its pods, and one could steal the other's secrets.",
        "Give this one another name with --node-name; if the other machine is gone for good, run `kubectl delete node NAME` and start again.";
    /// Versions.
    VERSION_SKEW = "KL0427", "The versions of agent and server are too far apart.",
        "Kubernetes lets a node be up to three minor versions older than its server, and never newer.",
        "Install the server's version here (`kube-lite --version` shows it), or upgrade the server first.";
    /// Somebody else.
    NOT_A_SERVER = "KL0428", "What answers at that address is no kube-lite server.",
        "A node joins at the API's port of a server, which answers /cacerts and the join request.",
        "Check host and port of --server; it is https://HOST:6443 unless the server was started with --https-listen-port.";
    /// Data of another node.
    OTHER_CLUSTER = "KL0429", "The data directory is of another node or of another cluster.",
        "Its certificates, pods and volumes belong to that node; going on would mix the two.",
        "Give --node-name and --token as before. To use this machine for another node or cluster, give it another --data-dir; its pods and volumes here stay until you remove them.";
    /// Anything else.
    JOIN_REFUSED = "KL0430", "This machine could not join.",
        "The server refused what it asked for, or something of its own is missing.",
        "Mend what the message says, and start the agent again; the server's log tells its side.";
    /// Token commands.
    TOKEN_COMMAND = "KL0431", "The command about tokens could not be carried out.",
        "It needs the administrator's kubeconfig of a server that runs, and for `rotate` its data directory.",
        "Run it as root on the server, or name the files with --kubeconfig and --data-dir.";
    /// The pinned CA is gone.
    OTHER_CA = "KL0432", "The servers have another CA than this node joined with.",
        "Either the CA of the cluster was replaced, or another cluster answers at that address; the node believes neither until it joins anew. Its pods go on.",
        "If it was replaced: stop kube-lite here, delete the node (`kubectl delete node`), remove the agent folder of the data directory and start with --server and the cluster's token; if not, give the address of the right server by --server.";
    /// An agent stopped by a fault.
    AGENT_STOPPED = "KL0602", "The agent stopped because a part of it failed.",
        "Going on without that part would harm pods; running pods are left running.",
        "Read the log lines before this one; the service manager starts the agent again.";
    /// Stopped by a fault.
    SERVER_STOPPED = "KL0601", "The server stopped because a part of it failed.",
        "Going on without that part would risk data or pods; running pods are left running.",
        "Read the log lines before this one; the service manager starts the server again.";
}

impl Entry {
    /// The refusal with its particulars.
    pub fn refuse(self, particulars: impl fmt::Display) -> Refusal {
        Refusal { entry: self, particulars: particulars.to_string(), code: 1 }
    }

    /// The refusal of a bad command line or configuration: exit code 64 (`EX_USAGE` of sysexits.h).
    pub fn refuse_usage(self, particulars: impl fmt::Display) -> Refusal {
        Refusal { code: 64, ..self.refuse(particulars) }
    }
}

/// One refusal as it reaches the user.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// Which kind.
    pub entry: Entry,
    /// What exactly: the flag, path, port or line.
    pub particulars: String,
    /// Exit code of the process.
    pub code: u8,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error[{}]: {}", self.entry.id, self.particulars.trim_end())?;
        writeln!(f, "  why: {}", self.entry.why)?;
        write!(f, "  fix: {}", self.entry.fix)
    }
}

impl std::error::Error for Refusal {}

/// The entry with this id, in any case.
pub fn find(id: &str) -> Option<Entry> {
    ALL.iter().find(|e| e.id.eq_ignore_ascii_case(id.trim())).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_refusal_has_its_own_id_and_says_what_why_and_how_to_mend() {
        let mut ids = HashSet::new();
        for entry in ALL {
            assert!(ids.insert(entry.id), "{} occurs twice", entry.id);
            assert!(entry.id.len() == 6 && entry.id.starts_with("KL"), "{}", entry.id);
            for text in [entry.what, entry.why, entry.fix] {
                assert!(
                    text.ends_with('.') && text.len() > 20,
                    "{}: {text:?} is no sentence",
                    entry.id
                );
            }
        }
        assert_eq!(find("kl0101"), Some(USAGE));
    }
}
