//! Messages of upstream's `validation_encryption.go` and `config.go`.

use super::*;

/// Keys of 16, 24 and 32 bytes.
const KEYS: [&str; 3] = [
    "c2VjcmV0IGlzIHNlY3VyZQ==",
    "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX",
    "YWJjZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXoxMjM0NTY=",
];

fn read(resources: &str, reload: bool) -> Result<Configuration, ContentError> {
    let head = "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\n";
    configuration(format!("{head}resources:{resources}").as_bytes(), reload)
}

fn refused(resources: &str) -> String {
    read(resources, false).err().map(|e| e.to_string()).unwrap_or_default()
}

/// One resource list `secrets` with these providers.
fn providers(providers: &str) -> String {
    format!("\n- resources: [secrets]\n  providers: {providers}")
}

#[test]
fn valid_configurations_are_accepted() {
    let [short, middle, long] = KEYS;
    let all = format!(
        "[{{aescbc: {{keys: [{{name: a, secret: {long}}}, {{name: b, secret: {short}}}]}}}}, \
         {{aesgcm: {{keys: [{{name: a, secret: {middle}}}]}}}}, {{secretbox: {{keys: [{{name: a, secret: {long}}}]}}}}, \
         {{kms: {{apiVersion: v2, name: foo, endpoint: 'unix:///tmp/x.sock', timeout: 5s}}}}, {{identity: {{}}}}]"
    );
    let rules = read(&providers(&all), true).unwrap().0;
    assert_eq!(rules[0].resources, ["secrets"]);
    assert_eq!(rules[0].providers.len(), 5);
    assert!(matches!(&rules[0].providers[3], DecodedProvider::Kms { name, socket, timeout }
        if name == "foo" && socket.as_os_str() == "/tmp/x.sock" && *timeout == Duration::from_secs(5)));
    // An earlier list takes precedence over a later wildcard.
    let rules = "\n- resources: [events]\n  providers: [{identity: {}}]\n- resources: ['*.apps', '*.']\n  providers: [{identity: {}}]\n- resources: ['*.*']\n  providers: [{identity: {}}]";
    assert_eq!(read(rules, false).unwrap().0.len(), 3);
}

#[test]
fn invalid_resources_are_rejected() {
    let identity = |names: &str| {
        refused(&format!("\n- resources: {names}\n  providers: [{{identity: {{}}}}]"))
    };
    for (names, want) in [
        (
            "[]",
            "resources[0].resources: Required value: at least one resources[0].resources is required",
        ),
        (
            "['*']",
            "resources[0].resources[0]: Invalid value: \"*\": use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources",
        ),
        (
            "[Secrets]",
            "resources[0].resources[0]: Invalid value: \"Secrets\": resource name should not contain capital letters",
        ),
        (
            "[secrets, secrets]",
            "resources[0].resources: Invalid value: [\"secrets\",\"secrets\"]: the same resource cannot be specified multiple times",
        ),
        (
            "['secrets', '*.']",
            "resources[0].resources: Invalid value: [\"secrets\",\"*.\"]: using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked",
        ),
        (
            "['*.*', foos.bar]",
            "resources[0].resources: Invalid value: [\"*.*\",\"foos.bar\"]: using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked",
        ),
        (
            "[apiserveripinfo]",
            "resources[0].resources[0]: Invalid value: \"apiserveripinfo\": resources which do not have REST API/s cannot be encrypted",
        ),
        (
            "['*.events.k8s.io']",
            "resources[0].resources[0]: Invalid value: \"*.events.k8s.io\": '*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file",
        ),
        (
            "[ingresses.extensions]",
            "resources[0].resources[0]: Invalid value: \"ingresses.extensions\": 'extensions' group has been removed and cannot be used for encryption",
        ),
        (
            "['secrets.*']",
            "resources[0].resources[0]: Invalid value: \"secrets.*\": encrypting the same resource across groups is not supported",
        ),
    ] {
        assert_eq!(identity(names), want);
    }
    let masked = "\n- resources: ['*.*']\n  providers: [{identity: {}}]\n- resources: [secrets]\n  providers: [{identity: {}}]";
    assert_eq!(
        refused(masked),
        "error while building transformers: resource \"secrets\" is masked by earlier rule \"*.*\""
    );
    let masked = masked.replace("*.*", "*.");
    assert_eq!(
        refused(&masked),
        "error while building transformers: resource \"secrets\" is masked by earlier rule \"*.\""
    );
    assert_eq!(refused(" []"), "resources: Required value: at least one resources is required");
}

#[test]
fn invalid_providers_are_rejected_without_their_keys() {
    let at = "resources[0].providers[0]";
    let long = KEYS[2];
    for (given, want) in [
        ("[]".to_owned(), "resources[0].providers: Required value: at least one resources[0].providers is required".to_owned()),
        ("[{}]".to_owned(), format!("{at}: Invalid value: provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity")),
        (format!("[{{identity: {{}}, aescbc: {{keys: [{{name: a, secret: {long}}}]}}}}]"), format!("{at}: Invalid value: more than one provider specified in a single element, should split into different list elements")),
        ("[{aescbc: {keys: []}}]".to_owned(), format!("{at}.aescbc.keys: Required value: at least one keys is required")),
        (format!("[{{aescbc: {{keys: [{{secret: {long}}}]}}}}]"), format!("{at}.aescbc.keys[0].name: Required value: name is a mandatory field for a key")),
        ("[{aesgcm: {keys: [{name: a}]}}]".to_owned(), format!("{at}.aesgcm.keys[0].secret: Required value: secret is a mandatory field for a key")),
        ("[{aesgcm: {keys: [{name: a, secret: '*'}]}}]".to_owned(), format!("{at}.aesgcm.keys[0].secret: Invalid value: \"REDACTED\": secrets must be base64 encoded")),
        ("[{aesgcm: {keys: [{name: a, secret: AAAA}]}}]".to_owned(), format!("{at}.aesgcm.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 3, expected one of [16 24 32]")),
        (format!("[{{secretbox: {{keys: [{{name: a, secret: {}}}]}}}}]", KEYS[0]), format!("{at}.secretbox.keys[0].secret: Invalid value: \"REDACTED\": secret is not of the expected length, got 16, expected one of [32]")),
        (format!("[{{aescbc: {{keys: [{{name: a, secret: {long}, pandas: 1}}]}}}}]"), format!("strict decoding error: unknown field \"{at}.aescbc.keys[0].pandas\"")),
    ] {
        assert_eq!(refused(&providers(&given)), want);
    }
}

#[test]
fn invalid_plugins_and_kms_v1_are_rejected() {
    let at = "resources[0].providers[0].kms";
    let kms = |rest: &str| refused(&providers(&format!("[{{kms: {{apiVersion: v2, {rest}}}}}]")));
    let socket = "endpoint: 'unix:///a'";
    for (given, want) in [
        (
            socket.to_owned(),
            format!("{at}.name: Required value: name is a mandatory field for a provider"),
        ),
        (
            format!("name: 'a:b', {socket}"),
            format!(
                "{at}.name: Invalid value: \"a:b\": invalid KMS provider name a:b, must not contain ':'"
            ),
        ),
        (
            "name: a".to_owned(),
            format!("{at}.endpoint: Invalid value: \"\": endpoint is a mandatory field for a kms"),
        ),
        (
            "name: a, endpoint: 'tcp://localhost'".to_owned(),
            format!(
                "{at}.endpoint: Invalid value: \"tcp://localhost\": unsupported scheme \"tcp\" for KMS provider, only unix is supported"
            ),
        ),
        (
            format!("name: a, {socket}, cachesize: 3"),
            format!("{at}.cachesize: Invalid value: 3: cachesize is not supported in v2"),
        ),
        (
            format!("name: a, {socket}, timeout: -1s"),
            format!("{at}.timeout: Invalid value: \"-1s\": timeout should be a positive value"),
        ),
    ] {
        assert_eq!(kms(&given), want);
    }
    let twice = format!(
        "[{{kms: {{apiVersion: v2, name: a, {socket}}}}}, {{kms: {{apiVersion: v2, name: a, {socket}}}}}]"
    );
    assert_eq!(
        refused(&providers(&twice)),
        "resources[0].providers[1].kms.name: Invalid value: \"a\": duplicate KMS provider name a, names must be unique"
    );
    let first = refused(&providers(&format!("[{{kms: {{name: a, {socket}}}}}]")));
    assert!(first.contains("KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead."), "{first}");
    let third = refused(&providers(&format!("[{{kms: {{apiVersion: v3, name: a, {socket}}}}}]")));
    assert_eq!(
        third,
        format!(
            "{at}.apiVersion: Invalid value: \"v3\": unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported"
        )
    );
    let socket_path = |endpoint: &str| {
        let mut errors = Vec::new();
        let path = socket_of(endpoint, &mut errors);
        (path, errors.len())
    };
    assert_eq!(socket_path("unix:///@name"), ("@name".to_owned(), 0));
    assert_eq!(socket_path("unix:///a/b.sock"), ("/a/b.sock".to_owned(), 0));
}

fn socket_of(endpoint: &str, errors: &mut Vec<Error>) -> String {
    super::socket(endpoint, &Path::new("x"), errors).display().to_string()
}

#[test]
fn other_kinds_of_files_are_rejected() {
    let error = |text: &str| configuration(text.as_bytes(), false).err().unwrap().to_string();
    assert_eq!(error("a: b"), "Object 'Kind' is missing");
    assert_eq!(error("kind: EncryptionConfig"), "Object 'apiVersion' is missing");
    assert!(
        error("kind: EncryptionConfig\napiVersion: v1")
            .starts_with("no kind \"EncryptionConfig\" is registered for version \"v1\"")
    );
    assert!(refused(" []\nextra: 1").contains("unknown field \"extra\""));
}
