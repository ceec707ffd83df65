//! Flags of upstream's API server as `--kube-apiserver-arg` has them.

/// Name and value of `NAME=VALUE` or `--NAME=VALUE`; a name alone has none.
pub fn parts(argument: &str) -> (&str, Option<&str>) {
    let text = argument.trim_start_matches('-');
    text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)))
}
