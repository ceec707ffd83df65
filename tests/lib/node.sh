# Helpers of the suites that need a node: a whole server in its own namespaces, images without a
# registry, workloads.
# The suite restarts itself inside new network, mount and process namespaces: however it ends,
# bridges, tables, mounts, shims and containerd end with them. Only cgroups outlive it; the next
# start removes those of earlier suites.
# usage: . tests/lib/node.sh
set -u
skip() {
  if [ "${CI:-}" = true ]; then echo "FAIL $1"; echo "0 passed, 1 failed"; exit 1; fi
  echo "SKIP ${0##*/}: $1"
  echo "0 passed, 0 failed"
  exit 0
}
[ "$(id -u)" = 0 ] || skip "a node needs root"
# Older clients read the first messages of an exec before its streams exist: they report an "Unknown
# stream id" and drop the messages. kubectl 1.37.1 waits; 10-kubectl and 15-clients test the
# machine's own kubectl.
export PATH=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite/clients:$PATH
for tool in containerd runc unshare nsenter ip jq python3 kubectl; do
  command -v "$tool" >/dev/null || skip "$tool is missing"
done
[ -x /bin/busybox ] || skip "busybox-static is missing"
# Removes the cgroups below a path relative to each hierarchy, deepest first. Those with processes
# stay.
remove_cgroups() {
  local root
  for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -d "$root$1" ] && find "$root$1" -depth -type d -exec rmdir {} + 2>/dev/null
  done
  return 0
}
if [ -z "${KUBE_LITE_TEST_NAMESPACE:-}" ]; then
  # The cgroups of a running suite may have no process yet.
  for old in /sys/fs/cgroup/kube-lite-test-* /sys/fs/cgroup/*/kube-lite-test-*; do
    [ -d "$old" ] && [ ! -d "/proc/${old##*-}" ] &&
      find "$old" -depth -type d -exec rmdir {} + 2>/dev/null
  done
  # The contents of a killed suite's folder were in memory; only the empty folder is left.
  for old in /tmp/kube-lite-test.*; do
    [[ ${old##*.} =~ ^[0-9]+$ ]] && [ ! -d "/proc/${old##*.}" ] && rmdir "$old" 2>/dev/null
  done
  export KUBE_LITE_TEST_NAMESPACE=kube-lite-test-$$ KUBE_LITE_TEST_SCRATCH=/tmp/kube-lite-test.$$
  mkdir -m 700 "$KUBE_LITE_TEST_SCRATCH" || exit 1
  # If this process is killed, the namespaces end, too.
  setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@" &
  inside=$!
  # A suite may define `interrupted` to run first.
  trap 'trap "kill -9 $inside 2>/dev/null" INT TERM
    if declare -F interrupted >/dev/null; then interrupted; else kill -9 $inside 2>/dev/null; fi
    wait $inside 2>/dev/null' INT TERM
  wait $inside; status=$?
  rmdir "$KUBE_LITE_TEST_SCRATCH" 2>/dev/null
  # The kernel kills the rest of the process namespace; then its cgroups are empty.
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    remove_cgroups "/$KUBE_LITE_TEST_NAMESPACE"
    ls -d /sys/fs/cgroup/"$KUBE_LITE_TEST_NAMESPACE" \
      /sys/fs/cgroup/*/"$KUBE_LITE_TEST_NAMESPACE" >/dev/null 2>&1 || break
    sleep 0.2
  done
  exit $status
fi
. "$(dirname "${BASH_SOURCE[0]}")/server.sh"
# A disk in memory: the usage of the machine's disk does not matter, and a killed suite leaves
# nothing.
mount -t tmpfs -o size=6g,mode=755 kube-lite-test "$scratch"
mkdir -p /run/netns && mount -t tmpfs kube-lite-test /run/netns && mount --make-shared /run/netns
# The network of the node's machine: one address and one default route, without a next hop.
ip link set lo up
ip link add up0 type veth peer name up1 && ip addr add 192.0.2.2/24 dev up0 && ip link set up0 up &&
  ip link set up1 up && ip route add default via 192.0.2.1
sysctl -qw net.ipv4.ip_forward=1
make_cgroup() { # path relative to each hierarchy
  local hierarchy f
  for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*/; do
    [ -e "$hierarchy/cgroup.procs" ] && mkdir -p "$hierarchy$1"
  done
  # Version 1 hierarchies: a new cpuset is empty.
  for f in cpus mems; do
    [ -e /sys/fs/cgroup/cpuset/cpuset.$f ] &&
      cat /sys/fs/cgroup/cpuset/cpuset.$f > "/sys/fs/cgroup/cpuset$1/cpuset.$f"
  done
  return 0
}
make_cgroup "/$KUBE_LITE_TEST_NAMESPACE"
images=$scratch/data/agent/images
mkdir -p "$images"
python3 tests/lib/make-image "$images/busybox.tar" docker.io/library/busybox:1 busybox=/bin/busybox
cat > "$scratch/resolv.conf" <<< 'nameserver 192.0.2.53'
# Attributes of the machine; tests/lib/machines.sh makes several and sets these for the current one.
# Clients enter its network namespace, programs on it all its namespaces.
node_enter=() node_inside=() node_home=$scratch node_name=n1 node_ip=192.0.2.2 node_bridge=klt0 \
  node_table=klt node_cgroup=/$KUBE_LITE_TEST_NAMESPACE
# the kubelet's root directory, if it is not in the node's home
node_run=$scratch/run node_log=$scratch/log node_kubelet=''
run_node() { # server or agent, flags...: starts it in the background
  "${node_inside[@]}" "$bin" "$1" --config=/dev/null --data-dir="$node_home/data" \
    --node-name="$node_name" ${node_ip:+--node-ip="$node_ip"} \
    --kubelet-root-dir="${node_kubelet:-$node_home/kubelet}" --log-dir="$node_home/pod-logs" \
    --run-dir="$node_run" --cgroup-root="$node_cgroup" --cni-conf-dir="$node_home/cni" \
    --cni-bin-dir="$node_home/cni-bin" --bridge-name="$node_bridge" --nft-table="$node_table" \
    --resolv-conf="$scratch/resolv.conf" "${@:2}" >>"$node_log" 2>&1 &
  server_pid=$!
}
start_node() { # flags...: the server with its node, Ready
  run_node server --https-listen-port="$port" --write-kubeconfig="$KUBECONFIG" "$@"
  "$bin" status --data-dir="$node_home/data" --wait=ready --timeout=60 >/dev/null 2>&1 &&
    node_ready 30s && return 0
  echo "FAIL the node did not get Ready"; tail -n 30 "$node_log"; failed=$((failed + 1)); return 1
}
# The last lines of a server whose node does not start, and its status.
refused_start() { # flags...
  local status
  : >"$node_log"
  run_node server --https-listen-port="$port" --write-kubeconfig="$KUBECONFIG" "$@"
  timeout 60 tail --pid="$server_pid" -f /dev/null || kill -9 "$server_pid"
  wait "$server_pid"; status=$?
  server_pid=
  tail -n 20 "$node_log"
  return "$status"
}
node_ready() { # timeout: waits until the node has its pod addresses and is Ready
  k wait --for=create "node/$node_name" --timeout="$1" >/dev/null 2>&1 &&
    k wait --for=jsonpath={.spec.podCIDR} "node/$node_name" --timeout="$1" >/dev/null 2>&1 &&
    k wait --for=condition=Ready "node/$node_name" --timeout="$1" >/dev/null 2>&1
}
kill_server() { # signal: ends only the server; containerd and the containers stay
  kill "-$1" "$server_pid"; wait "$server_pid" 2>/dev/null; server_pid=
}
k() { "${node_enter[@]}" kubectl "$@"; }
ready() { # timeout, label selector...: waits until all pods of the selector are Ready
  k wait pod -l "$2" --for=condition=Ready --timeout="$1"
}
# Prints the processes whose command line matches a shell pattern. A process may end meanwhile.
running() {
  local p
  for p in /proc/[0-9]*; do
    case $(tr '\0' ' ' <"$p/cmdline") in $1" ") echo "${p#/proc/}" ;; esac
  done 2>/dev/null
}
# Kills everything in this process namespace except the suite: server, containerd, shims,
# containers.
kill_processes() {
  local process left
  for _ in $(seq 600); do
    left=0
    for process in /proc/[0-9]*; do
      process=${process#/proc/}
      # A zombie has no program.
      [ "$process" != $$ ] && [ "$process" != 1 ] && [ "$process" != "$BASHPID" ] &&
        [ -e "/proc/$process/exe" ] && kill -9 "$process" 2>/dev/null && left=1
    done
    [ "$left" != 0 ] || return 0
    sleep 0.05
  done
}
# Ends everything at once, also the suite's programs in the background.
kill_everything() { { kill_processes; wait; } 2>/dev/null; server_pid=; }
# Simulates a restart of the machine: removes processes, mounts, links, tables, /run and cgroups.
# The disk stays.
restart_machine() {
  kill_everything
  awk -v d="$scratch/" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
    xargs -r umount -l
  awk '$5 ~ "^/run/netns/" { print $5 }' /proc/self/mountinfo | xargs -r umount -l 2>/dev/null
  rm -rf /run/netns/* "$scratch/run"
  ip -o link | sed -n 's/^[0-9]*: \([^@:]*\).*/\1/p' | grep -vxE 'lo|up[01]' |
    while read -r link; do ip link del "$link" 2>/dev/null; done
  nft flush ruleset
  remove_cgroups "/$KUBE_LITE_TEST_NAMESPACE"
  make_cgroup "/$KUBE_LITE_TEST_NAMESPACE"
}
# Identifies containers across restarts of the server: pod, restarts, container id.
containers_of() {
  k get pods "$@" -o json |
    jq -r '.items[] | . as $p | .status.containerStatuses[]? |
      "\($p.metadata.name) \(.restartCount) \(.containerID)"' | sort
}
cleanup() {
  [ "$failed" = 0 ] || {
    k get pods,events -A 2>/dev/null | tail -n 60
    cp "$scratch/log" /tmp/kube-lite-test-last.log 2>/dev/null
  }
  # Without processes no mount of the scratch directory is in use.
  kill_processes
  awk -v d="$scratch" 'index($5, d) == 1 { print $5 }' /proc/self/mountinfo | sort -r |
    xargs -r umount -l 2>/dev/null
  rmdir "$scratch" 2>/dev/null
}
event() { # pod, reason, message: waits for the event
  local i
  for i in $(seq 300); do
    k get events --field-selector "involvedObject.name=$1,reason=$2" \
      -o 'jsonpath={range .items[*]}{.message}{"\n"}{end}' |
      grep -qxF -- "$3" && return 0
    sleep 0.1
  done
  k get events --field-selector "involvedObject.name=$1" \
    -o 'jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}'
  return 1
}
