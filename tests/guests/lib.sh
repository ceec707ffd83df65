# Virtual machines for tests: guests of qemu with Debian's kernel, cgroup v2, and everything that a
# network card, a disk and a power switch can do.
# usage: . tests/guests/lib.sh
#          (as root, KUBE_LITE_BIN set; instead of tests/lib/server.sh, which it includes)
#
#   guest NAME [option...]       switches a machine on and waits until it accepts commands; with
#                                  `nowait` returns at once. Options: systemd or openrc (otherwise a
#                                  plain init), aarch64 (only a plain init), cpus=N (2),
#                                  memory=MB (1024), numa=N: so many NUMA nodes of equal size, each
#                                  a socket; selinux: the kernel has SELinux instead of AppArmor
#   wait_for NAME...             waits until these accept commands
#   in_guest NAME command...     runs a command in the guest (one string is a shell's command line)
#                                  with the input, output and status of the caller
#   power_cut NAME...            cuts the power: data that was not on disk is lost
#   power_on NAME [nowait]       switches it on again with its disk
#   reset NAME                   presses the reset button
#   $kit                         a folder that all guests have as /kit, read-only, for programs and
#                                  files. It contains kube-lite (KUBE_LITE_BIN, stripped), kubectl
#                                  if this machine has it, and busybox.tar, an image
#
# Guest number N (in order of `guest`, from 2) has eth0 on one link with the others: 192.0.2.N/24,
# 2001:db8::N/64, MTU 1500. The script is 192.0.2.1 on it, in a separate network namespace, and
# every packet passes its bridge `lan`. eth1 (198.18.0.N) carries the commands.
# Root, modules (wireguard, vxlan, overlay, nftables...) and tools (wg, nft, ping, iperf3, tcpdump,
# socat, curl) are the distribution's. With a plain init, start kube-lite as on any machine:
#   in_guest n1 'setsid /kit/kube-lite server ... >/var/log/kl.log 2>&1 </dev/null &'
# All guests end with the script in every case, because they are in its process namespace.
# A script with guests of another architecture sets first: GUEST_MACHINES="x86_64 aarch64".
set -u
GUEST_MACHINES=${GUEST_MACHINES:-x86_64}
guests_cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite/guests
if [ -z "${KUBE_LITE_GUESTS:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "guests need root"; exit 1; }
  for machine in $GUEST_MACHINES; do
    "$(dirname "${BASH_SOURCE[0]}")/image" "$machine" >/dev/null || exit 1
  done
  export KUBE_LITE_GUESTS=1
  # If this process is killed, its children end, too, down to the guests.
  setpriv --pdeathsig KILL unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@" &
  guests_inside=$!
  trap 'kill -9 $guests_inside 2>/dev/null; wait $guests_inside 2>/dev/null' INT TERM
  wait $guests_inside; exit $?
fi
export PATH=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite/clients:$PATH
. "$(dirname "${BASH_SOURCE[0]}")/../lib/server.sh"
# The guests' disks are in memory: a power cut must lose the guest's unflushed data, but not this
# machine's.
mount -t tmpfs -o size=12g,mode=700 kube-lite-guests "$scratch"
kit=$scratch/kit
mkdir -p "$kit"
ip link set lo up
for link in lan ctl; do ip link add "$link" type bridge && ip link set "$link" up; done
ip addr add 192.0.2.1/24 dev lan && ip addr add 2001:db8::1/64 dev lan nodad &&
  ip addr add 198.18.0.1/24 dev ctl
declare -A guest_image=()
for machine in $GUEST_MACHINES; do
  guest_image[$machine]=$(tests/guests/image "$machine") || exit 1
done
declare -A guest_number=() guest_options=() guest_process=()
put_in_kit() { # file, name: strips debug information from programs
  case $(head -c 4 "$1" | od -An -tx1 | tr -d ' ') in
    7f454c46) strip -o "$kit/$2" "$1" 2>/dev/null || cp "$1" "$kit/$2" ;;
    *) cp "$1" "$kit/$2" ;;
  esac
}
put_in_kit "$bin" kube-lite
! command -v kubectl >/dev/null || cp "$(command -v kubectl)" "$kit/kubectl"
python3 tests/lib/make-image "$kit/busybox.tar" docker.io/library/busybox:1 busybox=/bin/busybox
guest() { # name, options...
  local name=$1; shift
  guest_number[$name]=$((${#guest_number[@]} + 2)) guest_options[$name]=" $* "
  local base=x86_64
  case " $* " in *" aarch64 "*) base=aarch64 ;; esac
  qemu-img create -q -f qcow2 -F raw -b "${guest_image[$base]}/disk" "$scratch/$name.disk" 8G ||
    exit 1
  case " $* " in *" nowait "*) power_on "$name" nowait ;; *) power_on "$name" ;; esac
}
option() { # name of a guest, option, default: prints its value
  case ${guest_options[$1]} in
    *" $2="*) local rest=${guest_options[$1]##* "$2="}; echo "${rest%% *}" ;;
    *) echo "$3" ;;
  esac
}
numa_arguments() { # name: prints the arguments of qemu that give it NUMA nodes, one per line
  local nodes node cpus
  nodes=$(option "$1" numa 1) cpus=$(($(option "$1" cpus 2) / $(option "$1" numa 1)))
  [ "$nodes" -gt 1 ] || return 0
  for node in $(seq 0 $((nodes - 1))); do
    printf '%s\n' -object \
      "memory-backend-ram,id=node$node,size=$(($(option "$1" memory 1024) / nodes))M" \
      -numa "node,nodeid=$node,memdev=node$node,cpus=$((node * cpus))-$((node * cpus + cpus - 1))"
  done
}
power_on() { # name, `nowait`
  local name=$1 number=${guest_number[$1]} init=/usr/local/sbin/init base=x86_64 console=ttyS0 \
    link hex manager= modules=
  local machine=(-machine q35 -cpu max)
  case ${guest_options[$name]} in *" systemd "*) init=/sbin/init ;; esac
  case ${guest_options[$name]} in *" openrc "*) manager=openrc ;; esac
  case ${guest_options[$name]} in
    *" selinux "*) modules="security=selinux selinux=1 enforcing=0" ;;
  esac
  case ${guest_options[$name]} in
    *" aarch64 "*) base=aarch64 console=ttyAMA0 machine=(-machine virt -cpu cortex-a72) ;;
  esac
  # KVM is ten times as fast, but must be requested, because some machines offer it without working.
  machine+=(-accel "${KUBE_LITE_GUEST_ACCEL:-tcg,thread=multi}")
  hex=$(printf %02x "$number")
  identity="guest.init=$init guest.name=$name guest.number=$number systemd.show_status=0"
  [ -z "$manager" ] || identity="$identity guest.openrc=1"
  for link in lan ctl; do
    ip link del "$link$number" 2>/dev/null
    ip tuntap add dev "$link$number" mode tap && ip link set "$link$number" master "$link" up ||
      exit 1
  done
  local numa=()
  mapfile -t numa < <(numa_arguments "$name")
  "qemu-system-$base" "${machine[@]}" ${numa[@]+"${numa[@]}"} \
    -smp "$(option "$name" cpus 2),sockets=$(option "$name" numa 1)" \
    -m "$(option "$name" memory 1024)" -nodefaults -display none -no-user-config \
    -kernel "${guest_image[$base]}/kernel" -initrd "${guest_image[$base]}/initrd" \
    -append "console=$console quiet loglevel=4 panic=10 net.ifnames=0 $modules $identity" \
    -drive "file=$scratch/$name.disk,format=qcow2,if=none,id=disk,cache=writeback,discard=unmap" \
    -device virtio-blk-pci,drive=disk \
    -netdev "tap,id=lan,ifname=lan$number,script=no,downscript=no" \
    -device "virtio-net-pci,netdev=lan,mac=52:54:00:00:01:$hex,romfile=" \
    -netdev "tap,id=ctl,ifname=ctl$number,script=no,downscript=no" \
    -device "virtio-net-pci,netdev=ctl,mac=52:54:00:00:02:$hex,romfile=" \
    -fsdev "local,id=kit,path=$kit,security_model=none,readonly=on" \
    -device virtio-9p-pci,fsdev=kit,mount_tag=kit \
    -object rng-random,id=rng,filename=/dev/urandom -device virtio-rng-pci,rng=rng \
    -serial "file:$scratch/$name.console" \
    -monitor "unix:$scratch/$name.monitor,server=on,wait=off" >"$scratch/$name.qemu" 2>&1 &
  guest_process[$name]=$!
  [ "${2:-}" = nowait ] || wait_for "$name"
}
# One connection per guest carries all commands: a new one costs an emulated processor a second.
guest_ssh() { # name, command and arguments of ssh...
  ssh -i "$guests_cache/key" -o BatchMode=yes -o StrictHostKeyChecking=no \
    -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=5 \
    -o KexAlgorithms=curve25519-sha256 -o Ciphers=chacha20-poly1305@openssh.com \
    -o ServerAliveInterval=20 -o ServerAliveCountMax=6 \
    -o ControlMaster=auto -o ControlPersist=yes -o "ControlPath=$scratch/$1.ssh" \
    "root@198.18.0.${guest_number[$1]}" "${@:2}"
}
in_guest() { # name, command...
  local name=$1; shift
  if [ $# = 1 ]; then guest_ssh "$name" "$1"; else guest_ssh "$name" "$(printf '%q ' "$@")"; fi
}
answers() {
  timeout 20 ssh -o BatchMode=yes -o "ControlPath=$scratch/$1.ssh" -O check guest >/dev/null 2>&1 ||
    guest_ssh "$1" -n true >/dev/null 2>&1
}
wait_for() { # name...
  local name end=$((SECONDS + ${GUEST_WITHIN:-600}))
  for name; do
    until answers "$name"; do
      kill -0 "${guest_process[$name]}" 2>/dev/null || {
        echo "FAIL guest $name has ended"
        cat "$scratch/$name.qemu"
        tail -n 20 "$scratch/$name.console"
        exit 1
      }
      [ $SECONDS -lt $end ] || {
        echo "FAIL guest $name does not answer"
        tail -n 40 "$scratch/$name.console"
        exit 1
      }
      sleep 0.5
    done
  done
}
# hang_up NAME: closes the guest's connection.
hang_up() {
  ssh -o "ControlPath=$scratch/$1.ssh" -O exit guest >/dev/null 2>&1
  rm -f "$scratch/$1.ssh"
}
power_cut() { # name...
  local name
  for name; do kill -9 "${guest_process[$name]}"; done
  for name; do { wait "${guest_process[$name]}"; } 2>/dev/null; hang_up "$name"; done
}
# name, command of qemu's monitor
monitor() { echo "$2" | timeout 10 socat - "unix-connect:$scratch/$1.monitor" >/dev/null; }
reset() { monitor "$1" system_reset; hang_up "$1"; } # name
# The reboot command is not awaited, because its connection ends with it.
reboots() { # name, command...: runs it and waits until the machine has restarted
  local name=$1 before; shift
  before=$(in_guest "$name" cat /proc/sys/kernel/random/boot_id)
  in_guest "$name" "$* </dev/null >/dev/null 2>&1 &" || return 1
  local end=$((SECONDS + ${GUEST_WITHIN:-600})) now
  while :; do
    now=$(timeout 20 ssh -o BatchMode=yes -i "$guests_cache/key" -o StrictHostKeyChecking=no \
      -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=5 \
      -o KexAlgorithms=curve25519-sha256 "root@198.18.0.${guest_number[$name]}" cat \
      /proc/sys/kernel/random/boot_id 2>/dev/null)
    [ -z "$now" ] || [ "$now" = "$before" ] || break
    [ $SECONDS -lt $end ] || { echo "$name did not start again"; return 1; }
    sleep 0.5
  done
  hang_up "$name"
  wait_for "$name"
}
# As `equals`, but repeats the command until it matches.
comes() { # name, want, command...
  local end=$((SECONDS + ${COMES_WITHIN:-300}))
  until [ "$("${@:3}" 2>&1)" = "$2" ] || [ $SECONDS -ge $end ]; do sleep 0.5; done
  equals "$@"
}
cleanup() {
  local name
  {
    for name in "${!guest_process[@]}"; do
      [ "$failed" = 0 ] || {
        echo "last lines of $name's console:"
        tail -n 15 "$scratch/$name.console"
      }
      hang_up "$name"; kill -9 "${guest_process[$name]}"
    done
    wait
  } 2>/dev/null
  cd /; umount -l "$scratch"
}
