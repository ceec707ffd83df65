//! Housekeeping: rotates container logs and removes unused images when their file system is full.

pub(crate) mod dead_containers;
pub(crate) mod image_gc;
mod log_rotation;

use image_gc::{ImageUse, collect_images};
use log_rotation::rotate_logs;

use std::sync::Arc;
use std::time::Duration;

use base::Shutdown;
use client::events::EventType;

use crate::context::Node;
use crate::events;
use crate::pods::table::PodTable;

/// How often the sizes of logs are checked (kubelet's `containerLogMonitorInterval`).
const LOGS_EVERY: Duration = Duration::from_secs(10);
/// How often the image file system is checked (kubelet's `imageGCPeriod`).
const IMAGES_EVERY: Duration = Duration::from_secs(300);
/// Runs until shutdown.
pub(crate) async fn run(
    node: Arc<Node>,
    table: PodTable,
    shutdown: Shutdown,
) -> Result<(), std::convert::Infallible> {
    let mut usage = ImageUse::new(base::clock::now());
    let mut images_at = base::clock::now() + IMAGES_EVERY;
    let mut failed = false;
    loop {
        tokio::select! {
            () = shutdown.requested() => return Ok(()),
            () = base::clock::sleep(LOGS_EVERY) => {}
        }
        rotate_logs(&node.identity.config, &node.runtime, &table).await;
        if base::clock::now() >= images_at {
            images_at = base::clock::now() + IMAGES_EVERY;
            let collected = collect_images(&node, &table, &mut usage).await;
            if let Err(error) = &collected {
                tracing::warn!(%error, "image garbage collection failed");
                // A single failure is not reported as an event.
                if failed {
                    node.api.events.node_event(
                        EventType::Warning,
                        events::IMAGE_GC_FAILED,
                        error.to_string(),
                    );
                }
            }
            failed = collected.is_err();
        }
    }
}
