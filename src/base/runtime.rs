//! The runtime of a program that serves.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// What still blocks at the end (a resolver, a slow disk) does not hold the exit up for longer.
const BLOCKED_MAX: Duration = Duration::from_millis(100);

/// Runs what `main` makes to its end, and what it spawns beside it, on stacks of so many bytes. Two
/// workers serve a small machine as well as more, and keep fewer stacks and buffers. On a single
/// processor there is one thread for all, which need not agree with others on who does what.
///
/// # Errors
/// When the system gives no threads or descriptors.
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
        // A thread's stack is chosen where it begins, so that it is not this one.
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

/// Runs `main` to its end.
fn drive<F: Future>(runtime: &Runtime, main: F) -> Option<F::Output> {
    let mut output = None;
    drive_unnamed(runtime, pin!(async { output = Some(main.await) }));
    output
}

/// On a single processor the loop that runs all tasks is in here: generic, it would be compiled
/// once for each `main`, and in the program, which is made small instead of fast.
#[inline(never)]
fn drive_unnamed(runtime: &Runtime, main: Pin<&mut dyn Future<Output = ()>>) {
    runtime.block_on(main);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Kind, Tasks, blocking};

    #[test]
    fn what_is_spawned_runs_beside_it_and_what_blocks_does_not_hold_the_end_up() {
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
