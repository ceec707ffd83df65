//! Parses flags of upstream's API server, as passed by `--kube-apiserver-arg`.

/// The name and value of `NAME=VALUE` or `--NAME=VALUE`; a name alone has no value.
pub fn parts(argument: &str) -> (&str, Option<&str>) {
    let text = argument.trim_start_matches('-');
    text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)))
}
