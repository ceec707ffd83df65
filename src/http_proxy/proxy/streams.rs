//! The streams of an HTTP/2 connection run in the task of the connection: their responses leave
//! together, and none of them waits for another thread.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::stream::{FuturesUnordered, StreamExt as _};
use hyper::rt::Executor;
use hyper_util::server::graceful::GracefulConnection;
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

/// A connection with its streams, until the connection ends. hyper bounds their number.
pub(super) struct MultiplexedConnection<C> {
    connection: Pin<Box<C>>,
    executor: StreamExecutor,
    running: FuturesUnordered<Stream>,
}

impl<C> MultiplexedConnection<C> {
    /// Runs the streams that `connection` gives to the executor.
    pub(super) fn new(connection: C, executor: StreamExecutor) -> Self {
        Self { connection: Box::pin(connection), executor, running: FuturesUnordered::new() }
    }
}

impl<C: GracefulConnection> MultiplexedConnection<C> {
    /// Lets the streams that have begun end, and accepts no other ones.
    pub(super) fn graceful_shutdown(mut self: Pin<&mut Self>) {
        self.connection.as_mut().graceful_shutdown();
    }
}

impl<C: Future> Future for MultiplexedConnection<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        loop {
            if let Poll::Ready(ended) = this.connection.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            this.running.extend(this.executor.0.lock().drain(..));
            let mut progressed = false;
            while let Poll::Ready(Some(())) = this.running.poll_next_unpin(context) {
                progressed = true;
            }
            if !progressed {
                return Poll::Pending;
            }
            // The connection writes what the streams have finished.
        }
    }
}
