//! A transport with an offline cache: replays the objects last watched when no server answers.
//!
//! For each watched scope an encrypted file holds the last known objects and their resource
//! version. A watch without a resource version that gets no answer in time is answered from the
//! file as a complete list; then the stream ends, the reflector continues from that resource
//! version, and the server sends the changes or asks for a relist. Claims, volumes and runtime
//! classes read by name are cached the same way. Writes are never answered from the cache.

mod memory;
mod writer;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::{Gvr, Object, WatchEvent};
use async_trait::async_trait;
use base::{EncryptedDir, Kind, Tasks, clock};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::Error;
use crate::transport::{Scope, Transport, WatchStream};
use memory::{Memory, file_name};
use writer::CacheFile;

/// How long the server may take to begin its answer before the cache is used: pods that the server
/// would remove must not start first, and a start without a server must not wait.
const ANSWER_WAIT: Duration = Duration::from_millis(1500);
/// After a failure, other requests do not wait for an answer for this long.
const AWAY_FOR: Duration = Duration::from_secs(10);
/// Memory is given so often in this time, to different watchers of one scope: who asks again and
/// again wants the server.
const GIVEN_FOR: Duration = Duration::from_secs(10);
const GIVEN_MAX: u32 = 8;
/// Events of one watch on their way through.
const RELAY_MAX: usize = 64;

/// One scope: what is known, and what is to be written of it.
#[derive(Debug)]
struct Entry {
    scope: Scope,
    file: String,
    memory: Mutex<Memory>,
    cache_file: Mutex<CacheFile>,
    /// Since when memory is given, and how often it was since.
    given: Mutex<Option<(Instant, u32)>>,
}

#[derive(Debug)]
struct Shared {
    kept: Arc<EncryptedDir>,
    entries: Mutex<HashMap<Scope, Arc<Entry>>>,
    /// Files of scopes that nobody uses any more.
    gone: Mutex<Vec<Scope>>,
    /// Something is to be written or removed.
    changed: Notify,
    /// Whether the last try reached a server.
    link: watch::Sender<bool>,
    failed_at: Mutex<Option<Instant>>,
}

/// A transport that caches what it reads and serves it while no server answers.
#[derive(Clone)]
pub struct OfflineTransport<T> {
    inner: T,
    shared: Arc<Shared>,
    tasks: Tasks,
}

impl<T: fmt::Debug> fmt::Debug for OfflineTransport<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfflineTransport({:?})", self.inner)
    }
}

impl<T: Transport> OfflineTransport<T> {
    /// Caches in `directory`, which belongs to one identity only. The writer runs in `tasks`.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// When the directory or its key cannot be made or read.
    pub fn open(inner: T, directory: &Path, tasks: &Tasks) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            kept: Arc::new(EncryptedDir::open(directory)?),
            entries: Mutex::default(),
            gone: Mutex::default(),
            changed: Notify::new(),
            link: watch::Sender::new(true),
            failed_at: Mutex::new(None),
        });
        let write = writer::run(Arc::clone(&shared), tasks.shutdown().clone());
        tasks.spawn(Kind::Critical, "remember", write);
        Ok(Self { inner, shared, tasks: tasks.clone() })
    }

    /// What is known of a scope, from its file at the first time.
    async fn entry(&self, scope: &Scope) -> Arc<Entry> {
        if let Some(entry) = self.shared.entries.lock().get(scope) {
            return Arc::clone(entry);
        }
        let (kept, wanted) = (Arc::clone(&self.shared.kept), scope.clone());
        let read = base::tasks::blocking(move || {
            let file = file_name(&wanted);
            let content = kept.read(&file)?;
            match memory::decode(&wanted, &content) {
                Ok(memory) => Some((memory, content.len())),
                Err(why) => {
                    kept.set_aside(&file, &why);
                    None
                }
            }
        });
        let (memory, size) = read.await.ok().flatten().unwrap_or_default();
        let entry = Arc::new(Entry {
            scope: scope.clone(),
            file: file_name(scope),
            memory: Mutex::new(memory),
            cache_file: Mutex::new(CacheFile::new(size)),
            given: Mutex::new(None),
        });
        Arc::clone(self.shared.entries.lock().entry(scope.clone()).or_insert(entry))
    }

    /// The stream that was begun, with everything taken note of on its way.
    fn relay(
        &self,
        entry: &Arc<Entry>,
        first: Option<WatchEvent>,
        mut from: WatchStream,
    ) -> WatchStream {
        let (sender, receiver) = mpsc::channel(RELAY_MAX);
        let (shared, entry) = (Arc::clone(&self.shared), Arc::clone(entry));
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "remember-watch", async move {
            // Only a list has a first event already.
            let mut listing = first.is_some().then(BTreeMap::new);
            let mut next = first;
            loop {
                let event = match next.take() {
                    Some(event) => event,
                    None => tokio::select! {
                        event = from.recv() => match event {
                            Some(event) => event,
                            None => break,
                        },
                        () = sender.closed() => break,
                        () = shutdown.requested() => break,
                    },
                };
                if entry.memory.lock().apply(&entry.scope.gvr, &mut listing, &event) {
                    shared.is_to_write(&entry);
                }
                if sender.send(event).await.is_err() {
                    break;
                }
            }
            Ok::<(), std::convert::Infallible>(())
        });
        receiver
    }

    /// What is remembered, as a stream that says it and ends.
    fn give(&self, entry: &Entry) -> Option<WatchStream> {
        let events = entry.memory.lock().as_list()?;
        let mut given = entry.given.lock();
        let (since, times) =
            given.filter(|(at, _)| at.elapsed() < GIVEN_FOR).unwrap_or((clock::now(), 0));
        if times >= GIVEN_MAX {
            return None;
        }
        *given = Some((since, times + 1));
        drop(given);
        let (sender, receiver) = mpsc::channel(events.len().max(1));
        tracing::debug!(gvr = %entry.scope.gvr, objects = events.len() - 1, "no server answers, going on from memory");
        for event in events {
            // The channel has room for all of them.
            let _ = sender.try_send(event);
        }
        Some(receiver)
    }

    /// A streaming list with its first event, as soon as the server begins it.
    async fn list(&self, scope: &Scope) -> Result<(WatchEvent, WatchStream), Error> {
        let mut stream = self.inner.watch(scope, None).await?;
        match stream.recv().await {
            Some(WatchEvent::Error(status)) => Err((*status).into()),
            Some(event) => Ok((event, stream)),
            None => Err(Error::Transport("the server ended the list before it began".to_owned())),
        }
    }

    async fn first_list(&self, scope: &Scope) -> Result<WatchStream, Error> {
        let entry = self.entry(scope).await;
        let remembers = entry.memory.lock().is_known();
        if remembers
            && self.shared.just_failed()
            && let Some(stream) = self.give(&entry)
        {
            return Ok(stream);
        }
        let late = || Error::Transport("no server answered in time".to_owned());
        let outcome = if remembers && entry.given.lock().is_none() {
            let list = tokio::time::timeout(ANSWER_WAIT, self.list(scope)).await;
            list.unwrap_or_else(|_| Err(late()))
        } else {
            self.list(scope).await
        };
        self.shared.note(outcome.as_ref().err());
        match outcome {
            Ok((first, stream)) => Ok(self.relay(&entry, Some(first), stream)),
            Err(error) if is_away(&error) => self.give(&entry).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// A read by name of something that is remembered.
    async fn read(&self, scope: &Scope, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let entry = self.entry(scope).await;
        let remembered = entry.memory.lock().only();
        let answer = |object: &Object| {
            let mut response = Response::new(Bytes::from(object.json()));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            response
        };
        if let Some(object) = remembered.as_ref().filter(|_| self.shared.just_failed()) {
            return Ok(answer(object));
        }
        let call = self.inner.call(request);
        let outcome = if remembered.is_some() {
            let late = || Err(Error::Transport("no server answered in time".to_owned()));
            tokio::time::timeout(ANSWER_WAIT, call).await.unwrap_or_else(|_| late())
        } else {
            call.await
        };
        self.shared.note_call(&outcome);
        match (outcome, remembered) {
            (Ok(response), remembered) => {
                let code = response.status();
                if code.is_server_error()
                    && let Some(object) = remembered
                {
                    return Ok(answer(&object));
                }
                let known = match code {
                    StatusCode::OK => object_of(response.body()).map(Some),
                    StatusCode::NOT_FOUND => Some(None),
                    _ => None,
                };
                let news = known.is_some_and(|o| entry.memory.lock().set_only(&scope.gvr, o));
                if news {
                    self.shared.is_to_write(&entry);
                }
                Ok(response)
            }
            (Err(error), Some(object)) if is_away(&error) => Ok(answer(&object)),
            (Err(error), _) => Err(error),
        }
    }
}

fn object_of(body: &Bytes) -> Option<Arc<Object>> {
    let value = serde_json::from_slice(body).ok()?;
    Object::from_value(value).ok().map(Arc::new)
}

/// Whether this says that no server is there to ask. A certificate that no longer counts is one
/// reason more to go on.
fn is_away(error: &Error) -> bool {
    (error.is_retryable() && !error.is_too_new()) || error.status().is_some_and(|s| s.code == 401)
}

/// What a read by name is about, when it is remembered: what stands between a pod and its start and
/// cannot be watched by a node.
fn remembered_read(request: &Request<Bytes>) -> Option<Scope> {
    if request.method() != Method::GET || request.uri().query().is_some() {
        return None;
    }
    let parts: Vec<&str> = request.uri().path().split('/').collect();
    let (gvr, namespace, name) = match *parts.as_slice() {
        ["", "api", "v1", "namespaces", namespace, "persistentvolumeclaims", name] => {
            (Gvr::new("", "v1", "persistentvolumeclaims"), namespace, name)
        }
        ["", "api", "v1", "persistentvolumes", name] => {
            (Gvr::new("", "v1", "persistentvolumes"), "", name)
        }
        ["", "apis", "node.k8s.io", "v1", "runtimeclasses", name] => {
            (Gvr::new("node.k8s.io", "v1", "runtimeclasses"), "", name)
        }
        _ => return None,
    };
    let scope = Scope { namespace: namespace.to_owned(), ..Scope::all(gvr) };
    Some(scope.fields(format!("metadata.name={name}")))
}

impl Shared {
    fn is_to_write(&self, entry: &Entry) {
        if entry.cache_file.lock().change(clock::now()) {
            self.changed.notify_one();
        }
    }

    /// A try failed a moment ago, and none succeeded since.
    fn just_failed(&self) -> bool {
        self.failed_at.lock().is_some_and(|at| at.elapsed() < AWAY_FOR)
    }

    fn note(&self, error: Option<&Error>) {
        let up = !error.is_some_and(is_away);
        *self.failed_at.lock() = (!up).then(clock::now);
        self.link.send_if_modified(|link| std::mem::replace(link, up) != up);
    }

    fn note_call(&self, outcome: &Result<Response<Bytes>, Error>) {
        match outcome {
            // Of one call alone that is no news about the server: too many requests, an aggregated
            // API that is away.
            Ok(response) if response.status().is_server_error() => {}
            Ok(_) => self.note(None),
            Err(error) => self.note(Some(error)),
        }
    }
}

#[async_trait]
impl<T: Transport> Transport for OfflineTransport<T> {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        if let Some(scope) = remembered_read(&request) {
            return self.read(&scope, request).await;
        }
        let outcome = self.inner.call(request).await;
        self.shared.note_call(&outcome);
        outcome
    }

    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        if resume_from.is_none() {
            return self.first_list(scope).await;
        }
        let outcome = self.inner.watch(scope, resume_from).await;
        self.shared.note(outcome.as_ref().err());
        let stream = outcome?;
        let entry = self.entry(scope).await;
        Ok(self.relay(&entry, None, stream))
    }

    /// When somebody reaches a server again, or the transport inside knows that one is there.
    async fn back(&self) {
        let mut link = self.shared.link.subscribe();
        let again = async {
            // The sender lives as long as this transport.
            let _ = link.wait_for(|up| !*up).await;
            let _ = link.wait_for(|up| *up).await;
        };
        tokio::select! {
            () = again => {}
            () = self.inner.back() => {}
        }
    }

    fn is_away(&self) -> bool {
        !*self.shared.link.borrow()
    }

    fn forget(&self, scope: &Scope) {
        self.shared.entries.lock().remove(scope);
        self.shared.gone.lock().push(scope.clone());
        self.shared.changed.notify_one();
    }

    fn kept(&self) -> Option<Arc<EncryptedDir>> {
        Some(Arc::clone(&self.shared.kept))
    }
}
