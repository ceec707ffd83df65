use node::*;
use std::sync::Arc;
#[tokio::main]
async fn main() {
    let a: Vec<String> = std::env::args().collect();
    let dir = std::path::PathBuf::from(&a[1]);
    let kc = client::Kubeconfig::read(std::path::Path::new(&a[2])).unwrap();
    tracing_subscriber::fmt()
        .with_env_filter("node=debug,client=info,base=debug")
        .with_writer(std::io::stderr)
        .init();
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    rustls::crypto::ring::default_provider().install_default().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    for c in CertificateDer::pem_slice_iter(&kc.ca) {
        roots.add(c.unwrap()).unwrap();
    }
    let b = rustls::ClientConfig::builder().with_root_certificates(roots);
    let tls = if kc.certificate.is_empty() {
        b.with_no_client_auth()
    } else {
        b.with_client_auth_cert(
            CertificateDer::pem_slice_iter(&kc.certificate).map(|c| c.unwrap()).collect(),
            PrivateKeyDer::from_pem_slice(&kc.key).unwrap(),
        )
        .unwrap()
    };
    let client = client::Client::new(
        Arc::new(client::HttpsTransport::new(&kc.server, tls, &kc.token).unwrap()),
        "kube-lite",
    );
    let mut c = Config::new(&a[3], "192.0.2.7".parse().unwrap(), dir.join("data"), dir.join("run"));
    c.root_dir = dir.join("kubelet");
    c.pod_logs_dir = dir.join("logs/pods");
    c.container_logs_dir = dir.join("logs/containers");
    c.cgroup_root = "/klnode".into();
    c.runtime.cni_conf_dir = dir.join("cni");
    c.runtime.cni_bin_dir = "/usr/lib/cni".into();
    c.cluster_dns = vec!["10.96.0.10".parse().unwrap()];
    let tasks = base::Tasks::new(base::Shutdown::new());
    node::run(c, client, tasks.clone()).await.unwrap();
    let _ = Arc::new(());
    let mut t = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
    tokio::select! { _ = t.recv() => {}, () = tasks.shutdown().requested() => {} }
    tasks.shutdown().request();
    eprintln!(
        "left: {:?} fault {:?}",
        tasks.drain(std::time::Duration::from_secs(3)).await,
        tasks.fault()
    );
}
