# kube-lite on guests with systemd, installed by install.sh.
# usage: . tests/guests/cluster.sh (after lib.sh)
cp install.sh "$kit/"
k() { kubectl "$@"; }
prepare() { # name: copies images and kubectl, because the guests cannot download them
  in_guest "$1" 'mkdir -p /var/lib/kube-lite/agent/images &&
    cp /kit/busybox.tar /var/lib/kube-lite/agent/images/ && cp /kit/kubectl /usr/local/bin/'
}
install_on() { # name, server or agent, variables and flags...
  local name=$1 mode=$2 word variables=() flags=(); shift 2
  for word; do case $word in --*) flags+=("$word") ;; *) variables+=("$word") ;; esac; done
  in_guest "$name" env INSTALL_KUBE_LITE_BIN=/kit/kube-lite INSTALL_KUBE_LITE_TIMEOUT=900 \
    "${variables[@]}" /kit/install.sh "$mode" "--node-ip=192.0.2.${guest_number[$name]}" \
    "${flags[@]}"
}
fetch_kubeconfig() { # name: points kubectl at this server
  in_guest "$1" cat /etc/kube-lite/kube-lite.yaml |
    sed "s|https://[^ ]*:6443|https://192.0.2.${guest_number[$1]}:6443|" >"$KUBECONFIG"
}
within() { # seconds, command...: repeats it until it succeeds
  local end=$((SECONDS + $1)); shift
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 1; done
}
api_ready() { # name: the server and its node are Ready
  within 300 in_guest "$1" kube-lite status --wait=ready --timeout=60 &&
    k wait "node/$1" --for=condition=Ready --timeout=300s
}
# Identifies containers across restarts of the server: pod, restarts, container id.
containers_of() {
  k get pods "$@" -o json |
    jq -r '.items[] | . as $p | .status.containerStatuses[]? |
      "\($p.metadata.name) \(.restartCount) \(.containerID)"' | sort
}
same_containers() { containers_of "$@" | diff "$scratch/before" -; }
