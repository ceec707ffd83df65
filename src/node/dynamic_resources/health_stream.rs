//! Follows what a plugin reports about the health of its devices.

use std::time::Duration;

use tonic::Code;

use super::DynamicResources;
use super::health::DeviceHealth;
use super::plugin::{DraPlugin, HealthApi};
use crate::csi::driver_client::RpcError;

/// Delay before an ended stream is opened again.
const RESTART_DELAY: Duration = Duration::from_secs(5);

impl DynamicResources {
    /// Follows the reports until the plugin is gone or turns out to make none.
    pub(super) async fn follow_health(&self, plugin: &DraPlugin, api: HealthApi) {
        loop {
            let ended = async {
                // Without a connection there is nothing to open.
                plugin.connection.connected().await;
                let ended = self.read_reports(plugin, api).await;
                self.health.clear(&plugin.driver).await;
                ended
            };
            let ended = tokio::select! {
                () = plugin.end.requested() => {
                    self.health.clear(&plugin.driver).await;
                    return;
                }
                ended = ended => ended,
            };
            if let Err(error) = ended {
                tracing::debug!(driver = plugin.driver, %error, "the health of devices is unknown");
                // The driver has the service without an implementation.
                if error.code == Code::Unimplemented {
                    return;
                }
            }
            tokio::select! {
                () = plugin.end.requested() => return,
                () = base::clock::sleep(RESTART_DELAY) => {}
            }
        }
    }

    /// Reads one stream to its end.
    async fn read_reports(&self, plugin: &DraPlugin, api: HealthApi) -> Result<(), RpcError> {
        let mut reports = plugin.watch_health(api).await?;
        while let Some(report) = reports.message().await? {
            let devices = report.devices.into_iter().map(DeviceHealth::of_report).collect();
            let changed = self.health.update(&plugin.driver, devices).await;
            if !changed.is_empty() {
                let pods = self.claims.lock().pods_with_devices(&plugin.driver, &changed);
                self.wake_pods(pods.iter());
            }
        }
        Ok(())
    }
}
