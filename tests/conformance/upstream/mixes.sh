# Clusters with one part of upstream's in kube-lite, or one of kube-lite's in upstream's cluster
# (tests/conformance/swap).
# usage: . tests/conformance/upstream/mixes.sh (after cluster.sh); then mix_PART MACHINE...;
#   `node_archives` are the names of the archives that kube-lite's nodes import
ours_is_the_server() { # sets the variables of upstream's parts
  server_url=https://${machine_ip[$server_name]}:6443 \
    server_ca=$scratch/$server_name/data/server/tls/server-ca.crt
}
as() { kubeconfig "$keys/$1.yaml" "$server_url" "$server_ca" "$1"; } # user of upstream_identities
# A node is Ready before it has imported the images of the archives (`node_archives`).
have_images() {
  local name archive
  for name; do
    for archive in "${node_archives[@]}"; do
      timeout 300 sh \
        -c "until grep '$archive' '$out/$name.log' |
            grep -qE 'imported images|cannot import images'
          do sleep 0.2; done"
      grep "$archive" "$out/$name.log" | grep -q 'imported images' || {
        failed=1
        echo "$name has not imported $images/$archive; its log: $out"
        exit 1
      }
    done
  done
}
start_agents() { # machines...
  local name
  [ $# != 0 ] || return 0
  for name; do start_agent_on "$name" --private-registry="$scratch/registries.yaml"; done
  agents_ready "$@" >/dev/null || {
    failed=1
    echo "an agent did not get Ready; its log: $out"
    exit 1
  }
}
sign() { # CA without ending, its name without ending, subject, extensions
  openssl req -newkey rsa:2048 -nodes -subj "$3" -keyout "$2.key" \
    -out "$2.csr" 2>>"$out/openssl.log" &&
    openssl x509 -req -in "$2.csr" -CA "$1.crt" -CAkey "$1.key" -set_serial "$RANDOM$RANDOM" \
    -days 30 -extfile <(printf '%s\n' "$4") -out "$2.crt" 2>>"$out/openssl.log" ||
    { failed=1; echo "no certificate $2: $(tail -n 3 "$out/openssl.log")"; exit 1; }
}
# Upstream's API server, controllers, scheduler and nodes with our store, through etcd's interface.
mix_apiserver() {
  upstream_identities "$@"
  start_registry
  local name
  for name; do on "$name"; upstream_disk || exit 1; done
  on "$1"
  run_node server --disable-agent --disable-controller-manager --disable-scheduler \
    --https-listen-port=7443 --write-kubeconfig="$scratch/store.yaml" \
    --etcd-listen-plain=127.0.0.1:2379
  machine_server[$1]=$server_pid
  inside "$bin" status --data-dir="$node_home/data" --wait=ready --timeout=60 >/dev/null || {
    failed=1
    echo "the store is not ready; its log: $out"
    exit 1
  }
  # A separate prefix: our objects are under /registry.
  start_upstream_apiserver http://127.0.0.1:2379 --etcd-prefix=/upstream
  start_upstream_rest "$@"
}
# Upstream's scheduler with our API server.
mix_scheduler() {
  upstream_identities "$@"
  start_server_on "$1" --disable-scheduler --token-auth-file="$keys/tokens.csv" || exit 1
  ours_is_the_server
  as scheduler
  start_upstream_scheduler "$keys/scheduler.yaml"
  start_agents "${@:2}"
  have_images "$@"
}
# Upstream's controllers with our API server.
mix_controller-manager() {
  upstream_identities "$@"
  on "$1"; server_name=$1; export KUBECONFIG=$scratch/$1.yaml
  ours_is_the_server
  as controllers
  # A node is Ready only after a controller has allocated its range, so both start in parallel.
  { comes_true 60 "our API server" k get --raw /readyz
    start_upstream_controllers "$keys/controllers.yaml" "$scratch/$1/data/server/tls/service.key" \
      "$server_ca"
    wait; } &
  start_server_on "$1" --disable-controller-manager --token-auth-file="$keys/tokens.csv" || exit 1
  start_agents "${@:2}"
  have_images "$@"
}
# Upstream's kubelet, kube-proxy and containerd as further nodes of our server; CoreDNS for their
# pods, because our DNS is part of our nodes.
mix_kubelet() {
  local name range tls=$scratch/$1/data/server/tls
  upstream_identities "$@"
  start_registry
  start_server_on "$1" --flannel-backend=host-gw --token-auth-file="$keys/tokens.csv" || exit 1
  ours_is_the_server
  cluster_dns=10.43.0.11
  for name in proxy "${@:2}"; do as "$name"; done
  for name in "${@:2}"; do
    on "$name"
    upstream_disk || exit 1
    # Our API server requires a certificate of the cluster from kubelets; upstream's reads it from
    # files.
    sign "$tls/server-ca" "$keys/serving-$name" "/CN=system:node:$name/O=system:nodes" \
      "subjectAltName=IP:${machine_ip[$name]},DNS:$name"
    kubelet_more="tlsCertFile: $keys/serving-$name.crt
tlsPrivateKeyFile: $keys/serving-$name.key"
    start_upstream_node "$name" "$keys/$name.yaml" "$keys/proxy.yaml"
  done
  on "$1"
  upstream_pod_network "${@:2}"
  way_to "$1"
  for name in "${@:2}"; do
    k annotate node "$name" flannel.alpha.coreos.com/backend-type=host-gw \
      flannel.alpha.coreos.com/kube-subnet-manager=true \
      "flannel.alpha.coreos.com/public-ip=${machine_ip[$name]}" >/dev/null
  done
  agents_ready "${@:2}" >/dev/null || {
    failed=1
    echo "a node did not get Ready; logs: $out"
    exit 1
  }
  have_images "$1"
  start_coredns coredns
}
# Our nodes with upstream's API server: an agent with the stored result of a join.
mix_node() {
  local name
  upstream_identities "$@"
  on "$1"
  upstream_disk || exit 1
  openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=client-ca \
    -keyout "$keys/client-ca.key" -out "$keys/client-ca.crt" 2>>"$out/openssl.log"
  sign "$keys/client-ca" "$keys/to-kubelets" /O=system:masters/CN=kube-apiserver-kubelet-client \
    extendedKeyUsage=clientAuth
  start_upstream_etcd
  start_upstream_apiserver http://127.0.0.1:2379 --client-ca-file="$keys/client-ca.crt" \
    --kubelet-client-certificate="$keys/to-kubelets.crt" \
    --kubelet-client-key="$keys/to-kubelets.key"
  for name in controllers scheduler; do as "$name"; done
  start_upstream_controllers "$keys/controllers.yaml" "$keys/accounts.key" "$server_ca"
  start_upstream_scheduler "$keys/scheduler.yaml"
  # Our node answers DNS itself, as the user of its proxy, and so needs to read namespaces;
  # upstream's role does not allow it.
  k create clusterrole kube-lite-network --verb=get,list,watch --resource=namespaces >/dev/null &&
    k create clusterrolebinding kube-lite-network --clusterrole=kube-lite-network \
    --user=system:kube-proxy >/dev/null || { failed=1; exit 1; }
  for name; do
    on "$name"
    joined_upstream "$name"
    run_node agent
    machine_server[$name]=$server_pid
  done
  on "$1"
  agents_ready "$@" >/dev/null || { failed=1; echo "a node did not get Ready; logs: $out"; exit 1; }
  have_images "$@"
}
joined_upstream() { # name: writes the stored result of a join
  local kept=$scratch/$1/data/agent
  mkdir -p "$kept" && chmod 700 "$scratch/$1/data" "$kept"
  sign "$keys/client-ca" "$kept/client-kubelet" "/O=system:nodes/CN=system:node:$1" \
    extendedKeyUsage=clientAuth
  sign "$keys/client-ca" "$kept/client-kube-proxy" /CN=system:kube-proxy extendedKeyUsage=clientAuth
  sign "$keys/client-ca" "$kept/serving-kubelet" "/O=system:nodes/CN=system:node:$1" \
    "subjectAltName=IP:${machine_ip[$1]},DNS:$1"
  cp "$server_ca" "$kept/server-ca.crt"; cp "$keys/client-ca.crt" "$kept/client-ca.crt"
  cat >"$kept/join.json" <<Y
{"nodeName": "$1", "server": "$server_url", "addresses": ["${machine_ip[$1]}"], "facts": {
  "clusterCidrs": ["$cluster_cidr"], "serviceCidrs": ["$service_cidr"],
  "clusterDns": ["$cluster_dns"], "clusterDomain": "cluster.local", "proxy": true,
  "backend": "vxlan",
  "servers": ["${server_url#https://}"]}}
Y
}
