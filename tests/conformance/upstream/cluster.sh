# Upstream's programs on the machines of tests/lib/machines.sh: the whole cluster, or single parts
# with kube-lite. `upstream` is the folder of the programs (tests/conformance/upstream/build), `out`
# the folder of the logs, `archives` the images' OCI layouts.
# usage: . tests/conformance/upstream/cluster.sh (after machines.sh)
cluster_cidr=10.42.0.0/16 service_cidr=10.43.0.0/16 cluster_dns=10.43.0.10 registry=192.0.2.1:5000
part() { # name, command...: a program of upstream's on the machine
  PATH=$upstream:$PATH "${node_inside[@]}" "${@:2}" >>"$out/$node_name-$1.log" 2>&1 &
}
# name, command...: as `part`, restarted when it ends, as a kubelet does with static pods: a
# component that loses its Lease ends
lasting() {
  part "$1" sh -c 'while :; do "$@"; echo "ended with status $?, started again"; sleep 1; done' \
    again "${@:2}"
}
comes_true() { # seconds, description, command...
  local end=$((SECONDS + $1))
  until "${@:3}" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || { failed=1; echo "$2 did not come within $1 s; logs: $out"; exit 1; }
    sleep 0.1
  done
}
kubeconfig() { # file, server's URL, its CA, token
  cat >"$1" <<Y
{apiVersion: v1, kind: Config, current-context: default,
  contexts: [{name: default, context: {cluster: default, user: default}}],
  clusters: [{name: default, cluster: {server: "$2", certificate-authority: "$3"}}],
  users: [{name: default, user: {token: "$4"}}]}
Y
}
upstream_disk() { # upstream's programs expect these folders to be the machine's, as /run is
  inside sh \
    -c 'mount -t tmpfs -o size=5g,mode=755 machine /var/lib &&
      mount -t tmpfs -o size=1g,mode=755 machine /var/log'
}
# nodes...: tokens of the components, key of the service accounts, certificates of the front proxy
upstream_identities() {
  local name
  keys=$scratch/upstream; mkdir -p "$keys"
  {
    printf '%s,%s,%s\n' admin admin '1,"system:masters"' controllers \
      system:kube-controller-manager 2 scheduler system:kube-scheduler 3 proxy system:kube-proxy 4
    for name; do echo "$name,system:node:$name,$name,\"system:nodes\""; done
  } >"$keys/tokens.csv"
  {
    openssl genrsa -out "$keys/accounts.key" 2048 &&
      openssl rsa -in "$keys/accounts.key" -pubout -out "$keys/accounts.pub" &&
      openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=front-proxy-ca \
      -keyout "$keys/front-ca.key" -out "$keys/front-ca.crt" &&
      openssl req -newkey rsa:2048 -nodes -subj /CN=front-proxy-client -keyout "$keys/front.key" \
      -out "$keys/front.csr" &&
      openssl x509 -req -in "$keys/front.csr" -CA "$keys/front-ca.crt" -CAkey "$keys/front-ca.key" \
      -CAcreateserial -days 30 -extfile <(echo extendedKeyUsage=clientAuth) -out "$keys/front.crt"
  } 2>"$out/openssl.log" || {
    failed=1
    echo "no certificates: $(tail -n 3 "$out/openssl.log")"
    exit 1
  }
}
start_upstream_etcd() {
  part etcd etcd --data-dir=/var/lib/etcd --listen-client-urls=http://127.0.0.1:2379 \
    --advertise-client-urls=http://127.0.0.1:2379 \
    --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
    --initial-cluster=default=http://127.0.0.1:2380
  comes_true 30 "etcd" here curl -sf http://127.0.0.1:2379/health
}
start_upstream_apiserver() { # etcd's URL, flags...
  part apiserver kube-apiserver --etcd-servers="$1" --service-cluster-ip-range=$service_cidr \
    --secure-port=6443 --bind-address=0.0.0.0 --advertise-address="$node_ip" \
    --cert-dir="$keys" --token-auth-file="$keys/tokens.csv" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged \
    --service-account-key-file="$keys/accounts.pub" \
    --service-account-signing-key-file="$keys/accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc \
    --kubelet-preferred-address-types=InternalIP --enable-aggregator-routing \
    --proxy-client-cert-file="$keys/front.crt" --proxy-client-key-file="$keys/front.key" \
    --requestheader-client-ca-file="$keys/front-ca.crt" \
    --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User \
    --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- "${@:2}"
  # It creates its own certificate; the same file contains the CA.
  server_url=https://$node_ip:6443 server_ca=$keys/apiserver.crt
  kubeconfig "$scratch/$node_name.yaml" "$server_url" "$server_ca" admin
  server_name=$node_name; export KUBECONFIG=$scratch/$node_name.yaml
  comes_true 60 "upstream's API server" k get --raw /readyz
}
# kubeconfig, key of the service accounts, CA for pods, flags...; `controllers` has more flags without
# their hyphens
start_upstream_controllers() {
  lasting controller-manager kube-controller-manager --kubeconfig="$1" \
    --authentication-kubeconfig="$1" --authorization-kubeconfig="$1" \
    --service-account-private-key-file="$2" \
    --root-ca-file="$3" --use-service-account-credentials --allocate-node-cidrs \
    --cluster-cidr=$cluster_cidr --service-cluster-ip-range=$service_cidr \
    --cert-dir="$scratch/$node_name-controllers" "${@:4}"
}
start_upstream_scheduler() { # kubeconfig, flags...
  lasting scheduler kube-scheduler --kubeconfig="$1" --authentication-kubeconfig="$1" \
    --authorization-kubeconfig="$1" --cert-dir="$scratch/$node_name-scheduler" "${@:2}"
}
# serves the archives' images for pull policy Always; outside of all machines; kube-lite's nodes use
# it as a mirror
start_registry() {
  echo "mirrors: {registry.k8s.io: {endpoint: [\"http://$registry\"]}}" >"$scratch/registries.yaml"
  "$repository/tests/lib/registry" "$registry" "${archives[@]}" >"$out/registry.log" 2>&1 &
  comes_true 20 "the registry" curl -sf "http://$registry/v2/"
}
# name, the node's kubeconfig, the proxy's: starts containerd with the images, kubelet and
# kube-proxy; the node is Ready once its network exists
start_upstream_node() {
  local home=$scratch/$1 archive
  on "$1"
  mkdir -p "$home/cni" "$home/certs.d/registry.k8s.io"
  printf 'server = "https://registry.k8s.io"\n[host."http://%s"]\n  capabilities = %s\n' \
    "$registry" '["pull", "resolve"]' >"$home/certs.d/registry.k8s.io/hosts.toml"
  cat >"$home/containerd.toml" <<Y
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "registry.k8s.io/pause:3.10.2"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "$home/certs.d"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["$upstream"]
    conf_dir = "$home/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "$upstream/runc"
Y
  part containerd containerd -c "$home/containerd.toml"
  comes_true 30 "containerd of $1" inside "$upstream/ctr" version
  for archive in "${archives[@]}"; do
    inside "$upstream/ctr" -n k8s.io images import --local "$archive" >>"$out/$1-import.log" 2>&1 ||
      { failed=1; echo "$1 has not imported $archive: $(tail -n 2 "$out/$1-import.log")"; exit 1; }
  done
  # Version 1 cgroups: a node with its pods at the root would take another node's pods for its own.
  cat >"$home/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: $node_cgroup
enforceNodeAllocatable: []
failSwapOn: false
clusterDNS: ["$cluster_dns"]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
oomScoreAdj: 0
resolvConf: $scratch/resolv.conf
volumePluginDir: /var/lib/kubelet/volume-plugins
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%",
  nodefs.inodesFree: "1%"}
${kubelet_more:-}
Y
  cat >"$home/proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $3}
hostnameOverride: $1
clusterCIDR: $cluster_cidr
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
  part kubelet kubelet --config="$home/kubelet.yaml" --kubeconfig="$2" --root-dir=/var/lib/kubelet \
    --cert-dir=/var/lib/kubelet/pki --hostname-override="$1" --node-ip="$node_ip"
  part kube-proxy kube-proxy --config="$home/proxy.yaml"
}
way_to() { # node: routes from all other machines to its pods; sets `range`
  local other
  k wait --for=create "node/$1" --timeout=60s >/dev/null &&
    k wait --for=jsonpath={.spec.podCIDR} "node/$1" --timeout=60s >/dev/null || {
      failed=1
      echo "node $1 has no range for its pods; logs: $out"
      exit 1
    }
  range=$(k get node "$1" -o jsonpath={.spec.podCIDR})
  ip route replace "$range" via "${machine_ip[$1]}"
  for other in "${!machine_ip[@]}"; do
    [ "$other" = "$1" ] || nsenter "--net=/proc/${machine_first[$other]}/ns/net" ip route replace \
      "$range" via "${machine_ip[$1]}" || exit 1
  done
}
upstream_pod_network() { # nodes...: the pods' links of each node, and the routes to them
  local name range
  for name; do
    way_to "$name"
    # containerd reloads its folder after a rename within it, but not after a file from outside.
    cat >"$scratch/$name/cni/.pods" <<Y
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/run/cni-ranges",
    "ranges": [[{"subnet": "$range"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"}]}
Y
    mv "$scratch/$name/cni/.pods" "$scratch/$name/cni/10-pods.conflist"
  done
}
start_coredns() { # name of its Service
  sed "s/name: kube-dns,/name: $1,/; s/clusterIP: .*/clusterIP: $cluster_dns/" \
    "$repository/tests/conformance/upstream/coredns.yaml" >"$scratch/coredns.yaml"
  k apply -f "$scratch/coredns.yaml" >/dev/null &&
    k -n kube-system rollout status deployment/coredns --timeout=120s >/dev/null || {
      failed=1
      echo "CoreDNS is not available; logs: $out"
      exit 1
    }
}
# nodes...: all parts of a cluster except its API server, which runs on the current machine
start_upstream_rest() {
  local name
  for name in controllers scheduler proxy "$@"; do
    kubeconfig "$keys/$name.yaml" "$server_url" "$server_ca" "$name"
  done
  start_upstream_controllers "$keys/controllers.yaml" "$keys/accounts.key" "$server_ca" \
    "${controllers[@]/#/--}"
  start_upstream_scheduler "$keys/scheduler.yaml"
  for name; do start_upstream_node "$name" "$keys/$name.yaml" "$keys/proxy.yaml"; done
  on "$1"
  upstream_pod_network "$@"
  agents_ready "$@" >/dev/null || { failed=1; echo "a node did not get Ready; logs: $out"; exit 1; }
  start_coredns kube-dns
}
start_upstream() { # nodes...: a whole cluster; its servers are on the first machine
  local name
  upstream_identities "$@"
  start_registry
  for name; do on "$name"; upstream_disk || exit 1; done
  on "$1"
  start_upstream_etcd
  start_upstream_apiserver http://127.0.0.1:2379
  start_upstream_rest "$@"
}
