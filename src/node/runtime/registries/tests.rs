//! The expected results follow k3s's documentation ("Private Registry Configuration") and
//! containerd's `docs/hosts.md`.

use super::file::parse;
use super::*;

/// Parses a valid `registries.yaml`.
fn parsed(text: &str) -> Registries {
    parse(text.as_bytes()).unwrap()
}

fn options(no_default: bool, embedded: bool) -> RegistryOptions {
    RegistryOptions { no_default, embedded, port: 5001 }
}

/// Returns the error of an invalid `registries.yaml`.
fn parse_error(text: &str) -> String {
    parse(text.as_bytes()).unwrap_err().to_string()
}

#[test]
fn hosts_files_list_the_mirrors_and_fall_back_to_the_registry() {
    let found = parsed(
        r#"
mirrors:
  docker.io:
    endpoint:
      - https://mirror.example.com:5000
      - "http://10.0.0.1:5000/proxy/docker"
  registry.example.com:8443:
    endpoint: [localhost:5000, registry.example.com:8443]
  "*":
    endpoint: ["https://any.example.com/v2"]
"#,
    );
    let hosts = found.hosts();
    let names: Vec<&str> = hosts.keys().map(String::as_str).collect();
    assert_eq!(names, ["_default", "docker.io", "registry.example.com_8443_"]);
    assert_eq!(
        hosts["docker.io"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
server = "https://registry-1.docker.io"
capabilities = ["pull", "resolve"]

[host."https://mirror.example.com:5000"]
  capabilities = ["pull", "resolve"]

[host."http://10.0.0.1:5000/proxy/docker"]
  capabilities = ["pull", "resolve"]
  override_path = true
"#
    );
    // The second endpoint is the registry itself: it is only the `server`.
    assert_eq!(
        hosts["registry.example.com_8443_"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
server = "https://registry.example.com:8443"
capabilities = ["pull", "resolve"]

[host."http://localhost:5000"]
  capabilities = ["pull", "resolve"]
"#
    );
    assert_eq!(
        hosts["_default"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
capabilities = ["pull", "resolve"]

[host."https://any.example.com"]
  capabilities = ["pull", "resolve"]
"#
    );
}

#[test]
fn without_the_default_endpoint_the_last_mirror_is_the_server() {
    let found = parsed("mirrors: {r.io: {endpoint: [a.io, b.io/x]}, empty.io: {}}")
        .with_options(options(true, false));
    let hosts = found.hosts();
    assert_eq!(hosts.keys().collect::<Vec<_>>(), ["r.io"]);
    assert_eq!(
        hosts["r.io"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
server = "https://b.io/x"
capabilities = ["pull", "resolve"]
override_path = true

[host."https://a.io"]
  capabilities = ["pull", "resolve"]
"#
    );
}

#[test]
fn rewritten_mirrors_are_reached_through_the_local_registry() {
    let text = r#"
mirrors:
  r.io:8443:
    endpoint: ["https://m.io/v2/base", "https://r.io:8443"]
    rewrite: {"^library/(.*)": "pub/$1"}
  "*": {endpoint: ["http://any.io"], rewrite: {"(.*)": "all/$1"}}
configs: {m.io: {tls: {ca_file: /c/ca.crt}}}
"#;
    let found = parsed(text).with_options(options(false, false));
    assert!(found.has_rewrites());
    let hosts = found.hosts();
    assert_eq!(
        hosts["r.io_8443_"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
server = "http://127.0.0.1:5001/rewrite/r.io:8443/1"
capabilities = ["pull", "resolve"]
override_path = true

[host."http://127.0.0.1:5001/rewrite/r.io:8443/0"]
  capabilities = ["pull", "resolve"]
  override_path = true
  ca = "/c/ca.crt"
"#
    );
    assert!(hosts["_default"].contains("[host.\"http://127.0.0.1:5001/rewrite/_default/0\"]"));
    let to = |mirror, index, name| found.rewritten(mirror, index, name);
    assert_eq!(to("r.io:8443", 0, "library/a").unwrap(), "https://m.io/v2/base/pub/a");
    assert_eq!(to("r.io:8443", 1, "library/a").unwrap(), "https://r.io:8443/v2/pub/a");
    assert_eq!(to("_default", 0, "a").unwrap(), "http://any.io/v2/all/a");
    assert_eq!(to("r.io:8443", 2, "a"), None);
    assert_eq!(to("other.io", 0, "a"), None);
}

#[test]
fn the_embedded_registry_is_the_first_mirror_of_listed_registries() {
    let listed = parsed("mirrors: {docker.io: {}, 'localhost:5000': {}, r.io: {endpoint: [m.io]}}");
    assert!(listed.hosts().keys().all(|host| host == "r.io"));
    let found = listed.clone().with_options(options(false, true));
    let hosts = found.hosts();
    assert_eq!(hosts.keys().collect::<Vec<_>>(), ["docker.io", "r.io"]);
    assert_eq!(
        hosts["docker.io"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
server = "https://registry-1.docker.io"
capabilities = ["pull", "resolve"]

[host."http://127.0.0.1:5001"]
  capabilities = ["pull", "resolve"]
"#
    );
    let order: Vec<usize> =
        ["127.0.0.1", "m.io"].iter().map(|host| hosts["r.io"].find(host).unwrap()).collect();
    assert!(order.is_sorted());
    assert!(found.is_shared("r.io") && !found.is_shared("other.io"));
    assert!(!found.is_shared("localhost:5000") && !listed.is_shared("r.io"));
    // Only other nodes, and no registry.
    let only = listed.with_options(options(true, true)).hosts();
    assert!(only["docker.io"].contains("server = \"http://127.0.0.1:5001\""));
    let any = parsed("mirrors: {'*': {}}").with_options(options(false, true));
    assert!(any.is_shared("whatever.io"));
    assert!(any.hosts()["_default"].contains("[host.\"http://127.0.0.1:5001\"]"));
}

#[test]
fn certificates_are_configured_for_their_endpoint() {
    let found = parsed(
        r#"
mirrors: {r.io: {endpoint: ["https://m.io:5000"]}}
configs:
  m.io:5000: {tls: {ca_file: /c/ca.crt, cert_file: /c/a.crt, key_file: "/c/\"a.key"}}
  r.io: {tls: {insecure_skip_verify: true}}
  alone.io: {tls: {ca_file: /c/ca.crt}}
"#,
    );
    let hosts = found.hosts();
    assert_eq!(hosts.keys().collect::<Vec<_>>(), ["alone.io", "m.io_5000_", "r.io"]);
    assert_eq!(
        hosts["r.io"],
        r#"# Written by kube-lite from registries.yaml; changes are lost.
server = "https://r.io"
capabilities = ["pull", "resolve"]
skip_verify = true

[host."https://m.io:5000"]
  capabilities = ["pull", "resolve"]
  ca = "/c/ca.crt"
  client = [["/c/a.crt", "/c/\"a.key"]]
"#
    );
    assert!(hosts["alone.io"].contains(
        "server = \"https://alone.io\"\ncapabilities = \
        [\"pull\", \"resolve\"]\nca = \"/c/ca.crt\"\n"
    ));
}

#[test]
fn credentials_are_sent_to_their_endpoint_in_the_order_of_the_pull() {
    let found = parsed(
        r#"
mirrors: {docker.io: {endpoint: ["http://m.io:5000", "https://open.io"]}}
configs:
  m.io:5000: {auth: {username: u, password: p}}
  docker.io: {auth: {auth: aHViOnNlY3JldA==}}
  other.io: {auth: {identity_token: t}}
"#,
    );
    // `aHViOnNlY3JldA==` is `hub:secret` in base64.
    let credentials = |image: &str| -> Vec<(String, String)> {
        let all = found.credentials(image).into_iter();
        all.map(|a| {
            (
                a.server_address,
                format!("{}{}{}{}", a.username, a.password, a.auth, a.identity_token),
            )
        })
        .collect()
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        credentials("docker.io/library/a:1"),
        [pair("http://m.io:5000", "up"), pair("https://registry-1.docker.io", "aHViOnNlY3JldA==")]
    );
    assert_eq!(credentials("other.io/a"), [pair("https://other.io", "t")]);
    assert_eq!(credentials("third.io/a"), []);
    // The `Debug` form has no credentials.
    assert!(!format!("{found:?}").contains("secret") && !format!("{found:?}").contains("aHVi"));
}

#[test]
fn invalid_entries_are_rejected_by_name() {
    for (text, why) in [
        ("mirror: {}", "unknown field `mirror`"),
        ("mirrors: {r.io: {endpoints: [a.io]}}", "mirrors.r.io: unknown field `endpoints`"),
        ("mirrors: {../x: {endpoint: [a.io]}}", "mirrors.../x: must be a host"),
        ("mirrors: {r.io: {endpoint: [ftp://a.io]}}", "must begin with https:// or http://"),
        ("mirrors: {r.io: {endpoint: ['https://u:p@a.io']}}", "must be a host"),
        (
            "mirrors: {r.io: {endpoint: ['https://a.io/v2?x=1']}}",
            "must be a URL without user, query",
        ),
        (
            "mirrors: {r.io: {endpoint: [a.io], rewrite: {'(': z}}}",
            "mirrors.r.io.rewrite \"(\": regex parse error",
        ),
        ("configs: {r.io: {auth: {}}}", "needs a username with a password"),
        // `nocolon` in base64.
        ("configs: {r.io: {auth: {auth: bm9jb2xvbg==}}}", "auth must be user:password in base64"),
        ("configs: {r.io: {tls: {cert_file: /a}}}", "cert_file and key_file must be set together"),
        ("configs: {r.io: {tsl: {}}}", "unknown field `tsl`"),
        ("mirrors: [", "yaml"),
    ] {
        let error = parse_error(text);
        assert!(error.contains(why), "{error}");
    }
    assert_eq!(parsed(""), Registries::default());
}

#[test]
fn write_hosts_removes_its_outdated_directories_and_keeps_others() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("certs.d");
    write_hosts(&parsed("mirrors: {a.io: {endpoint: [m.io]}, b.io: {endpoint: [m.io]}}"), &dir)
        .unwrap();
    // A directory that the administrator created has no header of kube-lite.
    std::fs::create_dir(dir.join("c.io")).unwrap();
    std::fs::write(dir.join("c.io/hosts.toml"), "server = \"https://c.io\"\n").unwrap();
    write_hosts(&parsed("mirrors: {b.io: {endpoint: [n.io]}}"), &dir).unwrap();
    assert!(!dir.join("a.io").exists() && dir.join("c.io/hosts.toml").exists());
    let text = std::fs::read_to_string(dir.join("b.io/hosts.toml")).unwrap();
    assert!(text.contains("[host.\"https://n.io\"]") && !text.contains("m.io"));
}

#[test]
fn load_refuses_missing_and_relative_certificate_files() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("registries.yaml");
    assert_eq!(load(&file).unwrap(), Registries::default());
    std::fs::write(&file, "configs: {r.io: {tls: {ca_file: /nowhere/ca.crt}}}").unwrap();
    let text = load(&file).unwrap_err().to_string();
    assert!(
        text.starts_with("configs.r.io.tls.ca_file \"/nowhere/ca.crt\": No such file"),
        "{text}"
    );
    std::fs::write(&file, "configs: {r.io: {tls: {ca_file: ca.crt}}}").unwrap();
    assert!(load(&file).unwrap_err().to_string().contains("must be an absolute path"));
}
