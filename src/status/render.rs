//! The text output of `kube-lite status`.

use std::fmt::Write;

use sorting::CompactSort as _;

use super::{Link, NodeLine, PodLine, Role, Status, ago};

/// Most nodes listed; nodes that are not ready come first.
const NODES_MAX: usize = 20;

/// Most pods listed that are not ready.
const PODS_MAX: usize = 5;

/// ` (3 not ready: default/a Terminating for 40 min, ...)`; nothing when all are.
fn not_ready(pods: &[PodLine]) -> String {
    if pods.is_empty() {
        return String::new();
    }
    let name = |pod: &PodLine| match pod.since_seconds {
        Some(seconds) => format!("{} {} for {}", pod.name, pod.reason, ago(seconds)),
        None => format!("{} {}", pod.name, pod.reason),
    };
    let mut names: Vec<String> = pods.iter().take(PODS_MAX).map(name).collect();
    let rest = pods.len().saturating_sub(PODS_MAX);
    if rest > 0 {
        names.push(format!("and {rest} more"));
    }
    format!(" ({} not ready: {})", pods.len(), names.join(", "))
}

fn since(link: &Link) -> String {
    let time = link.since_seconds.map(|s| format!(" since {}", ago(s))).unwrap_or_default();
    format!("{}{time}", link.state)
}

fn node(line: &NodeLine) -> String {
    let mut parts = vec![line.name.clone(), line.state.clone()];
    if line.cordoned {
        parts.push("cordoned".into());
    }
    parts.extend([line.address.clone(), line.version.clone()]);
    parts.extend(line.overlay.clone());
    parts.extend(line.tunnel.as_ref().map(|t| format!("tunnel {}", since(t))));
    parts.extend(line.lease_age_seconds.map(|age| format!("lease {} old", ago(age))));
    parts.retain(|part| !part.is_empty());
    parts.join("  ")
}

/// Appends a line with a name in its first column.
fn push(out: &mut String, name: &str, text: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{name:<9}{text}");
}

/// Renders the text output.
pub fn render(status: &Status) -> String {
    let mut out = String::new();
    render_server(status, &mut out);
    render_machine(status, &mut out);
    render_nodes(&status.nodes, &mut out);
    for line in &status.virtual_addresses {
        push(&mut out, "address", &format!("{}  held by {}", line.address, line.holder));
    }
    if let Some(first) = status.certificates.first() {
        let count = status.certificates.len();
        let text = format!("{count}, the first expires in {} days", first.days_left);
        push(&mut out, "certs", &text);
    }
    render_notes(status, &mut out);
    out
}

/// Role, verdict, API, store and servers.
fn render_server(status: &Status, out: &mut String) {
    let role = match status.role {
        Role::Server => "server",
        Role::Agent => "agent",
    };
    let verdict = format!("{:?}", status.verdict).to_lowercase();
    let (version, kubernetes) = (&status.version, &status.kubernetes);
    push(out, "kube-lite", &format!(" {version} (Kubernetes {kubernetes}) {role}: {verdict}"));
    if let Some(api) = &status.api {
        push(out, "api", api);
    }
    if let Some(store) = &status.store {
        let mib = |bytes: f64| bytes / 1048576.0;
        let text = format!(
            "{} keys, {:.1} MiB in memory, {:.1} MiB on disk, revision {}{}",
            store.store_keys,
            mib(store.store_memory_bytes as f64),
            mib(store.store_disk_bytes as f64),
            store.revision,
            store.datastore.as_ref().map(|at| format!(", in {at}")).unwrap_or_default()
        );
        push(out, "store", &text);
    }
    for member in &status.members {
        let own = if member.own { "  this server" } else { "" };
        let lost = if member.heard == Some(false) { "  unreachable" } else { "" };
        let text = format!("{}  {}  {}{own}{lost}", member.id, member.address, member.role);
        push(out, "member", &text);
    }
    for server in &status.servers {
        let error = server.error.as_ref().map(|e| format!(": {e}")).unwrap_or_default();
        push(out, "server", &format!("{}  {}{error}", server.address, since(&server.link)));
    }
}

/// Container runtime and pods of this machine.
fn render_machine(status: &Status, out: &mut String) {
    if status.from_last_known_state {
        push(out, "state", "last known state; no server answers");
    }
    if let Some(runtime) = &status.runtime {
        push(out, "runtime", runtime);
    }
    if let Some(pods) = status.pods {
        let not_ready = not_ready(&status.not_ready_pods);
        push(out, "pods", &format!("{pods} on this machine{not_ready}"));
    }
}

fn render_nodes(nodes: &[NodeLine], out: &mut String) {
    let mut nodes: Vec<&NodeLine> = nodes.iter().collect();
    nodes.compact_sort_by_key(|n| (n.state == "Ready", &n.name));
    for line in nodes.iter().take(NODES_MAX) {
        push(out, "node", &node(line));
    }
    if nodes.len() > NODES_MAX {
        let rest = &nodes[NODES_MAX..];
        let bad = rest.iter().filter(|n| n.state != "Ready").count();
        push(out, "node", &format!("and {} more, {bad} of them not ready", rest.len()));
    }
}

/// Deprecated APIs, settings and objects without effect, and problems.
fn render_notes(status: &Status, out: &mut String) {
    for used in &status.deprecated {
        let client = match used.client.as_str() {
            "" => String::new(),
            client => format!(" with {client}"),
        };
        let text = format!(
            " API in use: {}, {} requests in {}, last {} ago by {}{client}",
            used.api,
            used.count,
            ago(used.first_seconds),
            ago(used.last_seconds),
            used.user
        );
        push(out, "deprecated", &text);
    }
    for unused in &status.unused {
        push(out, "no effect", &format!(": {} {} ({})", unused.count, unused.what, unused.why));
    }
    for setting in &status.without_effect {
        push(out, "no effect", &format!(": {setting}"));
    }
    for problem in &status.problems {
        push(out, "problem", &problem.what);
        push(out, "", &format!("fix: {}", problem.fix));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Problem, ServerLine, Verdict};
    use super::*;

    #[test]
    fn agent_without_server_shows_its_state_and_the_fix() {
        let mut status = Status::new(Role::Agent);
        let link = Link { state: "failed".into(), since_seconds: Some(7300) };
        status.servers.push(ServerLine {
            address: "10.0.0.1:6443".into(),
            link,
            error: Some("connection refused".into()),
        });
        status.from_last_known_state = true;
        status.pods = Some(24);
        let not_ready = |name: &str, since_seconds| PodLine {
            name: name.into(),
            reason: "Terminating".into(),
            since_seconds,
        };
        status.not_ready_pods = vec![not_ready("n/a", Some(2400)), not_ready("n/b", None)];
        status.verdict = Verdict::Degraded;
        status.problems.push(Problem::new("no server answers", "check 10.0.0.1"));
        let text = render(&status);
        let want = [
            "server   10.0.0.1:6443  failed since 2 h: connection refused",
            "state    last known state; no server answers",
            "pods     24 on this machine (2 not ready: n/a Terminating for 40 min, n/b Terminating)",
            "problem  no server answers",
            "         fix: check 10.0.0.1",
        ];
        assert!(text.lines().next().unwrap().ends_with("agent: degraded"), "{text}");
        assert_eq!(text.lines().skip(1).collect::<Vec<_>>(), want);
    }

    #[test]
    fn deprecated_apis_in_use_are_listed() {
        let mut status = Status::new(Role::Server);
        status.deprecated.push(crate::status::DeprecatedLine {
            api: "endpoints.v1".into(),
            count: 12,
            first_seconds: 3 * 3600,
            last_seconds: 5,
            user: "jane".into(),
            client: "kubectl/v1.30.0".into(),
        });
        let text = render(&status);
        let expected = "deprecated API in use: endpoints.v1, 12 requests in 3 h, last 5 s ago by jane with kubectl/v1.30.0\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn node_list_is_limited_and_starts_with_nodes_that_are_not_ready() {
        let mut status = Status::new(Role::Server);
        for n in 0..1000 {
            let state = if n == 700 { "Unknown" } else { "Ready" };
            let tunnel = Some(Link { state: "up".into(), since_seconds: Some(60) });
            status.nodes.push(NodeLine {
                name: format!("n{n:04}"),
                state: state.into(),
                tunnel,
                lease_age_seconds: Some(4),
                ..NodeLine::default()
            });
        }
        let text = render(&status);
        assert!(text.contains("node     n0700  Unknown  tunnel up since 60 s  lease 4 s old\n"));
        assert!(text.ends_with("node     and 980 more, 0 of them not ready\n"), "{text}");
        assert!(text.lines().nth(1).unwrap().contains("n0700"));
    }
}
