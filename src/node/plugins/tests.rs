//! The order of operations on sockets, and the validation of plugins.

use super::*;
use async_trait::async_trait;
use proto::pluginregistration::PluginInfo;

/// Accepts plugins of the type `Known` except those named `bad`.
#[derive(Debug)]
struct Handler;

#[derive(Debug, thiserror::Error)]
#[error("the name is bad")]
struct BadName;

#[async_trait]
impl PluginHandler for Handler {
    fn plugin_type(&self) -> &'static str {
        "Known"
    }

    fn validate(&self, plugin: &Plugin) -> Result<(), PluginRefused> {
        if plugin.name == "bad" { Err(PluginRefused::new(BadName)) } else { Ok(()) }
    }

    async fn register(&self, _plugin: &Plugin) -> Result<(), PluginRefused> {
        Ok(())
    }

    async fn deregister(&self, _plugin: &Plugin) {}
}

fn info(type_: &str, name: &str, endpoint: &str) -> PluginInfo {
    PluginInfo {
        r#type: type_.to_owned(),
        name: name.to_owned(),
        endpoint: endpoint.to_owned(),
        supported_versions: vec!["1.0.0".to_owned()],
    }
}

#[test]
fn plugins_of_unknown_types_or_refused_by_their_handler_get_upstreams_text() {
    let handlers: PluginHandlers = vec![Arc::new(Handler)];
    let socket = Path::new("/registry/p.sock");
    let validated = |info| registration::validate(info, socket, &handlers).map(|(p, _)| p);
    let text = |info| validated(info).unwrap_err().to_string();
    assert_eq!(
        text(info("DRAPlugin", "p", "")),
        "RegisterPlugin error -- no handler registered for plugin type: DRAPlugin at socket \
         /registry/p.sock"
    );
    assert_eq!(
        text(info("Known", "bad", "")),
        "RegisterPlugin error -- plugin validation failed with err: the name is bad"
    );
    assert_eq!(validated(info("Known", "p", "")).unwrap().endpoint, socket);
    let endpoint = validated(info("Known", "p", "/own.sock")).unwrap().endpoint;
    assert_eq!(endpoint, Path::new("/own.sock"));
}

#[tokio::test(start_paused = true)]
async fn a_replaced_socket_is_deregistered_before_it_is_registered() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("p.sock");
    let bind = || std::os::unix::net::UnixListener::bind(&path).unwrap();
    let found = || sockets::read(home.path()).sockets.get(&path).copied();
    let _first = bind();
    let first = found();
    std::fs::remove_file(&path).unwrap();
    let _second = bind();
    let (second, now) = (found(), base::clock::now());
    let mut socket = PluginSocket::new();
    assert_eq!(socket.next_step(now), Step::Forget);
    socket.present = first;
    assert_eq!(socket.next_step(now), Step::Register(first.unwrap()));
    socket.retry_at = Some(now + Duration::from_secs(1));
    assert_eq!(socket.next_step(now), Step::Wait);
    assert_eq!(socket.next_step(now + Duration::from_secs(1)), Step::Register(first.unwrap()));
    let plugin = Plugin { name: "p".into(), endpoint: path.clone(), versions: Vec::new() };
    let handler: Arc<dyn PluginHandler> = Arc::new(Handler);
    socket.registered = Some(RegisteredPlugin { plugin, handler, socket: first.unwrap() });
    assert_eq!(socket.next_step(now), Step::Wait);
    socket.is_busy = true;
    socket.present = second;
    assert_eq!(socket.next_step(now), Step::Wait);
    socket.is_busy = false;
    assert_eq!(socket.next_step(now), Step::Deregister);
    socket.present = None;
    assert_eq!(socket.next_step(now), Step::Deregister);
}

#[test]
fn sockets_that_exist_or_are_registered_are_counted() {
    let mut manager = PluginManager { handlers: Arc::from([]), sockets: BTreeMap::new() };
    assert_eq!(metrics::text(&manager.socket_states()), "");
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("p.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    manager.set_present(&sockets::read(home.path()).sockets);
    let text = |manager: &PluginManager| {
        let text = metrics::text(&manager.socket_states());
        text.replace(&*path.to_string_lossy(), "p.sock")
    };
    let head = "# HELP plugin_manager_total_plugins [ALPHA] Number of plugins in Plugin Manager\n\
        # TYPE plugin_manager_total_plugins gauge\n";
    let line = |state| {
        format!(
            "plugin_manager_total_plugins{{socket_path=\"p.sock\",state=\"{state}_of_world\"}} 1\n"
        )
    };
    assert_eq!(text(&manager), format!("{head}{}", line("desired_state")));
    let socket = manager.sockets.get_mut(&path).unwrap();
    let plugin = Plugin { name: "p".into(), endpoint: path.clone(), versions: Vec::new() };
    let handler: Arc<dyn PluginHandler> = Arc::new(Handler);
    let registered = RegisteredPlugin { plugin, handler, socket: socket.present.unwrap() };
    manager.finish(&path, Outcome::Registered(Ok(registered)));
    assert_eq!(text(&manager), format!("{head}{}{}", line("actual_state"), line("desired_state")));
}
