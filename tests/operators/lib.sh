# Helpers of the operators' checks: a server with its node in separate namespaces
# (tests/lib/node.sh), images of the programs of tests/operators/build, and waiting for results. The
# logs of operator and server are kept in ~/.cache/kube-lite/operators/last/NAME.
# usage: . "$(dirname "$0")/lib.sh" [machines], with several machines (tests/lib/machines.sh): the
#        server is on machine one
operator=${0##*/}
operators=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite
if [ -z "${KUBE_LITE_TEST_NAMESPACE:-}" ]; then
  export KUBE_LITE_BIN=${KUBE_LITE_BIN:-$cache/target/fast/kube-lite}
  [ -x "$KUBE_LITE_BIN" ] || {
    echo "$KUBE_LITE_BIN is no program: tests/run builds it, or set KUBE_LITE_BIN"
    exit 64
  }
  KUBE_LITE_BIN=$(realpath "$KUBE_LITE_BIN")
  "$operators/build" "$operator" >/dev/null || exit 1
fi
case ${1:-} in
  # The registry is outside of the machines, on their default route.
  machines) . "$operators/../lib/machines.sh"; registry=192.0.2.1:5000 ;;
  *) . "$operators/../lib/node.sh"; registry=192.0.2.2:5000 ;;
esac
home=$cache/operators/$operator out=$cache/operators/last/$operator
rm -rf "$out"; mkdir -p "$out"
export HELM_CACHE_HOME=$scratch/helm HELM_CONFIG_HOME=$scratch/helm HELM_DATA_HOME=$scratch/helm
# Files that programs expect on any machine: CAs for TLS, and the users of common base images.
common=(/etc/ssl/certs/ca-certificates.crt=/etc/ssl/certs/ca-certificates.crt)
archives=()
# name, user, entrypoint as JSON, FILE=PATH...: creates an image in the registry, from which the
# node pulls
image() {
  local archive=$home/images/${1//[\/:@]/_}.tar name=$1 user=$2 entrypoint=$3 newest; shift 3
  mkdir -p "$home/images"
  newest=$(ls -t "$archive" "$operators/lib.sh" "$operators/../lib/make-image" "$0" \
    "${@%%=*}" 2>/dev/null | head -n 1)
  if [ "$newest" != "$archive" ]; then
    python3 tests/lib/make-image "$archive.new" "$name" --user "$user" --entrypoint "$entrypoint" \
      "$@" "${common[@]}" && mv "$archive.new" "$archive" || exit 1
  fi
  archives+=("$archive")
}
# flags...: starts the registry and the server with its node; ends the checks if that fails
started() {
  printf 'mirrors: {"*": {endpoint: ["http://%s"]}}\n' "$registry" >"$scratch/registries.yaml"
  tests/lib/registry "$registry" "${archives[@]}" >"$out/registry.log" 2>&1 &
  timeout 60 sh \
    -c "until python3 -c 'import urllib.request; urllib.request.urlopen(\"http://$registry/v2/\")' 2>/dev/null
      do sleep 0.2; done" || { echo "FAIL the registry did not start"; exit 1; }
  if declare -F start_server_on >/dev/null; then
    start_server_on one --private-registry="$scratch/registries.yaml" "$@"
  else
    start_node --private-registry="$scratch/registries.yaml" "$@" || exit 1
  fi
  [ -z "${OPERATORS_KEEP:-}" ] ||
    printf '#!/bin/sh\nexec nsenter --target "$(pgrep -of -- "^%s server .*--data-dir=%s/")" --net --mount --pid env KUBECONFIG=%s PATH="%s" "$@"\n' "$bin" "$node_home" "$KUBECONFIG" "$PATH" >"$out/enter"
  [ ! -e "$out/enter" ] || chmod +x "$out/enter"
}
within=60
# name, want, command...: as `equals`, but repeats the command until it matches, at most $within
# seconds
comes() {
  local end=$((SECONDS + within))
  until [ "$("${@:3}" 2>&1)" = "$2" ] || [ $SECONDS -ge $end ]; do sleep 0.2; done
  equals "$@"
}
# name, part of the text, command...: repeats the command until its output contains the text;
# ignores its status
says() {
  local end=$((SECONDS + within)) got
  while :; do
    got=$("${@:3}" 2>&1)
    case $got in *"$2"*) passed=$((passed + 1)); echo "ok   $1"; return ;; esac
    [ $SECONDS -lt $end ] || break
    sleep 0.2
  done
  failed=$((failed + 1)); printf 'FAIL %s\n  want: %s\n  got:  %s\n' "$1" "$2" "$got"
}
rolled_out() { # namespace, timeout, deployments...
  local each
  for each in "${@:3}"; do
    check "$each becomes available" k -n "$1" rollout status "deploy/$each" --timeout="$2"
  done
}
installs() { # name of the check, command...: ends the checks if it fails
  local before=$failed
  check "$@"
  [ "$failed" = "$before" ] || exit 1
}
applied() { k apply -f -; } # manifest on standard input
field() { k get "$1" -o "jsonpath=$2" "${@:3}"; } # object, path, more arguments of kubectl
# Before the server stops: copies the logs.
keep() {
  local namespace pod
  k get pods,events -A -o wide >"$out/pods.txt" 2>&1
  k get pods -A -o jsonpath='{range .items[*]}{.metadata.namespace} {.metadata.name}{"\n"}{end}' \
    2>/dev/null | while read -r namespace pod; do
    k logs -n "$namespace" "$pod" --all-containers --prefix >"$out/$namespace-$pod.log" 2>&1
  done
  [ "$failed" = 0 ] || echo "logs: $out"
  if [ -n "${OPERATORS_KEEP:-}" ]; then
    echo "$passed passed, $failed failed; the cluster stays until an interrupt;" \
      "$out/enter COMMAND runs a command on its machine"
    trap : INT TERM
    sleep infinity & wait $!
  fi
}
trap 'status=$?; keep; cp "$scratch/log" "$out/kube-lite.log" 2>/dev/null
  cp "$scratch"/*.log "$out" 2>/dev/null
  finish $status; exit $?' EXIT
eval "cleanup_of_node() $(declare -f cleanup | tail -n +2)"
cleanup() { cleanup_of_node >/dev/null 2>&1; }
