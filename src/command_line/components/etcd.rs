//! Arguments of etcd, for the embedded store.

use super::Component;
use super::Effect::{Fixed, NoEffect, Refused, Value};

const LOG: &str = "use -v or --debug of kube-lite";
const COMPACTION: &str = "the API server compacts the store every five minutes, as upstream's";
const CERTIFICATES: &str = "the store has certificates of the cluster's own CA";
const TIMES: &str = "the times of elections are fixed";

/// What kube-lite does with each argument.
pub const ETCD: Component = Component {
    flag: "etcd-arg",
    arguments: &[
        ("auto-compaction-mode", NoEffect(COMPACTION)),
        ("auto-compaction-retention", NoEffect(COMPACTION)),
        ("cert-file", Refused(CERTIFICATES)),
        ("cipher-suites", NoEffect("all listeners have AEAD suites with ephemeral keys only")),
        ("client-cert-auth", Fixed("true", "clients need a certificate; see --etcd-listen-plain")),
        ("data-dir", Refused("use --data-dir of kube-lite")),
        ("election-timeout", NoEffect(TIMES)),
        ("enable-pprof", Fixed("false", "there is no profiling endpoint")),
        ("heartbeat-interval", NoEffect(TIMES)),
        ("key-file", Refused(CERTIFICATES)),
        ("listen-client-urls", Refused("use --etcd-listen")),
        ("listen-metrics-urls", Refused("use --etcd-expose-metrics")),
        ("listen-peer-urls", Refused("use --peer-port")),
        ("log-level", NoEffect(LOG)),
        ("log-outputs", NoEffect(LOG)),
        ("logger", NoEffect(LOG)),
        ("max-request-bytes", Refused("the store accepts requests of at most 1.5 MiB")),
        ("max-snapshots", NoEffect("the store keeps the files that it needs")),
        ("max-txn-ops", Refused("the store accepts 128 operations per transaction")),
        ("max-wals", NoEffect("the store keeps the files that it needs")),
        ("metrics", NoEffect("the store has upstream's extensive metrics")),
        ("name", Refused("members have the names of their nodes")),
        ("peer-client-cert-auth", Fixed("true", "members authenticate with certificates")),
        ("pre-vote", Fixed("true", "members always vote before an election")),
        ("quota-backend-bytes", Value),
        ("snapshot-count", NoEffect("the store decides itself when to write a snapshot")),
        ("strict-reconfig-check", Fixed("true", "changes of members are always checked")),
        ("unsafe-no-fsync", Fixed("false", "each write is synchronized to the disk")),
    ],
};
