//! Health checks, the version and metrics over HTTP/1.1.

use proto::etcdserverpb as pb;
use proto::etcdserverpb::maintenance_client::MaintenanceClient;

use super::World;

/// Sends a request over HTTP/1.1 on the gRPC port; returns status line and body.
async fn http(world: &World, request: &str) -> (String, String) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
    let text = format!("{request} HTTP/1.1\r\nHost: etcd\r\nConnection: close\r\n\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.lines().next().unwrap().trim_start_matches("HTTP/1.1 ").to_owned();
    (status, body.to_owned())
}

#[tokio::test]
async fn health_version_and_metrics_are_served_on_the_grpc_port() {
    let mut world = World::new().await;
    world.put("a", "1").await;
    let ok = |body: &str| ("200 OK".to_owned(), body.to_owned());
    assert_eq!(http(&world, "GET /health").await, ok(r#"{"health":"true","reason":""}"#));
    assert_eq!(
        http(&world, "GET /version").await,
        ok(r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#)
    );
    assert_eq!(http(&world, "GET /livez").await, ok("ok\n"));
    assert_eq!(
        http(&world, "GET /readyz?verbose").await,
        ok("[+]data_corruption ok\n[+]serializable_read ok\n[+]linearizable_read \
             ok\n[+]non_learner ok\nok\n")
    );
    let wrong = |status: &str, body: &str| (status.to_owned(), body.to_owned());
    assert_eq!(
        http(&world, "POST /health").await,
        wrong("405 Method Not Allowed", "Method Not Allowed\n")
    );
    assert_eq!(
        http(&world, "GET /v3/nothing").await,
        wrong("404 Not Found", "404 page not found\n")
    );
    let mut maintenance = MaintenanceClient::new(world.channel.clone());
    let corrupt = pb::AlarmRequest { action: 1, member_id: 1, alarm: 2 };
    maintenance.alarm(corrupt).await.unwrap();
    assert_eq!(
        http(&world, "GET /health").await,
        wrong("503 Service Unavailable", "{\"health\":\"false\",\"reason\":\"ALARM CORRUPT\"}\n")
    );
    assert_eq!(http(&world, "GET /health?exclude=CORRUPT").await.0, "200 OK");
    assert_eq!(
        http(&world, "GET /readyz?exclude=non_learner").await,
        wrong(
            "503 Service Unavailable",
            "[-]data_corruption failed: alarm activated: CORRUPT\n[+]serializable_read \
             ok\n[+]linearizable_read ok\n\n"
        )
    );
    let metrics = http(&world, "GET /metrics").await.1;
    for line in [
        "etcd_server_has_leader 1",
        "etcd_server_is_leader 1",
        "etcd_mvcc_put_total 1",
        "etcd_debugging_mvcc_keys_total 1",
        "etcd_debugging_mvcc_current_revision 2",
        "etcd_server_health_failures 1",
        "grpc_server_handled_total{grpc_code=\"OK\",grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"} 1",
        "etcd_server_healthchecks_total{name=\"data_corruption\",status=\"error\",type=\"readyz\"} \
         1",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
}
