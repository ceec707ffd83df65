//! The list of servers: accepted addresses, the file, and the order of dialling.

use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::*;

#[test]
fn addresses_are_normalized_to_host_and_port() {
    for (text, want) in [
        ("https://10.0.0.1:6443", "10.0.0.1:6443"),
        ("https://edge.example:443/", "edge.example:443"),
        ("edge.example", "edge.example:6443"),
        ("10.0.0.1", "10.0.0.1:6443"),
        ("fd00::1", "[fd00::1]:6443"),
        ("https://[fd00::1]", "[fd00::1]:6443"),
        ("[fd00::1]:7443", "[fd00::1]:7443"),
    ] {
        assert_eq!(parse(text).unwrap(), want, "{text}");
    }
    for bad in
        ["", "http://a:6443", "a:0", "a:70000", "a b", "https://a/path", "[x]:1", "[fd00::1", "u@h"]
    {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

fn addresses(servers: &Servers) -> Vec<String> {
    servers.states().into_iter().map(|s| s.address).collect()
}

#[tokio::test]
async fn addresses_of_servers_are_persisted_without_the_flag() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Servers::open(directory.path(), None), Err(Error::None)));
    assert!(matches!(Servers::open(directory.path(), Some("ftp://x")), Err(Error::Address(_))));
    let servers = Servers::open(directory.path(), Some("lb.example")).unwrap();
    let shutdown = base::Shutdown::new();
    let persisting = servers.clone().persist(shutdown.clone());
    let changing = async {
        servers.set_addresses(&[
            "10.0.0.1:6443".into(),
            "nonsense of all kinds".into(),
            "10.0.0.2:6443".into(),
        ]);
        let path = directory.path().join("servers.json");
        while !std::fs::read_to_string(&path).is_ok_and(|t| t.contains("10.0.0.2")) {
            base::clock::sleep(Duration::from_millis(5)).await;
        }
        shutdown.request();
    };
    let (done, ()) = tokio::join!(persisting, changing);
    done.unwrap();
    servers.set_addresses(&["nonsense of all kinds".into()]);
    assert_eq!(addresses(&servers), ["10.0.0.1:6443", "10.0.0.2:6443", "lb.example:6443"]);
    let again = Servers::open(directory.path(), None).unwrap();
    assert_eq!(addresses(&again), ["10.0.0.1:6443", "10.0.0.2:6443", "lb.example:6443"]);
    std::fs::write(directory.path().join("servers.json"), b"{\"servers\": 7").unwrap();
    let damaged = Servers::open(directory.path(), Some("10.0.0.9")).unwrap();
    assert_eq!(addresses(&damaged), ["10.0.0.9:6443"]);
}

#[test]
fn an_unchanged_list_is_not_written_again() {
    use std::os::unix::fs::MetadataExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("agent/servers.json");
    let list = ["10.0.0.1:6443".to_owned()];
    file::write_changed(&path, &list).unwrap();
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let before = inode();
    file::write_changed(&path, &list).unwrap();
    assert_eq!(inode(), before);
}

#[tokio::test]
async fn the_next_server_is_dialled_and_kept_until_it_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let live = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (gone, here) =
        (dead.local_addr().unwrap().to_string(), live.local_addr().unwrap().to_string());
    drop(dead);
    let servers = Servers::open(directory.path(), Some(&gone)).unwrap();
    assert!(!*servers.answering().borrow());
    let mut back = Box::pin(servers.back());
    assert!(futures::poll!(back.as_mut()).is_pending());
    assert!(servers.dial("kubernetes", 443).await.is_err());
    assert_eq!(servers.states()[0].state, Health::Unreachable);
    servers.set_addresses(&[gone.clone(), here.clone()]);
    let mut io = servers.dial("kubernetes", 443).await.unwrap();
    assert!(*servers.answering().borrow());
    tokio::time::timeout(Duration::from_secs(60), back).await.unwrap();
    let _accepted = live.accept().await.unwrap();
    // A lost tunnel takes precedence over an accepted connection.
    servers.tunnels_run();
    servers.lost(&here, "silence");
    let read = tokio::time::timeout(Duration::from_secs(60), io.read_u8()).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert!(!*servers.answering().borrow());
    assert!(servers.dial("kubernetes", 443).await.is_ok());
    assert!(!*servers.answering().borrow());
    servers.connected(&here);
    assert!(*servers.answering().borrow());
    // Connections to a removed server are cut.
    let mut io = servers.dial("kubernetes", 443).await.unwrap();
    servers.set_addresses(&[gone]);
    let read = tokio::time::timeout(Duration::from_secs(60), io.read_u8()).await.unwrap();
    assert!(read.is_err());
}
