//! The streams of an HTTP/2 connection run in the task of the connection: their responses leave
//! together, and none of them waits for another thread.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use futures::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;
use parking_lot::Mutex;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Collects the streams that hyper begins.
#[derive(Clone, Default)]
pub(super) struct StreamExecutor(Arc<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for StreamExecutor {
    fn execute(&self, stream: F) {
        self.0.lock().push(Box::pin(stream));
    }
}

/// The streams of one connection. hyper bounds their number.
#[derive(Default)]
pub(super) struct Streams {
    executor: StreamExecutor,
    running: FuturesUnordered<Stream>,
}

impl Streams {
    /// The executor for hyper.
    pub(super) fn executor(&self) -> StreamExecutor {
        self.executor.clone()
    }

    /// Runs a connection and its streams until the connection ends.
    pub(super) async fn run<C: Future>(&mut self, mut connection: Pin<&mut C>) -> C::Output {
        poll_fn(|context| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(ended);
                }
                let begun = std::mem::take(&mut *self.executor.0.lock());
                self.running.extend(begun);
                let mut progressed = false;
                while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {
                    progressed = true;
                }
                if !progressed {
                    return Poll::Pending;
                }
                // The connection writes what the streams have finished.
            }
        })
        .await
    }
}
