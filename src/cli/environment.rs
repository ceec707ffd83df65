//! Environment variables that stand for flags: `KUBE_LITE_*`, and k3s's names beside them.

/// Flag and the part of the variable's name behind the prefix.
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
];

/// Flag and whole name of variables that others define.
const FOREIGN: &[(&str, &str)] = &[
    ("etcd-s3-access-key", "AWS_ACCESS_KEY_ID"),
    ("etcd-s3-secret-key", "AWS_SECRET_ACCESS_KEY"),
    ("etcd-s3-session-token", "AWS_SESSION_TOKEN"),
];

/// The data directory as the environment says it, for commands that run nothing.
pub fn data_dir(lookup: &dyn Fn(&str) -> Option<String>) -> Option<std::path::PathBuf> {
    let all = read(lookup);
    all.into_iter().find(|(flag, _)| *flag == "data-dir").map(|(_, value)| value.into())
}

/// Flag and value of every variable that is set; ours wins over k3s's.
pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let value = |name: &str| {
        let named = |prefix: &str| lookup(&format!("{prefix}{name}")).filter(|v| !v.is_empty());
        named("KUBE_LITE_").or_else(|| named("K3S_"))
    };
    let ours = VARIABLES.iter().filter_map(|(flag, name)| value(name).map(|v| (*flag, v)));
    let foreign = |name: &str| lookup(name).filter(|v| !v.is_empty());
    let foreign = FOREIGN.iter().filter_map(|(flag, name)| foreign(name).map(|v| (*flag, v)));
    ours.chain(foreign).collect()
}

/// Gives flags about S3 that were not typed what variables say.
pub(super) fn fill(args: &mut super::S3Args, lookup: impl Fn(&str) -> Option<String>) {
    let value = |flag: &str| {
        let (_, name) = FOREIGN.iter().find(|(f, _)| *f == flag)?;
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
