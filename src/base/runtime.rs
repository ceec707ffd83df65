//! The tokio runtime of a serving process.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// How long blocking work (a resolver, a slow disk) may delay the exit.
const BLOCKED_MAX: Duration = Duration::from_millis(100);

/// Runs the future of `main` and the tasks it spawns, with stacks of this size in bytes. Two
/// workers suffice for a small machine and keep fewer stacks and buffers than more would. On a
/// single processor one thread runs everything, without synchronization between workers.
///
/// # Errors
/// When the system provides no threads or descriptors.
pub fn block_on<F: Future<Output: Send>>(
    stack: usize,
    main: impl FnOnce() -> F + Send,
) -> io::Result<F::Output> {
    let alone = std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    let mut builder =
        if alone { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(2).max_blocking_threads(16).thread_stack_size(stack).enable_all();
    let runtime = builder.build()?;
    let ended = if alone {
        // The stack size of a thread is chosen at its start, so the main thread cannot be used.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("runtime".to_owned()).stack_size(stack);
            let thread = thread.spawn_scoped(scope, || drive(&runtime, main()))?;
            Ok::<_, io::Error>(thread.join())
        })?
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    } else {
        drive(&runtime, main())
    };
    runtime.shutdown_timeout(BLOCKED_MAX);
    ended.ok_or_else(|| io::Error::other("the runtime ended before what it ran"))
}

/// Runs `main` to completion.
fn drive<F: Future>(runtime: &Runtime, main: F) -> Option<F::Output> {
    let mut output = None;
    drive_unnamed(runtime, pin!(async { output = Some(main.await) }));
    output
}

/// On a single processor this function contains the loop that runs all tasks. If it were generic,
/// it would be compiled once for each `main`, in the binary crate, which is optimized for size.
#[inline(never)]
fn drive_unnamed(runtime: &Runtime, main: Pin<&mut dyn Future<Output = ()>>) {
    runtime.block_on(main);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Kind, Tasks, blocking};

    #[test]
    fn spawned_tasks_run_concurrently_and_blocking_work_does_not_delay_the_exit() {
        let (never, asked) = std::sync::mpsc::channel::<()>();
        let sum = block_on(1 << 20, || async {
            let tasks = Tasks::default();
            let (begins, begun) = tokio::sync::oneshot::channel();
            tasks.spawn(Kind::Request, "blocked", async move {
                blocking(move || {
                    _ = begins.send(40);
                    _ = asked.recv();
                })
                .await
            });
            begun.await.unwrap() + 2
        });
        assert_eq!(sum.unwrap(), 42);
        drop(never);
    }
}
