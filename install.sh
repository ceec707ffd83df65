#!/bin/sh
# Installs kube-lite on this machine and starts it. Ends when the node is Ready, or with a named
# reason and exit status 1.
#   ./install.sh [server] [flags of `kube-lite server`]
#   KUBE_LITE_URL=https://SERVER:6443 KUBE_LITE_TOKEN=K10... \
#     ./install.sh [agent] [flags of `kube-lite agent`]
#
# Needs root. A second run keeps the flags and variables of the first, and restarts the service only
# if something changed.
#   INSTALL_KUBE_LITE_EXEC         flags of the server or agent, instead of arguments;
#                                  `server` or `agent` alone drops the flags of earlier runs
#   INSTALL_KUBE_LITE_BIN          install this file instead of building one
#   INSTALL_KUBE_LITE_BIN_DIR      folder of the programs; default /usr/local/bin, or /opt/bin
#                                  if that is read-only
#   INSTALL_KUBE_LITE_CONFIG_DIR   environment file and list of installed files;
#                                  default /etc/kube-lite
#   INSTALL_KUBE_LITE_UNIT_DIR     service files; default /etc/systemd/system or /etc/init.d
#   INSTALL_KUBE_LITE_SERVICE      systemd, openrc or none; default: the running service manager
#   INSTALL_KUBE_LITE_LOG          log without a journal; default /var/log/kube-lite.log
#   INSTALL_KUBE_LITE_SKIP_START   true: install only
#   INSTALL_KUBE_LITE_TIMEOUT      seconds to wait for the node to be Ready; default 120
#   KUBE_LITE_PROFILE              cargo profile of the build; default release
# A file that only root can read keeps these variables: KUBE_LITE_*, K3S_* (kube-lite rejects the
# unsupported ones by name), CONTAINERD_* and *_PROXY.
set -eu
umask 022
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
ready_timeout=${INSTALL_KUBE_LITE_TIMEOUT:-120}
kubernetes=0.37.1 # version of k8s.io/kubectl that matches the served API
version='' step_begin='' step_name='' work=''
# Variables with the prefix KUBE_LITE_ or K3S_ that belong to this script or to the service file.
own_variables='KUBE_LITE_(PROFILE|BIN|FLAGS|COMMAND|TEST_[A-Z0-9_]*)'

now() { # milliseconds since boot
  awk '{printf "%d\n", $1 * 1000}' /proc/uptime
}
begin() { step_name=$1 step_begin=$(now); }
done_step() { # result
  printf ' ok    %-14s %-72s %6s s\n' "$step_name" "$1" \
    "$(awk -v a="$step_begin" -v b="$(now)" 'BEGIN{printf "%.1f", (b - a) / 1000}')"
}
note() { printf '       %s\n' "$*"; }
fail() { # reason, command that fixes it
  printf ' FAIL  %-14s %s\n' "${step_name:-install}" "$1" >&2
  [ -z "${2:-}" ] || printf '       fix: %s\n' "$2" >&2
  exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
clean() { [ -z "$work" ] || rm -rf "$work"; }
trap clean EXIT
trap 'exit 130' INT TERM

# --- configuration --------------------------------------------------------------------------------

settings() {
  [ "$(id -u)" = 0 ] || {
    step_name=root
    fail "this script installs for the whole machine and needs root" "sudo $0 $*"
  }
  [ "$(uname -s)" = Linux ] || {
    step_name=host
    fail "kube-lite runs on Linux, this is $(uname -s)"
  }
  case $(uname -m) in
    x86_64 | aarch64) ;;
    *) step_name=host; fail "no build for $(uname -m): x86_64 and aarch64 are supported" ;;
  esac
  case $ready_timeout in
    '' | *[!0-9]*)
      step_name=host
      fail "INSTALL_KUBE_LITE_TIMEOUT=$ready_timeout: must be a number of seconds" ;;
  esac
  work=$(mktemp -d)
  if [ -z "${INSTALL_KUBE_LITE_BIN_DIR:-}" ]; then
    INSTALL_KUBE_LITE_BIN_DIR=/usr/local/bin
    { mkdir -p /usr/local/bin && [ -w /usr/local/bin ]; } 2>/dev/null ||
      INSTALL_KUBE_LITE_BIN_DIR=/opt/bin
  fi
  bin_dir=$INSTALL_KUBE_LITE_BIN_DIR program=$INSTALL_KUBE_LITE_BIN_DIR/kube-lite
  config_dir=${INSTALL_KUBE_LITE_CONFIG_DIR:-/etc/kube-lite} \
    env_file=${INSTALL_KUBE_LITE_CONFIG_DIR:-/etc/kube-lite}/kube-lite.env
  log=${INSTALL_KUBE_LITE_LOG:-/var/log/kube-lite.log}
  service=${INSTALL_KUBE_LITE_SERVICE:-}
  if [ -z "$service" ]; then
    if [ -d /run/systemd/system ] && have systemctl; then service=systemd
    elif have rc-service && [ -d /run/openrc ]; then service=openrc
    else service=none; fi
  fi
  case $service in
    systemd) unit=${INSTALL_KUBE_LITE_UNIT_DIR:-/etc/systemd/system}/kube-lite.service ;;
    openrc) unit=${INSTALL_KUBE_LITE_UNIT_DIR:-/etc/init.d}/kube-lite ;;
    none) unit='' ;;
    *) step_name=host; fail "INSTALL_KUBE_LITE_SERVICE=$service: must be systemd, openrc or none" ;;
  esac
  # Server or agent: an explicit command comes first, then the address of a server, then the last
  # run.
  mode=$(sed -n 's/^KUBE_LITE_COMMAND="\(.*\)"$/\1/p' "$env_file" 2>/dev/null || true)
  [ -z "${KUBE_LITE_URL:-${K3S_URL:-}}" ] || mode=agent
  mode=${mode:-server}
  # Flags: those of this run if there are any, otherwise those of the last run.
  if [ $# != 0 ] || [ -n "${INSTALL_KUBE_LITE_EXEC:-}" ]; then
    set -f
    # Word splitting is intended: one variable holds several flags.
    # shellcheck disable=SC2086
    set -- ${INSTALL_KUBE_LITE_EXEC:-} "$@"
    set +f
    case ${1:-} in server | agent) mode=$1; shift ;; esac
    for flag in "$@"; do
      case $flag in
        *[!A-Za-z0-9_./:=,@%+-]*)
          step_name=flags
          fail "flag $flag: a service file cannot contain this value" \
            "put it into $config_dir/config.yaml" ;;
      esac
    done
    flags=$*
  else
    flags=$(sed -n 's/^KUBE_LITE_FLAGS="\(.*\)"$/\1/p' "$env_file" 2>/dev/null || true)
  fi
  [ "$mode" = server ] || agent_settings
  data_dir=$(value data-dir d DATA_DIR /var/lib/kube-lite)
  kubeconfig=$(value write-kubeconfig o KUBECONFIG_OUTPUT /etc/kube-lite/kube-lite.yaml)
  run_dir=$(value run-dir '' '' /run/kube-lite)
  kubelet_dir=$(value kubelet-root-dir '' '' /var/lib/kubelet)
  log_dir=$(value log-dir '' '' /var/log)
  cni_conf_dir=$(value cni-conf-dir '' '' /etc/cni/net.d)
  cgroup_root=$(value cgroup-root '' '' / | sed 's|^/*||')
  cni_bin_dir=$(value cni-bin-dir '' '' /opt/cni/bin)
  bridge=$(value bridge-name '' '' cni0)
  table=$(value nft-table '' '' kube-lite)
  pid_file=$run_dir/kube-lite.pid
}
# An agent needs the address and the token of its server once.
agent_settings() {
  [ ! -e "$(value data-dir d DATA_DIR /var/lib/kube-lite)/agent/join.json" ] || return 0
  how="KUBE_LITE_URL=https://SERVER:6443 KUBE_LITE_TOKEN=K10... $0 agent"
  how="$how   # the token is on the server in /var/lib/kube-lite/server/token"
  step_name=flags
  [ -n "$(value server s URL '')" ] || fail "an agent needs the address of a server" "$how"
  [ -n "$(value token t TOKEN "$(value token-file '' TOKEN_FILE '')")" ] ||
    fail "an agent needs the token of a server" "$how"
}
# The value that the server uses: flag, then variable, then kept variable, then config.yaml, then
# the default.
value() { # flag, its short form, variable without prefix, default
  result='' take=''
  for word in $flags; do
    if [ -n "$take" ]; then result=$word take=''; continue; fi
    case $word in
      "--$1="*) result=${word#*=} ;;
      "--$1") take=1 ;;
      "-$2") [ -z "$2" ] || take=1 ;;
    esac
  done
  if [ -z "$result" ] && [ -n "$3" ]; then
    for prefix in KUBE_LITE_ K3S_; do
      [ -n "$result" ] || eval "result=\${$prefix$3:-}"
      [ -n "$result" ] ||
        result=$(sed -n "s/^$prefix$3=\"\(.*\)\"\$/\1/p" "$env_file" 2>/dev/null || true)
    done
  fi
  [ -n "$result" ] || result=$(sed -n "s/^$1: *[\"']\{0,1\}\([^\"'#]*[^\"'# ]\).*/\1/p" \
    "$config_dir/config.yaml" 2>/dev/null | tail -n 1)
  printf '%s\n' "${result:-$4}"
}
has_flag() { case " $flags " in *" --$1 "* | *" --$1="[!f]*) return 0 ;; *) return 1 ;; esac; }

# --- packages -------------------------------------------------------------------------------------

install_packages() { # names that all distributions share
  if have apt-get; then
    export DEBIAN_FRONTEND=noninteractive
    {
      apt-get -o DPkg::Lock::Timeout=60 update -qq &&
        apt-get -o DPkg::Lock::Timeout=60 install -y -qq --no-install-recommends "$@"
    } >"$work/packages" 2>&1
  elif have dnf; then dnf install -y -q "$@" >"$work/packages" 2>&1
  elif have apk; then apk add -q "$@" >"$work/packages" 2>&1
  elif have zypper; then zypper -n -q install --no-recommends "$@" >"$work/packages" 2>&1
  elif have pacman; then pacman -Sy --noconfirm --needed "$@" >"$work/packages" 2>&1
  else
    fail "$* missing, and there is no apt-get, dnf, apk, zypper or pacman to install it" \
      "install $* and run this script again"
  fi || {
    tail -n 3 "$work/packages" >&2
    fail "the package manager cannot install $*" "install $* and run this script again"
  }
  mkdir -p "$config_dir"
  for package in "$@"; do
    grep -qx "$package" "$config_dir/installed-packages" 2>/dev/null ||
      echo "$package" >>"$config_dir/installed-packages"
  done
}
container_runtime() {
  has_flag disable-agent && return
  begin runtime
  case " $flags " in
    *" --container-runtime-endpoint"*) done_step "set by --container-runtime-endpoint"; return ;;
  esac
  missing=''
  runs() { [ -x "$data_dir/bin/$1" ] || have "$1"; }
  runs containerd || missing=containerd
  { runs runc || runs crun; } || missing="$missing runc"
  if [ -n "$missing" ]; then
    # shellcheck disable=SC2086
    install_packages $missing
    # kube-lite starts its own containerd; the service of the package would only use memory.
    case "$missing$service" in
      *containerd*systemd) systemctl disable --now containerd >/dev/null 2>&1 || true ;;
    esac
    done_step "installed from the distribution: $missing"
  else
    done_step "$(PATH=$data_dir/bin:$PATH containerd --version 2>/dev/null | awk '{print $1, $3}')"
  fi
}

# --- the program ----------------------------------------------------------------------------------

find_cargo() {
  owner_home=''
  [ -z "${SUDO_USER:-}" ] || owner_home=$(home_of "$SUDO_USER")
  for cargo in "$(command -v cargo || true)" "$HOME/.cargo/bin/cargo" \
    "${owner_home:-/nonexistent}/.cargo/bin/cargo"; do
    [ -z "$cargo" ] || [ ! -x "$cargo" ] || return 0
  done
  return 1
}
home_of() { awk -F: -v u="$1" '$1 == u {print $6}' /etc/passwd; }
build() {
  begin build
  if [ -n "${INSTALL_KUBE_LITE_BIN:-}" ]; then
    built=$INSTALL_KUBE_LITE_BIN
    [ -x "$built" ] || fail "INSTALL_KUBE_LITE_BIN=$built is not an executable file"
    done_step "taken from $built"
    return
  fi
  grep -qs '^name = "kube-lite"' "$here/Cargo.toml" ||
    fail "no release is published yet, and $here is not a checkout to build from" \
    "run install.sh inside a checkout of kube-lite"
  have cc || install_packages gcc "$(have apt-get && echo libc6-dev ||
    { have apk && echo musl-dev; } || { have pacman && echo glibc; } || echo glibc-devel)"
  if ! find_cargo; then
    have curl || install_packages curl
    note "Rust is missing: installing rustup from https://sh.rustup.rs"
    curl --proto '=https' --tlsv1.2 -sSf --max-time 60 https://sh.rustup.rs -o "$work/rustup" &&
      sh "$work/rustup" -y -q --profile minimal --default-toolchain none \
      --no-modify-path >"$work/rust" 2>&1 ||
      fail "Rust cannot be installed: $(tail -n 1 "$work/rust" 2>/dev/null ||
      echo https://sh.rustup.rs does not answer)" \
      "install Rust (https://rustup.rs) and run this script again"
    cargo=$HOME/.cargo/bin/cargo
  fi
  profile=${KUBE_LITE_PROFILE:-release}
  target=${CARGO_TARGET_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite/target}
  note "no release is published yet: building from source with profile $profile" \
    "(minutes the first time)"
  build_log=$work/build
  case $cargo in
    # The Rust toolchain in a user's home works only as that user.
    "${owner_home:-/nonexistent}"/*)
      as="sudo -u $SUDO_USER -H"
      target=${CARGO_TARGET_DIR:-$owner_home/.cache/kube-lite/target} ;;
    *) as='' ;;
  esac
  # shellcheck disable=SC2086
  crates=$(cd "$here" && PATH=$(dirname "$cargo"):$PATH $as "$cargo" tree --locked \
    --edges normal,build --prefix none --format '{p}' 2>/dev/null | sed 's/ (\*)$//' | sort -u |
    wc -l)
  # shellcheck disable=SC2086
  (
    cd "$here" && PATH=$(dirname "$cargo"):$PATH $as "$cargo" build -v --profile "$profile" \
      --locked --bin kube-lite --target-dir "$target"
  ) >"$build_log" 2>&1 &
  show_build $!
  wait "$building" ||
    {
      grep -E '^error' -A4 "$build_log" | head -n 12 >&2
      fail "the build failed: $(grep -m1 '^error' "$build_log" || tail -n 1 "$build_log")"
    }
  built=$target/$profile/kube-lite
  done_step "from source, profile $profile"
}
# Reports the progress of the build: each second on a terminal, every 30 seconds elsewhere.
show_build() { # process
  building=$1 seconds=0
  while kill -0 "$building" 2>/dev/null; do
    sleep 1; seconds=$((seconds + 1))
    done_crates=$(grep -cE '^ +(Compiling|Fresh) ' "$build_log" || true)
    text="building: crate $done_crates of $crates, $seconds s"
    [ "$done_crates" -lt "$crates" ] ||
      text="building: optimising and linking the program, $seconds s"
    if [ -t 1 ]; then printf '\r       %-60s' "$text"
    elif [ $((seconds % 30)) = 0 ]; then note "$text"; fi
  done
  [ ! -t 1 ] || printf '\r%-70s\r' ''
}
changed=''
put() { # file, target, mode: replaces the target atomically if it differs
  if [ -f "$2" ] && cmp -s "$1" "$2" && [ "$(stat -c %a "$2")" = "$3" ]; then return; fi
  mkdir -p "$(dirname "$2")" && cp "$1" "$2.new" && chmod "$3" "$2.new" && mv -f "$2.new" "$2" ||
    fail "cannot write $2"
  changed="$changed $2"
}
host_check() {
  begin "host check"
  if has_flag disable-agent; then done_step "not needed: this server runs no node"; return; fi
  if KUBE_LITE_DATA_DIR="$data_dir" "$program" check-config >"$work/check" 2>&1; then
    grep '^warning' -A1 "$work/check" | sed 's/^/       /' || true
    done_step \
      "$(grep -c '^ok' "$work/check") ok, $(grep -c '^warning' "$work/check" || true) warnings"
  else
    grep '^FAIL' -A1 "$work/check" | sed 's/^/       /' >&2
    fail "this machine cannot run a node" \
      "fix the problems above, or add --disable-agent to run the control plane only"
  fi
}

# --- the service ----------------------------------------------------------------------------------

write_env() {
  mkdir -p "$config_dir"
  quote() { sed -e 's/[\\"$`]/\\&/g' -e 's/=/="/' -e 's/$/"/'; }
  names='(KUBE_LITE|K3S)_[A-Z0-9_]+|CONTAINERD_[A-Z_]+'
  names="$names|(HTTP|HTTPS|NO|ALL)_PROXY|(http|https|no|all)_proxy"
  env | grep -E "^($names)=" | grep -vE "^$own_variables=" | quote >"$work/env.new" || true
  # Variables of an earlier run stay unless this run sets them.
  {
    cat "$env_file" 2>/dev/null || true
    cat "$work/env.new"
    printf 'KUBE_LITE_FLAGS="%s"\nKUBE_LITE_COMMAND="%s"\n' "$flags" "$mode"
  } | awk -F= '{v[$1] = $0} END {for (k in v) print v[k]}' | sort >"$work/env"
  put "$work/env" "$env_file" 600
}
write_unit() {
  case $service in
    systemd) cat >"$work/unit" <<U
[Unit]
Description=kube-lite: Kubernetes on this machine
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
EnvironmentFile=-$env_file
ExecStartPre=-/bin/sh -c 'modprobe -q -a overlay br_netfilter nf_tables bridge veth'
ExecStart=$program $mode \$KUBE_LITE_FLAGS
# Pods keep running while the server restarts, and the server sets their limits.
KillMode=process
Delegate=yes
LimitNOFILE=1048576
LimitNPROC=infinity
TasksMax=infinity
# A restart takes a second; at shutdown of the machine pods get --shutdown-grace-period.
TimeoutStopSec=90
Restart=always
RestartSec=2
# A restart does not help against an invalid command line.
RestartPreventExitStatus=64

[Install]
WantedBy=multi-user.target
U
      put "$work/unit" "$unit" 644 ;;
    openrc) cat >"$work/unit" <<U
#!/sbin/openrc-run
description="kube-lite: Kubernetes on this machine"
supervisor=supervise-daemon
set -a; [ ! -f $env_file ] || . $env_file; set +a
command="$program"
command_args="$mode \$KUBE_LITE_FLAGS"
output_log="$log"
error_log="$log"
pidfile="$pid_file"
respawn_delay=2
rc_ulimit="-n 1048576"
depend() { want cgroups; need net; after firewall; }
start_pre() { modprobe -q -a overlay br_netfilter nf_tables bridge veth || true; }
U
      put "$work/unit" "$unit" 755 ;;
  esac
}
server_pid() { # of the running server, empty if none runs
  case $service in
    systemd) systemctl show -p MainPID --value kube-lite 2>/dev/null | grep -vx 0 || true ;;
    openrc) rc-service -q kube-lite status >/dev/null 2>&1 && echo supervised || true ;;
    none)
      pid=$(cat "$pid_file" 2>/dev/null || true)
      if [ -n "$pid" ] && {
        tr '\0' ' ' <"/proc/$pid/cmdline"
      } 2>/dev/null | grep -qE "^$program (server|agent)"; then echo "$pid"; fi ;;
  esac
}
stop_background() {
  pid=$(server_pid)
  [ -n "$pid" ] || return 0
  kill "$pid" 2>/dev/null || return 0
  # The server stops within a second; -f on /dev/null waits for the process only.
  timeout 10 tail --pid="$pid" -f /dev/null 2>/dev/null || {
    n=0
    while kill -0 "$pid" 2>/dev/null && [ $n -lt 10 ]; do sleep 1; n=$((n + 1)); done
  }
}
log_lines() { # the log since this start
  case $service in
    systemd) journalctl -u kube-lite --since "$started_at" -o cat --no-pager 2>/dev/null || true ;;
    *) tail -c "+$log_from" "$log" 2>/dev/null || true ;;
  esac
}
start() {
  begin service
  log_from=$(($(stat -c %s "$log" 2>/dev/null || echo 0) + 1)) \
    started_at=$(date '+%Y-%m-%d %H:%M:%S')
  if [ "${INSTALL_KUBE_LITE_SKIP_START:-}" = true ]; then
    done_step "not started (INSTALL_KUBE_LITE_SKIP_START)"
    return
  fi
  before=$(server_pid)
  if [ -n "$before" ] && [ -z "$changed" ]; then
    done_step "nothing changed, left running"
    return
  fi
  if [ -z "$before" ] && "$program" status --data-dir="$data_dir" >/dev/null 2>&1; then
    fail "another server uses $data_dir, and this script did not start it" \
      "stop it, or choose another directory with --data-dir"
  fi
  case $service in
    systemd)
      systemctl daemon-reload && systemctl enable -q kube-lite &&
        systemctl restart --no-block kube-lite ||
        fail "systemd cannot start the service" "systemctl status kube-lite"
      done_step "systemd, starts at boot" ;;
    openrc)
      rc-update -q add kube-lite default && rc-service -q kube-lite restart ||
        fail "OpenRC cannot start the service" "rc-service kube-lite start"
      done_step "OpenRC, starts at boot" ;;
    none)
      stop_background
      mkdir -p "$(dirname "$log")" "$run_dir"
      (
        set -a
        # shellcheck disable=SC1090
        . "$env_file"
        set +a -f
        # shellcheck disable=SC2086
        setsid "$program" "$mode" $KUBE_LITE_FLAGS </dev/null >>"$log" 2>&1 &
        echo $! >"$pid_file"
      )
      done_step "in the background (no service manager runs here; after a reboot: $0)" ;;
  esac
}
# Waits until the node is Ready. The status socket reports readiness; an error of the process ends
# the wait.
wait_ready() {
  [ "${INSTALL_KUBE_LITE_SKIP_START:-}" != true ] || return 0
  begin ready
  deadline=$(($(now) + ready_timeout * 1000))
  while ! "$program" status --data-dir="$data_dir" --wait=ready \
    --timeout=1 >"$work/status" 2>/dev/null; do
    if log_lines | grep -q '^error\[KL' && [ -z "$(server_pid)" -o "$service" != none ]; then
      give_up "the $mode does not start"
    fi
    [ -n "$(server_pid)" ] || [ "$service" != none ] || give_up "the $mode stopped"
    [ "$(now)" -lt "$deadline" ] || give_up "not ready after $ready_timeout s"
  done
  done_step "$(sed -n 's/^api *//p; s/^node *\(.*\)/node \1/p' "$work/status" | tr '\n' ' ')"
}
give_up() {
  log_lines | grep -v '^ *$' >"$work/log" || true
  # The last error with its cause and fix, otherwise the last warnings, otherwise the last lines.
  awk '/^error\[KL/ { block = $0; next }
    block != "" && /^ +(why|fix): / { block = block "\n" $0 }
    END { if (block != "") print block }' "$work/log" >"$work/reason" || true
  [ -s "$work/reason" ] ||
    grep -E 'WARN|ERROR|panicked' "$work/log" | tail -n 3 >"$work/reason" || true
  [ -s "$work/reason" ] || tail -n 3 "$work/log" >"$work/reason"
  reason=$(sed -n 's/^error\[\(KL[0-9]*\)\]: /\1 /p' "$work/reason" | tail -n 1)
  [ -n "$reason" ] || reason=$(sed -n 's/^problem *//p' "$work/status" 2>/dev/null | head -n 1)
  sed 's/^/       /' "$work/reason" >&2
  fix=$(sed -n 's/^ *fix: *\(.*[^.]\)\.*$/\1/p' "$work/reason" | tail -n 1)
  show_log="less $log"
  [ "$service" != systemd ] || show_log='journalctl -u kube-lite'
  [ -n "$fix" ] || fix="read the log ($show_log)"
  fail "$1${reason:+: $reason}" "$fix; then run this script again"
}

# --- kubectl --------------------------------------------------------------------------------------

kubectl_program() {
  begin kubectl
  how=''
  kubectl_page=https://kubernetes.io/docs/tasks/tools/install-kubectl-linux/
  have kubectl || [ -x "$bin_dir/kubectl" ] || {
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
      how="kubectl is missing, and Go to build it, too: $kubectl_page"
    else
      note "kubectl is missing: building it from k8s.io/kubectl v$kubernetes"
      source=$work/kubectl; mkdir -p "$source"
      printf 'module kubectl\n\ngo 1.24\n' >"$source/go.mod"
      cat >"$source/main.go" <<'G'
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() {
	if err := cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand()); err != nil {
		util.CheckErr(err)
	}
}
G
      if (
        cd "$source" && "$go" get "k8s.io/kubectl@v$kubernetes" && "$go" mod tidy &&
          CGO_ENABLED=0 "$go" build -trimpath \
          -ldflags="-s -w -X k8s.io/component-base/version.gitVersion=v1.${kubernetes#0.}" \
          -o kubectl .
      ) >"$work/go" 2>&1; then
        cp "$source/kubectl" "$bin_dir/kubectl" && {
          grep -qsx "$bin_dir/kubectl" "$config_dir/installed-files" ||
            echo "$bin_dir/kubectl" >>"$config_dir/installed-files"
        }
      else
        how="kubectl cannot be built ($(tail -n 1 "$work/go")): $kubectl_page"
      fi
    fi
  }
  done_step "${how:-$(command -v kubectl || echo "$bin_dir/kubectl")}"
}
# Copies the administrator's kubeconfig for the calling user. A file of the user stays; only a copy
# made here is updated.
kubectl_config() {
  begin kubeconfig
  hint=''
  [ "${INSTALL_KUBE_LITE_SKIP_START:-}" != true ] || {
    done_step "written at the first start: $kubeconfig"
    return
  }
  user=${SUDO_USER:-root}
  home=$([ "$user" = root ] && echo "$HOME" || home_of "$user")
  [ -d "$home" ] || {
    hint="export KUBECONFIG=$kubeconfig"
    done_step "$user has no home directory; use $kubeconfig"
    return
  }
  mine=$home/.kube/config
  copies=$config_dir/installed-kubeconfig
  installed=$(sed -n "s|^\([0-9a-f]*\) $mine\$|\1|p" "$copies" 2>/dev/null || true)
  if [ ! -e "$mine" ] || [ "$(sum "$mine")" = "$installed" ]; then
    group=$(id -g "$user")
    [ -d "$home/.kube" ] || install -d -m 700 -o "$user" -g "$group" "$home/.kube"
    cmp -s "$kubeconfig" "$mine" || install -m 600 -o "$user" -g "$group" "$kubeconfig" "$mine"
    # The list keeps copies for other users, so that uninstalling removes them all.
    {
      awk -v mine="$mine" '{file = $0; sub(/^[^ ]* /, "", file)} file != mine' \
        "$config_dir/installed-kubeconfig" 2>/dev/null || true
      echo "$(sum "$mine") $mine"
    } >"$work/sum"
    put "$work/sum" "$config_dir/installed-kubeconfig" 600
    done_step "$mine, for $user"
  elif cmp -s "$kubeconfig" "$mine"; then done_step "$mine is up to date"
  else
    hint="export KUBECONFIG=$kubeconfig"
    [ "$user" = root ] ||
      hint="sudo cat $kubeconfig > ~/.kube/kube-lite.yaml; export KUBECONFIG=~/.kube/kube-lite.yaml"
    hint="$hint   # $mine belongs to another cluster and was not changed"
    done_step "$kubeconfig"
  fi
}
sum() { sha256sum "$1" | cut -d' ' -f1; }

# --- uninstalling ---------------------------------------------------------------------------------

write_leavers() {
  cat >"$work/settings" <<S
program='$program' bin_dir='$bin_dir' config_dir='$config_dir' env_file='$env_file'
service='$service' unit='$unit' log='$log' data_dir='$data_dir' run_dir='$run_dir'
kubelet_dir='$kubelet_dir' log_dir='$log_dir' cni_conf_dir='$cni_conf_dir'
cni_bin_dir='$cni_bin_dir' cgroup_root='$cgroup_root' bridge='$bridge' table='$table'
pid_file='$pid_file' kubeconfig='$kubeconfig'
S
  {
    printf '#!/bin/sh\n# Stops kube-lite and everything it runs: pods, their mounts and network.\n'
    printf '# Keeps the data. Written by install.sh.\nset -u\n'
    cat "$work/settings"; sed -n '/^#killall$/,/^#end$/{/^#/!p}' "$0"; } >"$work/killall"
  {
    printf '#!/bin/sh\n# Removes kube-lite from this machine. Written by install.sh.\n'
    printf '# usage: kube-lite-uninstall.sh [--yes] [--keep-data]\nset -u\n'
    cat "$work/settings"; sed -n '/^#uninstall$/,/^#end$/{/^#/!p}' "$0"; } >"$work/uninstall"
  # These scripts do not affect the service: a change here restarts nothing.
  kept=$changed
  put "$work/killall" "$bin_dir/kube-lite-killall.sh" 755
  put "$work/uninstall" "$bin_dir/kube-lite-uninstall.sh" 755
  changed=$kept
}

# The bodies of the two scripts. This script does not run them.
bodies() { return 0
#killall
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 1; }
command_of() { { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null; }
children() {
  for p in "$@"; do
    echo "$p"
    for task in /proc/"$p"/task/*; do children $(cat "$task/children" 2>/dev/null); done
  done
}
gone() { n=0; while [ -d "/proc/$1" ] && [ $n -lt 50 ]; do sleep 0.1; n=$((n + 1)); done; }
case $service in
  systemd) systemctl stop kube-lite 2>/dev/null ;;
  openrc) rc-service -q kube-lite stop 2>/dev/null ;;
  none)
    pid=$(cat "$pid_file" 2>/dev/null)
    case $(command_of "${pid:-none}") in
      "$program server"* | "$program agent"*) kill "$pid"; gone "$pid" ;;
    esac
    rm -f "$pid_file" ;;
esac
# kube-lite's containerd, and its shims with their containers. Processes of another mount namespace,
# such as a container's, may use the same paths and belong to that namespace.
ours() { [ "$(readlink "/proc/$1/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]; }
for dir in /proc/[0-9]*; do
  pid=${dir#/proc/} line=$(command_of "${dir#/proc/}")
  ours "$pid" || continue
  case ${line%% *} in
    */containerd | containerd)
      case $line in *"$run_dir/"* | *"$data_dir/"*) kill "$pid"; gone "$pid" ;; esac ;;
  esac
done
# Ids of the containers: the runtime keeps their state outside of the run directory.
containers=$(ls "$run_dir/containerd/containerd/io.containerd.runtime.v2.task/k8s.io" 2>/dev/null)
for dir in /proc/[0-9]*; do
  pid=${dir#/proc/} line=$(command_of "${dir#/proc/}")
  ours "$pid" || continue
  case ${line%% *} in
    *containerd-shim*)
      case $line in
        *" $run_dir/"* | *"=$run_dir/"*) kill -9 $(children "$pid") 2>/dev/null ;;
      esac ;;
  esac
done
for id in $containers; do rm -rf "/run/containerd/runc/k8s.io/$id"; done
for top in "$run_dir" "$kubelet_dir/pods" "$kubelet_dir/plugins" "$data_dir"; do
  awk -v top="$top/" 'index($2, top) == 1 {print $2}' /proc/mounts | sort -r |
    while read -r mount; do umount -l "$mount"; done
done
if command -v ip >/dev/null; then
  # The host ends of the pods' veth pairs are ports of the bridge.
  ip -o link show master "$bridge" 2>/dev/null | sed 's/^[0-9]*: \([^@:]*\).*/\1/' |
    while read -r link; do ip link del "$link" 2>/dev/null; done
  for link in "$bridge" kube-lite-svc; do ip link del "$link" 2>/dev/null; done
  # The overlay's links have flannel's names; if flannel or k3s runs, too, the links belong to it.
  [ -e /run/flannel/subnet.env ] || for link in flannel.1 flannel-v6.1 flannel-wg flannel-wg-v6; do
    ip link del "$link" 2>/dev/null
  done
fi
# Network namespaces of pods that have no process left.
used=$(readlink /proc/[0-9]*/ns/net 2>/dev/null | sort -u)
for space in /run/netns/cni-*; do
  [ -e "$space" ] || continue
  case "$used" in *"net:[$(stat -L -c %i "$space")]"*) continue ;; esac
  umount -l "$space" 2>/dev/null; rm -f "$space"
done
if command -v nft >/dev/null; then
  for family in inet ip ip6; do
    for name in "$table" "$table-overlay"; do
      nft list table $family "$name" >/dev/null 2>&1 && nft delete table $family "$name"
    done
  done
fi
exit 0
#end
#uninstall
yes='' keep=''
for arg in "$@"; do
  case $arg in
    --yes) yes=1 ;;
    --keep-data) keep=1 ;;
    *) echo "usage: $0 [--yes] [--keep-data]" >&2; exit 64 ;;
  esac
done
# If another kubelet uses the shared directories, they stay.
shared=''
for other in /etc/systemd/system/k3s.service /etc/systemd/system/k3s-agent.service \
  /lib/systemd/system/kubelet.service /usr/lib/systemd/system/kubelet.service; do
  [ ! -e "$other" ] || [ "$kubelet_dir" != /var/lib/kubelet ] || shared=$other
done
plan() {
  echo "$unit"
  echo "$env_file"
  echo "$config_dir/installed-files"
  echo "$config_dir/installed-packages"
  echo "$config_dir/installed-kubeconfig"
  echo "$kubeconfig"
  cat "$config_dir/installed-files" 2>/dev/null
  while read -r sum file; do
    [ "$(sha256sum "$file" 2>/dev/null | cut -d' ' -f1)" != "$sum" ] || echo "$file"
  done 2>/dev/null <"$config_dir/installed-kubeconfig"
  for link in "$cni_bin_dir"/*; do [ "$(readlink "$link")" != "$program" ] || echo "$link"; done
  echo "$cni_conf_dir/10-kube-lite.conflist"; echo "$log"; echo "$run_dir"
  if [ -z "$shared" ]; then
    echo "$log_dir/pods"
    echo "$log_dir/containers"
    [ -n "$keep" ] || echo "$kubelet_dir"
  fi
  [ -n "$keep" ] || echo "$data_dir"
  echo "$program"; echo "$bin_dir/kube-lite-killall.sh"; echo "$bin_dir/kube-lite-uninstall.sh"
}
echo "This stops all pods and removes:"
list=$(plan | while read -r path; do
  case $path in /?*) [ ! -e "$path" ] || echo "$path" ;; esac
done)
echo "$list" | sed 's/^/  /'
[ -z "$shared" ] ||
  echo "Left, because $shared uses them: $kubelet_dir, $log_dir/pods, $log_dir/containers"
[ -z "$keep" ] || echo "Left: $data_dir and $kubelet_dir"
[ ! -s "$config_dir/installed-packages" ] ||
  echo "Left, installed packages of the distribution:" \
    "$(tr '\n' ' ' <"$config_dir/installed-packages")"
[ -n "$yes" ] || { echo "Nothing was removed. To do it: $0 --yes"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 1; }
"$bin_dir/kube-lite-killall.sh"
case $service in
  systemd) systemctl disable -q kube-lite 2>/dev/null ;;
  openrc) rc-update -q del kube-lite default 2>/dev/null ;;
esac
echo "$list" | while read -r path; do
  # A path with mounted volumes below it is not deleted.
  if awk -v top="$path/" 'index($2, top) == 1 {found = 1} END {exit !found}' /proc/mounts; then
    echo "left: $path has mounts below it" >&2
    continue
  fi
  case $path in
    / | /etc | /var | /var/lib | /var/log | /run | /usr | /usr/local | /usr/local/bin | /home | \
      /root | /opt)
      echo "left: $path belongs to the system" >&2 ;;
    *)
    # A separate mount is emptied and stays mounted.
    if awk -v path="$path" '$2 == path {found = 1} END {exit !found}' /proc/mounts; then
      find "$path" -xdev -mindepth 1 -delete
      echo "left: $path is a mount point and was emptied"
    else rm -rf "$path"; fi ;;
  esac
done
case $service in systemd) systemctl daemon-reload ;; esac
# The groups are empty by now; rmdir fails for a group that still has a process.
[ -n "$shared" ] ||
  for group in "/sys/fs/cgroup/$cgroup_root/kubepods" /sys/fs/cgroup/*/"$cgroup_root/kubepods"; do
  [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
  [ -z "$cgroup_root" ] || rmdir "${group%/kubepods}" 2>/dev/null
done
rmdir "$config_dir/config.yaml.d" "$config_dir" 2>/dev/null || [ ! -d "$config_dir" ] ||
  echo "Left: $config_dir, which contains other files"
echo "kube-lite was removed."
exit 0
#end
}

next() {
  echo
  if [ "${INSTALL_KUBE_LITE_SKIP_START:-}" = true ]; then
    echo "Installed. Start it by running this script without INSTALL_KUBE_LITE_SKIP_START."
    return
  fi
  echo "Ready."
  [ -z "$hint" ] || echo "  first      $hint"
  if [ "$mode" = agent ]; then
    echo "  look       kubectl get nodes on the server, kube-lite status here"
    echo "  leave      kubectl delete node on the server, then $bin_dir/kube-lite-uninstall.sh"
    return
  fi
  has_flag disable-agent ||
    echo "  try        kubectl create deployment web --image=nginx &&" \
      "kubectl expose deployment web --port=80"
  echo "  look       kubectl get all -A    kube-lite status"
  echo "  leave      $bin_dir/kube-lite-uninstall.sh"
  [ -z "$how" ] || echo "  get        $how"
}

main() {
  settings "$@"
  build
  container_runtime
  begin program
  put "$built" "$program" 755
  version=$("$program" --version) || fail "$program does not run on this machine"
  done_step "$version in $bin_dir"
  host_check
  write_env
  write_unit
  write_leavers
  start
  wait_ready
  # The cluster is administered on the server.
  how='' hint=''
  if [ "$mode" = server ]; then kubectl_program; kubectl_config; fi
  next
}
main "$@"
