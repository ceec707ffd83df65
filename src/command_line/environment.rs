//! Environment variables that set flags: `KUBE_LITE_*`, and the names of k3s.

use super::flags::{FlagState, flag_state};
use super::no_effect;
use client::proxy::EnvironmentProxies;
use sorting::CompactSort as _;

/// Flag and the variable's name without its prefix.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("config", "CONFIG_FILE"),
    ("data-dir", "DATA_DIR"),
    ("debug", "DEBUG"),
    ("node-name", "NODE_NAME"),
    ("write-kubeconfig", "KUBECONFIG_OUTPUT"),
    ("write-kubeconfig-mode", "KUBECONFIG_MODE"),
    ("resolv-conf", "RESOLV_CONF"),
    ("server", "URL"),
    ("token", "TOKEN"),
    ("token-file", "TOKEN_FILE"),
    ("cluster-reset", "CLUSTER_RESET"),
    ("agent-token", "AGENT_TOKEN"),
    ("agent-token-file", "AGENT_TOKEN_FILE"),
    ("datastore-endpoint", "DATASTORE_ENDPOINT"),
    ("datastore-cafile", "DATASTORE_CAFILE"),
    ("datastore-certfile", "DATASTORE_CERTFILE"),
    ("datastore-keyfile", "DATASTORE_KEYFILE"),
    ("cluster-init", "CLUSTER_INIT"),
    ("system-default-registry", "SYSTEM_DEFAULT_REGISTRY"),
    ("embedded-registry-port", "P2P_PORT"),
    ("embedded-registry-latest", "P2P_ENABLE_LATEST"),
    ("selinux", "SELINUX"),
    // Flags of k3s that are refused or have no effect.
    ("lb-server-port", "LB_SERVER_PORT"),
    ("write-kubeconfig-group", "KUBECONFIG_GROUP"),
    ("rootless", "ROOTLESS"),
    ("vpn-auth", "VPN_AUTH"),
    ("vpn-auth-file", "VPN_AUTH_FILE"),
];

/// Old names of variables: the flag, and the variable's name without its prefix.
const OLD_VARIABLES: &[(&str, &str)] = &[("token", "CLUSTER_SECRET")];

/// Variables that take a boolean in any form of Go's `strconv.ParseBool`, as k3s reads them.
const BOOLEANS: [&str; 6] =
    ["debug", "cluster-init", "cluster-reset", "embedded-registry-latest", "selinux", "rootless"];

/// Variables after `KUBE_LITE_` that are not flags: for the log, the service file and install.sh.
const NOT_FLAGS: [&str; 5] = ["LOG", "FLAGS", "COMMAND", "PROFILE", "BIN"];

/// Prefix of variables of the test suites.
const TESTS: &str = "TEST_";

const PREFIXES: [&str; 2] = ["KUBE_LITE_", "K3S_"];

/// Variables among `names` that look like settings but are not, each with the reason, for
/// `kube-lite status`. They are not errors because a container runtime sets such names for a
/// Service named `k3s` (`K3S_SERVICE_HOST`).
pub fn without_effect(names: impl Iterator<Item = String>) -> Vec<String> {
    let explain = |name: String| {
        if let Some(why) = no_effect::variable_reason(&name) {
            return Some(format!("{name}: {why}"));
        }
        let short = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
        let known = VARIABLES.iter().chain(OLD_VARIABLES).any(|(_, known)| *known == short)
            || NOT_FLAGS.contains(&short)
            || short.starts_with(TESTS);
        (!known).then(|| format!("{name}: is not a setting of kube-lite"))
    };
    let mut found: Vec<String> = names.filter_map(explain).collect();
    found.compact_sort();
    found
}

/// A variable that sets a flag.
#[derive(Debug, Clone)]
pub(super) struct Variable {
    /// Flag without dashes.
    pub(super) flag: &'static str,
    /// Full name.
    pub(super) name: String,
    pub(super) value: String,
    /// What is to be said about its use.
    pub(super) warning: Option<String>,
}

impl Variable {
    fn new(flag: &'static str, name: String, value: String) -> Self {
        let value = match (BOOLEANS.contains(&flag), value.as_str()) {
            (true, "1" | "t" | "T" | "TRUE" | "True") => "true".to_owned(),
            (true, "0" | "f" | "F" | "FALSE" | "False") => "false".to_owned(),
            _ => value,
        };
        Self { flag, name, value, warning: None }
    }
}

/// Flag and full name of variables of the AWS tools.
const AWS_VARIABLES: &[(&str, &str)] = &[
    ("etcd-s3-access-key", "AWS_ACCESS_KEY_ID"),
    ("etcd-s3-secret-key", "AWS_SECRET_ACCESS_KEY"),
    ("etcd-s3-session-token", "AWS_SESSION_TOKEN"),
];

/// The data directory from the environment, for commands other than server and agent.
pub fn data_dir(lookup: &dyn Fn(&str) -> Option<String>) -> Option<std::path::PathBuf> {
    let all = read(lookup);
    all.into_iter().find(|found| found.flag == "data-dir").map(|found| found.value.into())
}

/// Every variable that sets a flag; `KUBE_LITE_` takes precedence over `K3S_`, and the present name
/// over an old one.
pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Vec<Variable> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let of_names = |flag: &'static str, short: &str| {
        let [ours, theirs] = PREFIXES.map(|prefix| {
            let name = format!("{prefix}{short}");
            set(&name).map(|value| Variable::new(flag, name, value))
        });
        match (ours, theirs) {
            (Some(ours), Some(theirs)) if ours.value != theirs.value => {
                let warning = format!("{}: {} applies, remove one", theirs.name, ours.name);
                Some(Variable { warning: Some(warning), ..ours })
            }
            (ours, theirs) => ours.or(theirs),
        }
    };
    let mut found: Vec<Variable> =
        VARIABLES.iter().filter_map(|(flag, short)| of_names(flag, short)).collect();
    for (flag, short) in OLD_VARIABLES {
        let present = |variable: &Variable| variable.flag == *flag;
        if let Some(mut old) = of_names(flag, short).filter(|_| !found.iter().any(present)) {
            let is_now = VARIABLES.iter().find(|(known, _)| known == flag);
            let now = is_now.map(|(_, short)| format!("K3S_{short}")).unwrap_or_default();
            old.warning = Some(format!("{} is an old name of {now}, use that", old.name));
            found.push(old);
        }
    }
    let foreign = AWS_VARIABLES
        .iter()
        .filter_map(|(flag, name)| Some(Variable::new(flag, (*name).to_owned(), set(name)?)));
    found.extend(foreign);
    found
}

/// What kube-lite does with a variable of k3s; `None` for one that it does not know.
pub fn variable_state(name: &str) -> Option<(FlagState, Option<&'static str>)> {
    if let Some(why) = no_effect::variable_reason(name) {
        return Some((FlagState::NoEffect(why), None));
    }
    let short = name.strip_prefix("K3S_");
    let ours = VARIABLES.iter().chain(OLD_VARIABLES).find(|(_, known)| Some(*known) == short);
    let aws = || AWS_VARIABLES.iter().find(|(_, known)| *known == name);
    let flag = ours.or_else(aws)?.0;
    Some((flag_state(flag)?, Some(flag)))
}

/// Reads the proxies for S3 from variables.
pub(super) fn fill_proxies(args: &mut super::S3Args, lookup: impl Fn(&str) -> Option<String>) {
    args.proxies = EnvironmentProxies::read(lookup);
}

/// Sets S3 flags that are not on the command line, and the proxies, from variables.
pub(super) fn fill_s3(args: &mut super::S3Args, lookup: impl Fn(&str) -> Option<String>) {
    fill_proxies(args, &lookup);
    let value = |flag: &str| {
        let (_, name) = AWS_VARIABLES.iter().find(|(f, _)| *f == flag)?;
        lookup(name).filter(|v| !v.is_empty())?.parse().ok()
    };
    for (held, flag) in [
        (&mut args.etcd_s3_access_key, "etcd-s3-access-key"),
        (&mut args.etcd_s3_secret_key, "etcd-s3-secret-key"),
        (&mut args.etcd_s3_session_token, "etcd-s3-session-token"),
    ] {
        if held.is_none() {
            *held = value(flag);
        }
    }
}
