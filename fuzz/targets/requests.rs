//! Whole requests to an API server over memory, one after the other: the first line is method and
//! URL, the others are headers up to an empty line, then the body; a line `---` is between two.
//! Whatever is asked, there is an answer, and one in JSON is JSON.
#![no_main]

use std::cell::RefCell;
use std::sync::Arc;

use apiserver::authn::Union;
use apiserver::authz::{Attributes, Authorizer, Decision};
use apiserver::{ApiServer, Config, Objects, Parts, User};
use apiserver::request::body;
use base::{Shutdown, Tasks};
use http::{HeaderName, HeaderValue, Request, header};
use tokio::runtime::{Builder, Runtime};

/// Inputs that one server answers; then another one begins without their objects.
const INPUTS: u32 = 2000;
/// Requests of one input.
const REQUESTS: usize = 6;

struct AllowAll;

#[async_trait::async_trait]
impl Authorizer for AllowAll {
    async fn authorize(&self, _: &User, _: &Attributes<'_>) -> Decision {
        Decision::Allow(String::new())
    }
}

struct World {
    runtime: Runtime,
    server: ApiServer,
    tasks: Tasks,
    inputs: u32,
}

thread_local!(static WORLD: RefCell<Option<World>> = const { RefCell::new(None) });

fn admin() -> User {
    User { name: "admin".into(), groups: vec!["system:masters".into()], ..User::default() }
}

impl World {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let tasks = Tasks::new(Shutdown::new());
        let server = runtime.block_on(async {
            let store = store::open_memory_with(&tasks);
            let parts = Parts {
                objects: Objects::new(store, None, api::schema::Schema::builtin(), &tasks),
                authenticator: Arc::new(Union::new(Vec::new(), true)),
                authorizer: Arc::new(AllowAll),
                admission: Vec::new(),
                token_issuer: None,
                reviews: None,
                connect: None,
                impersonation: None,
            };
            let server = apiserver::build(Config::default(), parts, tasks.clone()).unwrap();
            let request = Request::post("/api/v1/namespaces");
            let namespace = body::full(r#"{"metadata":{"name":"default"}}"#);
            server.call(Some(admin()), request.body(namespace).unwrap()).await;
            server
        });
        Self { runtime, server, tasks, inputs: 0 }
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let requests: Vec<_> =
        split(bytes, b"\n---\n").into_iter().take(REQUESTS).filter_map(request).collect();
    if requests.is_empty() {
        return;
    }
    WORLD.with_borrow_mut(|world| {
        if let Some(old) = world.take_if(|world| world.inputs >= INPUTS) {
            old.tasks.shutdown().request();
        }
        let world = world.get_or_insert_with(World::new);
        world.inputs += 1;
        let World { runtime, server, .. } = world;
        runtime.block_on(async {
            for request in requests {
                ask(server, request).await;
            }
        });
    });
});

async fn ask(server: &ApiServer, request: Request<body::Body>) {
    let uri = request.uri().clone();
    let answer = server.call(Some(admin()), request).await;
    assert!((200..600).contains(&answer.status().as_u16()), "{uri}");
    let kind = answer.headers().get(header::CONTENT_TYPE).cloned();
    // What does not end by itself is not waited for.
    if uri.path().contains("/watch") || uri.query().is_some_and(|q| q.contains("watch") || q.contains('%')) {
        return;
    }
    let bytes = body::collect(answer.into_body()).await.expect("the whole answer");
    if kind.is_some_and(|kind| kind == "application/json") && !bytes.is_empty() {
        serde_json::from_slice::<serde_json::Value>(&bytes).expect("JSON");
    }
}

fn split<'a>(bytes: &'a [u8], by: &[u8]) -> Vec<&'a [u8]> {
    let (mut parts, mut rest) = (Vec::new(), bytes);
    while let Some(at) = rest.windows(by.len()).position(|window| window == by) {
        parts.push(&rest[..at]);
        rest = &rest[at + by.len()..];
    }
    parts.push(rest);
    parts
}

fn request(bytes: &[u8]) -> Option<Request<body::Body>> {
    let (head, content) = match bytes.windows(2).position(|window| window == b"\n\n") {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &[][..]),
    };
    let mut lines = head.split(|b| *b == b'\n');
    let first = std::str::from_utf8(lines.next()?).ok()?;
    let (method, uri) = first.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(uri);
    for line in lines {
        let at = line.iter().position(|b| *b == b':')?;
        let name = HeaderName::from_bytes(&line[..at]).ok()?;
        request = request.header(name, HeaderValue::from_bytes(line[at + 1..].trim_ascii()).ok()?);
    }
    request.body(body::full(content.to_vec())).ok()
}
