//! The metrics page with etcd's names, for values that have the same meaning here. Metrics of parts
//! that the store does not have, such as commits of a database file, are absent.

use std::fmt::{Display, Write};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use store::{BOUNDS, Histogram};
use tonic::Code;

use crate::counters::{Counters, METHODS, Method};
use crate::errors::alarm_name;
use crate::service::{ETCD_VERSION, Etcd};

/// Name of a code in Go's gRPC.
fn code_name(code: i32) -> String {
    match Code::from_i32(code) {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// A page in Prometheus' text format.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn write_line(&mut self, name: &str, labels: &str, value: impl Display) {
        // As above.
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.write_line(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut below = 0;
        for (bound, within) in BOUNDS.iter().zip(&histogram.within) {
            below += within;
            self.write_line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), below);
        }
        self.write_line(&format!("{name}_bucket"), "{le=\"+Inf\"}", histogram.count);
        self.write_line(&format!("{name}_sum"), "", histogram.sum.as_secs_f64());
        self.write_line(&format!("{name}_count"), "", histogram.count);
    }
}

impl Etcd {
    /// Renders `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let mut page = Page::default();
        self.server_metrics(&mut page);
        self.identity_metrics(&mut page);
        self.store_metrics(&mut page);
        self.debugging_metrics(&mut page);
        self.peer_metrics(&mut page);
        self.counters.health_metrics(&mut page);
        self.counters.grpc_metrics(&mut page);
        // `etcdctl check datascale` reads the memory usage from these.
        for figure in base::process::figures() {
            page.one(figure.name, figure.kind, figure.help, figure.value);
        }
        page.0
    }

    fn server_metrics(&self, page: &mut Page) {
        let measures = self.backend.stats();
        let leader = self.leader();
        let flag = |value: bool| u8::from(value);
        page.one(
            "etcd_server_has_leader",
            "gauge",
            "Whether or not a leader exists. 1 is existence, 0 is not.",
            flag(leader != 0),
        );
        page.one(
            "etcd_server_is_leader",
            "gauge",
            "Whether or not this member is a leader. 1 if is, 0 otherwise.",
            flag(leader == self.identity.member),
        );
        page.one(
            "etcd_server_is_learner",
            "gauge",
            "Whether or not this member is a learner. 1 if is, 0 otherwise.",
            flag(self.is_learner()),
        );
        page.one(
            "etcd_server_leader_changes_seen_total",
            "counter",
            "The number of leader changes seen.",
            measures.leader_changes,
        );
        for (name, kind, help, value) in [
            (
                "committed_total",
                "gauge",
                "The total number of consensus proposals committed.",
                measures.committed,
            ),
            (
                "applied_total",
                "gauge",
                "The total number of consensus proposals applied.",
                self.backend.applied_index(),
            ),
            (
                "pending",
                "gauge",
                "The current number of pending proposals to commit.",
                measures.pending as u64,
            ),
            (
                "failed_total",
                "counter",
                "The total number of failed proposals seen.",
                measures.failed,
            ),
        ] {
            page.one(&format!("etcd_server_proposals_{name}"), kind, help, value);
        }
        if let Some(quota) = self.backend.quota() {
            let help = "Current backend storage quota size in bytes.";
            page.one("etcd_server_quota_backend_bytes", "gauge", help, quota);
        }
    }

    fn identity_metrics(&self, page: &mut Page) {
        page.head(
            "etcd_server_version",
            "gauge",
            "Which version is running. 1 for 'server_version' label with current version.",
        );
        page.write_line(
            "etcd_server_version",
            &format!("{{server_version=\"{ETCD_VERSION}\"}}"),
            1,
        );
        page.head(
            "etcd_cluster_version",
            "gauge",
            "Which version is running. 1 for 'cluster_version' label with current cluster version",
        );
        page.write_line("etcd_cluster_version", "{cluster_version=\"3.7\"}", 1);
        page.head(
            "etcd_server_id",
            "gauge",
            "Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.",
        );
        page.write_line(
            "etcd_server_id",
            &format!("{{server_id=\"{:x}\"}}", self.identity.member),
            1,
        );
        let alarms = self.backend.alarms();
        if !alarms.is_empty() {
            page.head(
                "etcd_debugging_server_alarms",
                "gauge",
                "Alarms for every member in cluster. 1 for 'server_id' label with current ID. 2 \
                 for 'alarm_type' label with type of this alarm",
            );
        }
        for (member, alarm) in alarms {
            let labels =
                format!("{{alarm_type=\"{}\",server_id=\"{member:x}\"}}", alarm_name(alarm));
            page.write_line("etcd_debugging_server_alarms", &labels, 1);
        }
    }

    fn store_metrics(&self, page: &mut Page) {
        let (measures, size) = (self.backend.stats(), self.backend.size());
        page.histogram(
            "etcd_disk_wal_fsync_duration_seconds",
            "The latency distributions of fsync called by WAL.",
            &measures.syncs,
        );
        let help = "Total number of bytes written in WAL.";
        page.one("etcd_disk_wal_write_bytes_total", "gauge", help, measures.log_bytes);
        let help = "Total size of the underlying database physically allocated in bytes.";
        page.one("etcd_mvcc_db_total_size_in_bytes", "gauge", help, size.disk);
        let help = "Total size of the underlying database logically in use in bytes.";
        page.one("etcd_mvcc_db_total_size_in_use_in_bytes", "gauge", help, size.memory);
        for (name, value) in [
            ("range", measures.keys.ranges),
            ("put", measures.keys.puts),
            ("delete", measures.keys.deletes),
            ("txn", measures.keys.txns),
        ] {
            let help = format!("Total number of {name}s seen by this member.");
            page.one(&format!("etcd_mvcc_{name}_total"), "counter", &help, value);
        }
    }

    /// Metrics of connections to other members, if there are any.
    fn peer_metrics(&self, page: &mut Page) {
        let Some(members) = self.backend.members() else { return };
        let connected = members.connected();
        if !connected.is_empty() {
            let help = "The current number of active peer connections.";
            page.head("etcd_network_active_peers", "gauge", help);
        }
        for (peer, count) in connected {
            let labels = format!("{{Local=\"{:x}\",Remote=\"{peer:x}\"}}", members.id());
            page.write_line("etcd_network_active_peers", &labels, count);
        }
        let traffic = members.traffic();
        if traffic.is_empty() {
            return;
        }
        type Count = fn(&store::Traffic) -> u64;
        let counts: [(&str, &str, &str, Count); 4] = [
            ("sent_bytes", "To", "The total number of bytes sent to peers.", |t| t.sent_bytes),
            ("received_bytes", "From", "The total number of bytes received from peers.", |t| {
                t.received_bytes
            }),
            ("sent_failures", "To", "The total number of send failures from peers.", |t| {
                t.sent_failures
            }),
            (
                "received_failures",
                "From",
                "The total number of receive failures from peers.",
                |t| t.received_failures,
            ),
        ];
        for (name, label, help, count) in counts {
            let name = format!("etcd_network_peer_{name}_total");
            page.head(&name, "counter", help);
            for (peer, traffic) in &traffic {
                page.write_line(&name, &format!("{{{label}=\"{peer:x}\"}}"), count(traffic));
            }
        }
    }

    fn debugging_metrics(&self, page: &mut Page) {
        let (measures, size) = (self.backend.stats(), self.backend.size());
        for (name, kind, help, value) in [
            ("mvcc_keys_total", "gauge", "Total number of keys.", size.keys as u64),
            ("mvcc_watcher_total", "gauge", "Total number of watchers.", measures.watchers as u64),
            (
                "mvcc_events_total",
                "counter",
                "Total number of events sent by this member.",
                measures.keys.events,
            ),
            (
                "mvcc_db_compaction_keys_total",
                "counter",
                "Total number of db keys compacted.",
                measures.keys.compacted,
            ),
            (
                "mvcc_current_revision",
                "gauge",
                "The current revision of store.",
                self.backend.revision().0.unsigned_abs(),
            ),
            (
                "mvcc_compact_revision",
                "gauge",
                "The revision of the last compaction in store.",
                self.backend.compacted().0.unsigned_abs(),
            ),
            (
                "lease_granted_total",
                "counter",
                "The total number of granted leases.",
                measures.leases.granted,
            ),
            (
                "lease_revoked_total",
                "counter",
                "The total number of revoked leases.",
                measures.leases.revoked,
            ),
            (
                "lease_renewed_total",
                "counter",
                "The number of renewed leases seen by the leader.",
                measures.leases.renewed,
            ),
            (
                "server_lease_expired_total",
                "counter",
                "The total number of expired leases.",
                measures.leases.expired,
            ),
        ] {
            page.one(&format!("etcd_debugging_{name}"), kind, help, value);
        }
    }
}

impl Counters {
    fn health_metrics(&self, page: &mut Page) {
        let help = "The total number of successful health checks";
        page.one("etcd_server_health_success", "counter", help, self.healthy.load(Relaxed));
        let help = "The total number of failed health checks";
        page.one("etcd_server_health_failures", "counter", help, self.unhealthy.load(Relaxed));
        let checks = self.checks.lock().clone();
        if checks.is_empty() {
            return;
        }
        let name = "etcd_server_healthcheck";
        page.head(name, "gauge", "The result of each kind of healthcheck.");
        for ((kind, check), (good, ..)) in &checks {
            let labels = format!("{{name=\"{}\",type=\"{}\"}}", check.name(), kind.name());
            page.write_line(name, &labels, u8::from(*good));
        }
        let name = "etcd_server_healthchecks_total";
        page.head(name, "counter", "The total number of each kind of healthcheck.");
        for ((kind, check), (_, times, failures)) in &checks {
            for (status, count) in [("success", times), ("error", failures)] {
                if *count == 0 {
                    continue;
                }
                let labels = format!(
                    "{{name=\"{}\",status=\"{status}\",type=\"{}\"}}",
                    check.name(),
                    kind.name()
                );
                page.write_line(name, &labels, count);
            }
        }
    }

    fn grpc_metrics(&self, page: &mut Page) {
        let labels = |method: Method, code: Option<i32>| {
            let (service, method, kind) = METHODS.get(method).copied().unwrap_or_default();
            let code = code.map(|code| format!("grpc_code=\"{}\",", code_name(code)));
            format!(
                "{{{}grpc_method=\"{method}\",grpc_service=\"etcdserverpb.{service}\",grpc_type=\"{kind}\"}}",
                code.unwrap_or_default()
            )
        };
        let name = "grpc_server_started_total";
        page.head(name, "counter", "Total number of RPCs started on the server.");
        let counted = |count: &AtomicU64| Some(count.load(Relaxed)).filter(|count| *count > 0);
        for (method, count) in self.started.iter().enumerate() {
            if let Some(count) = counted(count) {
                page.write_line(name, &labels(method, None), count);
            }
        }
        let name = "grpc_server_handled_total";
        page.head(
            name,
            "counter",
            "Total number of RPCs completed on the server, regardless of success or failure.",
        );
        for (method, codes) in self.handled.iter().enumerate() {
            for (code, count) in (0..).zip(codes) {
                if let Some(count) = counted(count) {
                    page.write_line(name, &labels(method, Some(code)), count);
                }
            }
        }
        let help = "The total number of bytes received from grpc clients.";
        let name = "etcd_network_client_grpc_received_bytes_total";
        page.one(name, "counter", help, self.received.load(Relaxed));
        let help = "The total number of bytes sent to grpc clients.";
        let name = "etcd_network_client_grpc_sent_bytes_total";
        page.one(name, "counter", help, self.sent.load(Relaxed));
    }
}
