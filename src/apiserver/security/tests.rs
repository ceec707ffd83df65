//! Security of a complete server with an in-memory store: authentication, authorization and pod
//! admission.

mod odd_paths;
mod rights;

use super::*;
use crate::Config;
use base::Shutdown;
use serde_json::json;

struct World {
    server: ApiServer,
    tasks: Tasks,
}

async fn world() -> World {
    world_of(|_| {}).await
}

/// A server with changed parts.
async fn world_of(change: impl FnOnce(&mut Parts)) -> World {
    let tasks = Tasks::new(Shutdown::new());
    let objects =
        Objects::new(store::open_memory_with(&tasks), None, api::schema::Schema::builtin(), &tasks);
    let settings = Settings {
        issuer: "https://kubernetes.default.svc.cluster.local".into(),
        former_issuers: Vec::new(),
        token_seconds_max: None,
        service_account_key: SigningKey::generate_pem().unwrap().into(),
        address: "192.168.1.5:6443".into(),
        tokens: vec![(
            "admin".into(),
            User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() },
        )],
        authentication: crate::authn::AuthenticationConfig::default(),
        tolerations: Default::default(),
        callout: webhook::Callout {
            reach: Arc::new(webhook::Services::new(
                Arc::clone(&objects) as Arc<dyn Lookup>,
                Arc::new(base::io::Tcp),
            )),
            tasks: tasks.clone(),
        },
        authorization: AuthorizationConfig::default(),
        hardened: false,
        admission: Default::default(),
        plugins: Vec::new(),
    };
    let security = Security::new(&objects, settings).unwrap();
    let mut parts = security.parts(&objects, None);
    change(&mut parts);
    let server = crate::build(Config::default(), parts, tasks.clone()).unwrap();
    let writer = BootstrapWriter::new(server.clone());
    let cluster = bootstrap::Settings {
        service_ip: "10.43.0.1".parse().unwrap(),
        service_cidrs: vec!["10.43.0.0/16".into()],
        cluster_dns: Vec::new(),
        advertised: vec!["192.168.1.5".parse().unwrap()],
        port: 6443,
        client_ca: "CA".into(),
        request_header_ca: String::new(),
        request_header_names: Vec::new(),
        resource_metrics: true,
    };
    let written = bootstrap::ensure(&writer, &cluster).await.unwrap();
    assert!(written > 170, "{written}");
    assert_eq!(bootstrap::ensure(&writer, &cluster).await.unwrap(), 0);
    security.follow(&objects, &tasks).await.unwrap();
    World { server, tasks }
}

impl World {
    async fn ask(
        &self,
        method: Method,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        object: Value,
    ) -> (u16, Value) {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/json");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let content = if object.is_null() { String::new() } else { object.to_string() };
        let request = request.body(body::full(content)).unwrap();
        // The future of a request is large, and a test has a small stack.
        let response = Box::pin(self.server.call(None, request)).await;
        let code = response.status().as_u16();
        let bytes = body::read(response.into_body()).await.unwrap();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn end(self) {
        self.tasks.shutdown().request();
        self.tasks.drain(std::time::Duration::from_secs(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permissions_depend_on_the_credentials() {
    let world = world().await;
    let get = |path: &'static str, token: &'static str| {
        world.ask(Method::GET, path, token, &[], Value::Null)
    };
    assert_eq!(get("/api/v1/secrets", "admin").await.0, 200);
    assert_eq!(get("/api/v1/secrets", "wrong").await.0, 401);
    let (code, refusal) = get("/api/v1/secrets", "").await;
    assert_eq!(code, 403);
    assert_eq!(
        refusal["message"],
        "secrets is forbidden: User \"system:anonymous\" cannot list resource \"secrets\" in API group \"\" at the cluster scope"
    );
    assert_eq!(get("/version", "").await.0, 200);
    let acting = [("impersonate-user", "jane"), ("impersonate-group", "system:authenticated")];
    let (code, me) = world
        .ask(
            Method::POST,
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            "admin",
            &acting,
            json!({}),
        )
        .await;
    assert_eq!((code, me["status"]["userInfo"]["username"].as_str()), (201, Some("jane")));
    assert_eq!(world.ask(Method::GET, "/api/v1/pods", "admin", &acting, Value::Null).await.0, 403);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_token_has_the_permissions_of_its_role() {
    let world = world().await;
    let admin =
        |path: &'static str, object: Value| world.ask(Method::POST, path, "admin", &[], object);
    assert_eq!(
        admin("/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "bot"}}))
            .await
            .0,
        201
    );
    let (code, answer) =
        admin("/api/v1/namespaces/default/serviceaccounts/bot/token", json!({"spec": {}})).await;
    assert_eq!(code, 201, "{answer}");
    let token = answer["status"]["token"].as_str().unwrap().to_owned();
    let list =
        || world.ask(Method::GET, "/api/v1/namespaces/default/pods", &token, &[], Value::Null);
    assert_eq!(list().await.0, 403);
    let binding = json!({
        "metadata": {"name": "bot"}, "subjects": [{"kind": "ServiceAccount", "name": "bot", "namespace": "default"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-view"},
    });
    assert_eq!(
        admin("/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings", binding)
            .await
            .0,
        201
    );
    // The authorizer follows the bindings with a short delay.
    let heeded = async {
        while list().await.0 != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), heeded).await.unwrap();
    assert_eq!(
        world.ask(Method::GET, "/openid/v1/jwks", &token, &[], Value::Null).await.1["keys"][0]["alg"],
        "ES256"
    );
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_passes_all_admission_plugins() {
    let world = world().await;
    let admin =
        |path: &'static str, object: Value| world.ask(Method::POST, path, "admin", &[], object);
    assert_eq!(
        admin(
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "default"}})
        )
        .await
        .0,
        201
    );
    let quota = json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}});
    assert_eq!(admin("/api/v1/namespaces/default/resourcequotas", quota).await.0, 201);
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    let (code, made) = admin("/api/v1/namespaces/default/pods", pod.clone()).await;
    assert_eq!(code, 201, "{made}");
    let spec = &made["spec"];
    assert_eq!(
        (spec["serviceAccountName"].as_str(), spec["priority"].as_i64()),
        (Some("default"), Some(0))
    );
    assert_eq!(spec["tolerations"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        spec["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"],
        3607
    );
    let (code, refusal) = admin("/api/v1/namespaces/none/pods", pod).await;
    assert_eq!((code, refusal["message"].as_str()), (404, Some("namespaces \"none\" not found")));
    world.end().await;
}
