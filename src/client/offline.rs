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

/// Time for the server to begin its response before the cache is used: pods that the server would
/// remove must not start first, and a start without a server must not wait.
const ANSWER_WAIT: Duration = Duration::from_millis(1500);
/// After a failure, other requests do not wait for a response for this long.
const AWAY_FOR: Duration = Duration::from_secs(10);
/// How often in this time the cache is served, for several watchers of one scope. A watcher that
/// retries more often needs the server.
const GIVEN_FOR: Duration = Duration::from_secs(10);
const GIVEN_MAX: u32 = 8;
/// Maximum number of queued events of a watch.
const RELAY_MAX: usize = 64;

/// The cached state of one scope and what of it is to be written.
#[derive(Debug)]
struct CachedScope {
    scope: Scope,
    file: String,
    memory: Mutex<Memory>,
    cache_file: Mutex<CacheFile>,
    /// Since when the cache has been served, and how often since.
    given: Mutex<Option<(Instant, u32)>>,
}

#[derive(Debug)]
struct Shared {
    directory: Arc<EncryptedDir>,
    entries: Mutex<HashMap<Scope, Arc<CachedScope>>>,
    /// Files of scopes that are no longer watched.
    gone: Mutex<Vec<Scope>>,
    /// Notifies of pending writes and removals.
    changed: Notify,
    /// Whether the last attempt reached a server.
    link: watch::Sender<bool>,
    failed_at: Mutex<Option<Instant>>,
}

/// A transport that caches what it reads and serves the cache while no server answers.
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
    /// Caches in `directory`, which belongs to one identity. The writer runs in `tasks`. Blocks on
    /// disk operations.
    ///
    /// # Errors
    /// When the directory or its key cannot be created or read.
    pub fn open(inner: T, directory: &Path, tasks: &Tasks) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            directory: Arc::new(EncryptedDir::open(directory)?),
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

    /// The cached state of a scope, loaded from its file on first use.
    async fn entry(&self, scope: &Scope) -> Arc<CachedScope> {
        if let Some(entry) = self.shared.entries.lock().get(scope) {
            return Arc::clone(entry);
        }
        let (directory, wanted) = (Arc::clone(&self.shared.directory), scope.clone());
        let read = base::tasks::blocking(move || {
            let file = file_name(&wanted);
            let content = directory.read(&file)?;
            match memory::decode(&wanted, &content) {
                Ok(memory) => Some((memory, content.len())),
                Err(why) => {
                    directory.set_aside(&file, &why.to_string());
                    None
                }
            }
        });
        let (memory, size) = read.await.ok().flatten().unwrap_or_default();
        let entry = Arc::new(CachedScope {
            scope: scope.clone(),
            file: file_name(scope),
            memory: Mutex::new(memory),
            cache_file: Mutex::new(CacheFile::new(size)),
            given: Mutex::new(None),
        });
        Arc::clone(self.shared.entries.lock().entry(scope.clone()).or_insert(entry))
    }

    /// Relays the events of a stream and records them in the cache.
    fn relay(
        &self,
        entry: &Arc<CachedScope>,
        first: Option<WatchEvent>,
        mut from: WatchStream,
    ) -> WatchStream {
        let (sender, receiver) = mpsc::channel(RELAY_MAX);
        let (shared, entry) = (Arc::clone(&self.shared), Arc::clone(entry));
        let shutdown = self.tasks.shutdown().clone();
        self.tasks.spawn(Kind::Request, "remember-watch", async move {
            // Only a list has its first event already.
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

    /// The cached objects, as a stream that ends after them.
    fn serve_cached(&self, entry: &CachedScope) -> Option<WatchStream> {
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
        tracing::debug!(gvr = %entry.scope.gvr, objects = events.len() - 1, "no server answers, serving the offline cache");
        for event in events {
            // The channel has capacity for all of them.
            let _ = sender.try_send(event);
        }
        Some(receiver)
    }

    /// Starts a streaming list; returns it with its first event.
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
            && self.shared.has_just_failed()
            && let Some(stream) = self.serve_cached(&entry)
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
        self.shared.record_outcome(outcome.as_ref().err());
        match outcome {
            Ok((first, stream)) => Ok(self.relay(&entry, Some(first), stream)),
            Err(error) if is_away(&error) => self.serve_cached(&entry).ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Reads an object by name that is cached.
    async fn read(&self, scope: &Scope, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let entry = self.entry(scope).await;
        let remembered = entry.memory.lock().only();
        let answer = |object: &Object| {
            let mut response = Response::new(Bytes::from(object.json()));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert(http::header::CONTENT_TYPE, json);
            response
        };
        if let Some(object) = remembered.as_ref().filter(|_| self.shared.has_just_failed()) {
            return Ok(answer(object));
        }
        let call = self.inner.call(request);
        let outcome = if remembered.is_some() {
            let late = || Err(Error::Transport("no server answered in time".to_owned()));
            tokio::time::timeout(ANSWER_WAIT, call).await.unwrap_or_else(|_| late())
        } else {
            call.await
        };
        self.shared.record_call(&outcome);
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

/// Whether an error means that no server can be reached. An expired certificate also counts.
fn is_away(error: &Error) -> bool {
    (error.is_retryable() && !error.is_too_new()) || error.status().is_some_and(|s| s.code == 401)
}

/// The scope of a read by name if it is cached: objects that a pod needs at its start and that a
/// node cannot watch.
fn cached_read(request: &Request<Bytes>) -> Option<Scope> {
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
    fn is_to_write(&self, entry: &CachedScope) {
        if entry.cache_file.lock().change(clock::now()) {
            self.changed.notify_one();
        }
    }

    /// Whether an attempt failed recently and none succeeded since.
    fn has_just_failed(&self) -> bool {
        self.failed_at.lock().is_some_and(|at| at.elapsed() < AWAY_FOR)
    }

    fn record_outcome(&self, error: Option<&Error>) {
        let up = !error.is_some_and(is_away);
        *self.failed_at.lock() = (!up).then(clock::now);
        self.link.send_if_modified(|link| std::mem::replace(link, up) != up);
    }

    fn record_call(&self, outcome: &Result<Response<Bytes>, Error>) {
        match outcome {
            // Errors of a single call say nothing about the server: too many requests, or an
            // unavailable aggregated API.
            Ok(response) if response.status().is_server_error() => {}
            Ok(_) => self.record_outcome(None),
            Err(error) => self.record_outcome(Some(error)),
        }
    }
}

#[async_trait]
impl<T: Transport> Transport for OfflineTransport<T> {
    async fn call(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        if let Some(scope) = cached_read(&request) {
            return self.read(&scope, request).await;
        }
        let outcome = self.inner.call(request).await;
        self.shared.record_call(&outcome);
        outcome
    }

    async fn watch(&self, scope: &Scope, resume_from: Option<i64>) -> Result<WatchStream, Error> {
        if resume_from.is_none() {
            return self.first_list(scope).await;
        }
        let outcome = self.inner.watch(scope, resume_from).await;
        self.shared.record_outcome(outcome.as_ref().err());
        let stream = outcome?;
        let entry = self.entry(scope).await;
        Ok(self.relay(&entry, None, stream))
    }

    /// Resolves when a server is reached again, or the inner transport reports it.
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
        Some(Arc::clone(&self.shared.directory))
    }
}
