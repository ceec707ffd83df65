//! Upstream servers on this machine: order, failures, codes.

use super::*;
use base::{Kind, Shutdown, Tasks};
use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};
use std::net::IpAddr;
use tokio::net::UdpSocket;

use crate::dns::message::response;

fn question() -> Message {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii("a.test.").unwrap(), RecordType::A));
    message
}

/// A server that answers with a code.
async fn server(tasks: &Tasks, code: ResponseCode) -> Arc<Upstream> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let address = socket.local_addr().unwrap();
    tasks.spawn(Kind::Request, "server", async move {
        let mut buffer = vec![0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let request = Message::from_vec(&buffer[..length]).unwrap();
            let bytes = response(&request, code).to_vec().unwrap();
            socket.send_to(&bytes, from).await.unwrap();
        }
        Ok::<(), std::convert::Infallible>(())
    });
    Arc::new(Upstream::new(address, None))
}

/// A server that is not there.
async fn nowhere() -> Arc<Upstream> {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    Arc::new(Upstream::new(socket.local_addr().unwrap(), None))
}

fn to(servers: &[&Arc<Upstream>]) -> Forward {
    Forward {
        to: servers.iter().map(|server| To::Server(Arc::clone(server))).collect(),
        policy: Policy::Sequential,
        ..Forward::new(String::new())
    }
}

async fn code(forwards: &[Forward]) -> Option<ResponseCode> {
    let node = NodeServers::new("/nonexistent".into(), Vec::<IpAddr>::new());
    let answer = ask(forwards, (&node, &Tls::default()), &question(), false).await;
    answer.map(|answer| answer.metadata.response_code)
}

#[tokio::test]
async fn a_server_that_fails_is_left_out_until_it_is_asked_again() {
    let tasks = Tasks::new(Shutdown::new());
    let (gone, good) = (nowhere().await, server(&tasks, ResponseCode::NoError).await);
    let forward = [to(&[&gone, &good])];
    for fails in 1..=2 {
        assert_eq!(code(&forward).await, Some(ResponseCode::NoError));
        assert_eq!(gone.health.lock().fails, fails);
    }
    assert_eq!(code(&forward).await, Some(ResponseCode::NoError));
    assert_eq!(gone.health.lock().fails, 2, "not asked after two failures");
    let now = base::clock::now();
    assert!(gone.is_down(2, now) && !gone.is_down(0, now) && gone.is_failing());
    assert!(!gone.is_down(2, now + RETRY * 2));
    assert!(gone.takes_retry(now + RETRY * 2) && !gone.takes_retry(now + RETRY * 2));
    assert_eq!(code(&[to(&[&gone])]).await, None);
    let fast = Forward { fails_fast: true, ..to(&[&gone]) };
    assert_eq!(code(&[fast]).await, None);
    gone.record(true, now);
    assert!(!gone.is_failing());
}

#[tokio::test]
async fn codes_lead_to_other_servers_only_where_the_configuration_says_so() {
    let tasks = Tasks::new(Shutdown::new());
    let failing = server(&tasks, ResponseCode::ServFail).await;
    let (none, good) =
        (server(&tasks, ResponseCode::NXDomain).await, server(&tasks, ResponseCode::NoError).await);
    let plain = to(&[&failing, &good]);
    assert_eq!(code(&[plain]).await, Some(ResponseCode::ServFail));
    let failover = vec![ResponseCode::ServFail];
    let other = Forward { failover: failover.clone(), ..to(&[&failing, &good]) };
    assert_eq!(code(&[other]).await, Some(ResponseCode::NoError));
    let all = Forward { failover, ..to(&[&failing]) };
    assert_eq!(code(&[all]).await, Some(ResponseCode::ServFail));
    let next = || Forward { next: vec![ResponseCode::NXDomain], ..to(&[&none]) };
    assert_eq!(code(&[next(), to(&[&good])]).await, Some(ResponseCode::NoError));
    assert_eq!(code(&[next()]).await, Some(ResponseCode::NXDomain));
    let nodata = || Forward { next_on_nodata: true, ..to(&[&good]) };
    assert_eq!(code(&[nodata(), to(&[&none])]).await, Some(ResponseCode::NXDomain));
    let elsewhere = Forward { to: to(&[&none]).to, ..Forward::new("other.test".into()) };
    assert_eq!(code(&[elsewhere, to(&[&good])]).await, Some(ResponseCode::NoError));
    let full = Forward { concurrent: Some(Semaphore::new(0)), ..to(&[&good]) };
    assert_eq!(code(&[full]).await, Some(ResponseCode::Refused));
}

#[test]
fn zones_and_exceptions_choose_the_plugin() {
    let forward = Forward { except: vec!["b.a.test".into()], ..Forward::new("a.test".into()) };
    for (name, want) in [
        ("a.test", true),
        ("x.a.test", true),
        ("b.a.test", false),
        ("x.b.a.test", false),
        ("test", false),
        ("na.test", false),
    ] {
        assert_eq!(forward.is_for(name), want, "{name}");
    }
}
