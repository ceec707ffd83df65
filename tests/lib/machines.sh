# Machines of the suites that need several: each has its own network, mounts, processes, host name,
# disk, cgroups and /run. A machine can be switched off or disconnected from the others.
# The suite's namespace is the outside: it routes between the lans, its first address in each lan is
# the default route of the machines, and every packet that leaves a machine passes it.
# usage: . tests/lib/machines.sh (instead of node.sh)
. "$(dirname "${BASH_SOURCE[0]}")/node.sh"
ip link del up0
sysctl -qw net.ipv6.conf.all.forwarding=1
# Attributes of each machine, by its name: number in its lan, lan, options, addresses, its first
# process and the parent of that process in the suite's namespace, the server or agent on it,
# percent of its packets that are lost.
declare -A machine_number=() machine_lan=() machine_options=() machine_ip=() machine_first=() \
  machine_parent=() machine_server=() machine_loss=()
declare -A lan_four=() lan_six=()
silences=() # "from to": packets in this direction are dropped
# lan NAME IPV4_PREFIX IPV6_PREFIX: a bridge; the suite's namespace has address 1 in it.
lan() {
  lan_four[$1]=$2 lan_six[$1]=$3
  # A fixed address: otherwise a bridge takes the address of a port, and changes it when the port is
  # removed.
  ip link add "$1" address "02:00:00:00:00:0${#lan_four[@]}" type bridge &&
    ip addr add "$2.1/24" dev "$1" && ip addr add "$3::1/64" dev "$1" nodad && ip link set "$1" up
}
lan lan 192.0.2 2001:db8
lan far 198.51.100 2001:db8:0:1
# machine NAME OPTIONS...: a machine, switched on. The name has at most 11 letters. Options: `far`
# on the other lan, `four` without an IPv6 address of its node, `closed` to connections from outside
# (except the overlay's packets), `nat` behind a router that translates addresses, `unnamed`: its
# node gets no --node-ip and detects its address.
machine() {
  local name=$1 number=$((${#machine_number[@]} + 2)); shift
  local options=" $* " four six
  machine_number[$name]=$number machine_options[$name]=$options machine_lan[$name]=lan \
    machine_loss[$name]=0
  case $options in *" far "*) machine_lan[$name]=far ;; esac
  four=${lan_four[${machine_lan[$name]}]}.$number six=${lan_six[${machine_lan[$name]}]}::$number
  case $options in *" nat "*) four=203.0.113.$number six=2001:db8:113:$number::$number ;; esac
  machine_ip[$name]=$four,$six
  case $options in *" four "*) machine_ip[$name]=$four ;; esac
  mkdir -p "$scratch/$name/data/agent" && cp -al "$images" "$scratch/$name/data/agent/images" &&
    mkfifo "$scratch/$name/up" || exit 1
  boot "$name"
}
# child_of PROCESS
child_of() { grep -lsx "PPid:[[:space:]]*$1" /proc/[0-9]*/status | tr -dc '0-9\n' | head -n 1; }
boot() { # name: switches on a machine that is off
  local name=$1 lan=${machine_lan[$1]} number=${machine_number[$1]} options=${machine_options[$1]} \
    first four six
  make_cgroup "/$KUBE_LITE_TEST_NAMESPACE/$name"
  # The first process reaps orphans, as on every machine; when it ends, all processes of the machine
  # end.
  # shellcheck disable=SC2016
  unshare --net --mount --pid --uts --fork --kill-child --mount-proc bash -c '
    hostname "$1" && mount -t tmpfs machine /run && mkdir /run/netns &&
    mount -t tmpfs machine /run/netns && mount --make-shared /run/netns &&
    ip link set lo up && sysctl -qw net.ipv4.ip_forward=1 && echo up >"$2" || exit 1
    while :; do sleep infinity & wait; done' "machine $name" "$name" \
      "$scratch/$name/up" >>"$scratch/$name.log" 2>&1 &
  machine_parent[$name]=$!
  read -r -t 30 _ <>"$scratch/$name/up" && first=$(child_of $!) && [ -n "$first" ] || {
    echo "FAIL machine $name did not start"
    exit 1
  }
  machine_first[$name]=$first
  four=${lan_four[$lan]} six=${lan_six[$lan]}
  local inside=(nsenter "--net=/proc/$first/ns/net")
  case $options in
    *" nat "*)
      ip netns add "$name"
      ip link add "lan-$name" type veth peer name wan netns "$name"
      ip -n "$name" link add home type veth peer name eth0 netns "$first"
      ip -n "$name" -batch - <<B
addr add $four.$number/24 dev wan
addr add $six::$number/64 dev wan nodad
addr add 203.0.113.1/24 dev home
addr add 2001:db8:113:$number::1/64 dev home nodad
link set wan up
link set home up
route add default via $four.1
route add default via $six::1
B
      ip netns exec "$name" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
      ip netns exec "$name" nft -f - <<'N'
table inet nat {
  chain p { type nat hook postrouting priority 100; oifname "wan" masquerade; }
  chain f {
    type filter hook forward priority 0
    iifname "wan" ct state != { established, related } drop
  }
}
N
      four=203.0.113 six=2001:db8:113:$number ;;
    *) ip link add "lan-$name" type veth peer name eth0 netns "$first" ;;
  esac
  ip link set "lan-$name" master "$lan" up
  "${inside[@]}" ip -batch - <<B || exit 1
addr add $four.$number/24 dev eth0
addr add $six::$number/64 dev eth0 nodad
link set eth0 up
route add default via $four.1
route add default via $six::1
B
  case $options in *" closed "*)
    "${inside[@]}" nft -f - <<'N' || exit 1 ;;
table inet closed {
  chain i {
    type filter hook input priority -10
    iifname != "eth0" accept
    ct state { established, related } accept
    meta l4proto ipv6-icmp accept
    udp dport 8472 accept
    drop
  }
}
N
  esac
}
# name: the following commands refer to this machine; if it has run a server, kubectl uses that one
on() {
  node_name=$1 node_home=$scratch/$1 node_log=$scratch/$1.log node_run=/run/kube-lite \
    node_ip=${machine_ip[$1]} node_bridge=klt-$1 node_table=klt-$1
  node_cgroup=/$KUBE_LITE_TEST_NAMESPACE/$1 port=6443 server_pid=${machine_server[$1]:-}
  case ${machine_options[$1]} in *" unnamed "*) node_ip='' ;; esac
  local first=${machine_first[$1]:-}
  node_enter=(nsenter "--net=/proc/$first/ns/net")
  node_inside=(nsenter "--target=$first" --net --mount --pid --uts "--wdns=$PWD")
  if [ -e "$scratch/$1.yaml" ] || [ -z "${server_name:-}" ]; then
    server_name=$1
    export KUBECONFIG=$scratch/$1.yaml
  fi
}
k() { nsenter "--net=/proc/${machine_first[$server_name]}/ns/net" kubectl "$@"; }
here() { "${node_enter[@]}" "$@"; } # a command in the network of the machine
inside() { "${node_inside[@]}" "$@"; } # a command on the machine
start_server_on() { # name, flags...: a server with its node, Ready
  on "$1"; server_name=$1; export KUBECONFIG=$scratch/$1.yaml
  start_node "${@:2}" || exit 1
  machine_server[$1]=$server_pid
}
start_agent_on() { # name, flags...: an agent of kubectl's current server; returns at once
  local server=${machine_ip[$server_name]%%,*}
  on "$1"
  run_node agent --server="https://$server:6443" \
    --token-file="$scratch/$server_name/data/server/token" "${@:2}"
  machine_server[$1]=$server_pid
}
agents_ready() { # name...: waits until these nodes exist and are Ready
  local name
  for name; do
    k wait --for=create "node/$name" --timeout=60s &&
      k wait "node/$name" --for=condition=Ready --timeout=60s || return 1
  done
}
# kill_server SIGNAL: ends the server or agent of this machine only; containerd and the containers
# stay. The process that has entered other namespaces waits for its child, the server.
kill_server() {
  local process
  process=$(child_of "$server_pid") && kill "-$1" "$process"
  wait "$server_pid" 2>/dev/null; server_pid='' machine_server[$node_name]=''
}
power_off() { # name...: all processes of these machines end at once; their disks stay
  local name
  for name; do kill -9 "${machine_first[$name]}"; done
  for name; do
    {
      wait "${machine_parent[$name]}" "${machine_server[$name]:-${machine_parent[$name]}}"
    } 2>/dev/null
    machine_first[$name]='' machine_server[$name]=''
    # A process outside may still hold the network namespace.
    ip link del "lan-$name" 2>/dev/null
    [ ! -e "/run/netns/$name" ] || ip netns del "$name"
    for _ in $(seq 50); do
      remove_cgroups "/$KUBE_LITE_TEST_NAMESPACE/$name"
      ls -d /sys/fs/cgroup/"$KUBE_LITE_TEST_NAMESPACE/$name" \
        /sys/fs/cgroup/*/"$KUBE_LITE_TEST_NAMESPACE/$name" >/dev/null 2>&1 || break
      sleep 0.1
    done
  done
}
reboot() { power_off "$1"; boot "$1"; on "$1"; } # name
wire() { # sets the packet loss of each machine
  local hook name from to
  {
    printf 'table bridge wire {}\ndelete table bridge wire\ntable bridge wire {\n'
    for hook in prerouting:iifname postrouting:oifname; do
      printf 'chain %s { type filter hook %s priority 0;\n' "${hook%:*}" "${hook%:*}"
      for name in "${!machine_loss[@]}"; do
        case ${machine_loss[$name]} in
          0) ;;
          100) printf '%s "lan-%s" drop\n' "${hook#*:}" "$name" ;;
          *)
            printf '%s "lan-%s" numgen random mod 100 < %s drop\n' "${hook#*:}" "$name" \
              "${machine_loss[$name]}" ;;
        esac
      done
      printf '}\n'
    done
    printf 'chain between { type filter hook forward priority 0;\n'
    for name in "${silences[@]}"; do
      from=${name% *} to=${name#* }
      case $from in any) ;; *) printf 'iifname "lan-%s" ' "$from" ;; esac
      case $to in any) ;; *) printf 'oifname "lan-%s" ' "$to" ;; esac
      printf 'drop\n'
    done
    printf '}\n}\n'
  } | nft -f -
}
# silence FROM TO: drops the packets from one machine to the other on their lan; `any` is each
# machine.
silence() { silences+=("$1 $2"); wire; }
speak() { silences=(); wire; } # removes all rules of silence
loss() { machine_loss[$1]=$2; wire; } # name, percent of its packets, in both directions
cut_off() { loss "$1" 100; } # name: drops all its packets
heal() { loss "$1" 0; } # name
# The oldest process of a pod is its sandbox, which lives as long as the pod has its network.
network_of() { # pod: its network namespace, on any machine
  local uid; uid=$(k get pod "$1" -o 'jsonpath={.metadata.uid}')
  echo "/proc/$(grep -ls "$uid" /proc/[0-9]*/cgroup | tr -dc '0-9\n' | sort -n | head -n 1)/ns/net"
}
enter_pod() { nsenter "--net=$(network_of "$1")" "${@:2}"; } # pod, command...
# Functions for several servers.
# Seconds since a value of EPOCHREALTIME.
seconds() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }
status() { "$bin" status --data-dir="$scratch/$1/data" -o json; } # machine
# members MACHINE: the roles of all members, sorted
members() {
  status "$1" |
    python3 -c 'import json, sys
print(" ".join(sorted(m["role"] for m in json.load(sys.stdin)["members"])))'
}
leader() { # machine: name of the leader in the status of this machine
  status "$1" |
    python3 -c 'import json, sys
leaders = [m["address"] for m in json.load(sys.stdin)["members"] if m["role"] == "leader"]
print("".join(address.split(":")[0] for address in leaders))' | case $(cat) in
    192.0.2.2) echo s1 ;; 192.0.2.3) echo s2 ;; 192.0.2.4) echo s3 ;; esac
}
# at MACHINE ARGUMENTS...: kubectl with the server of this machine
at() { local server_name=$1 KUBECONFIG=$scratch/$1.yaml; export KUBECONFIG; shift; k "$@"; }
eval "cleanup_node() $(declare -f cleanup | tail -n +2)"
cleanup() {
  local name
  [ "$failed" = 0 ] || for name in "${!machine_number[@]}"; do
    echo "last lines of $name:"
    tail -n 15 "$scratch/$name.log" 2>/dev/null
  done
  cleanup_node 2>/dev/null
}
