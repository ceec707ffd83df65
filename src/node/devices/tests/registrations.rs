//! Plugins that register again, by the call `Register` and in the registry of plugins.

use super::super::DevicePluginHandler;
use super::*;
use crate::plugins::{Plugin, PluginHandler as _};

/// How a plugin registers.
#[derive(Debug, Clone, Copy)]
enum Way {
    Call,
    Registry,
}

fn plugin_at(root: &Path, socket: &str) -> Plugin {
    Plugin {
        name: RESOURCE.to_owned(),
        endpoint: root.join(DIRECTORY).join(socket),
        versions: vec!["v1beta1".to_owned()],
    }
}

#[tokio::test]
async fn the_devices_of_the_last_registration_count() {
    for way in [Way::Call, Way::Registry] {
        let root = tempfile::tempdir().unwrap();
        let (manager, tasks) = manager(root.path()).await;
        let handler = DevicePluginHandler::new(&manager);
        let mut plugins = Vec::new();
        for (socket, ids) in [
            ("1.sock", &["dev1", "dev2"][..]),
            ("2.sock", &["dev1", "dev2", "dev3"]),
            ("3.sock", &["dev3"]),
        ] {
            plugins.push(FakePlugin::start(root.path(), socket, ids));
            match way {
                Way::Call => register(root.path(), "v1beta1", socket, RESOURCE).await.unwrap(),
                Way::Registry => handler.register(&plugin_at(root.path(), socket)).await.unwrap(),
            }
            until_numbers(&manager, RESOURCE, ids.len(), ids.len()).await;
        }
        let refused = handler.register(&plugin_at(root.path(), "missing.sock")).await.unwrap_err();
        let text = "failed to dial device plugin: context deadline exceeded";
        assert_eq!(refused.to_string(), text);
        tasks.shutdown().request();
    }
}

#[tokio::test]
async fn a_plugin_whose_socket_is_removed_is_disconnected() {
    let root = tempfile::tempdir().unwrap();
    let (manager, tasks) = manager(root.path()).await;
    let handler = DevicePluginHandler::new(&manager);
    let _plugin = FakePlugin::start(root.path(), "1.sock", &["dev1"]);
    let plugin = plugin_at(root.path(), "1.sock");
    handler.register(&plugin).await.unwrap();
    until_numbers(&manager, RESOURCE, 1, 1).await;
    handler.deregister(&plugin_at(root.path(), "other.sock")).await;
    until_numbers(&manager, RESOURCE, 1, 1).await;
    handler.deregister(&plugin).await;
    until_numbers(&manager, RESOURCE, 1, 0).await;
    handler.register(&plugin).await.unwrap();
    until_numbers(&manager, RESOURCE, 1, 1).await;
    tasks.shutdown().request();
}
