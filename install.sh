#!/bin/sh
# Installs kube-lite on this machine and starts it. Ends when the node is Ready, or with a named
# reason and exit status 1.
#   curl -sfL URL/install.sh | sh -s - [server] [flags of `kube-lite server`]
#   curl -sfL URL/install.sh | KUBE_LITE_URL=https://SERVER:6443 KUBE_LITE_TOKEN=K10... \
#     sh -s - [agent] [flags of `kube-lite agent`]
#
# Needs root. Installs a release: from the release host, or from the directory of this script if
# that is an unpacked bundle. In a checkout without INSTALL_KUBE_LITE_URL, builds from source.
# Checksums and their signature are verified before anything is changed. A second run keeps the
# flags and variables of the first, and restarts the service only if something changed.
#   INSTALL_KUBE_LITE_EXEC         flags of the server or agent, before the arguments;
#                                  `server` or `agent` alone drops the flags of earlier runs
#   INSTALL_KUBE_LITE_URL          release host
#   INSTALL_KUBE_LITE_CHANNEL      channel of the release; default stable
#   INSTALL_KUBE_LITE_VERSION      version of the release, instead of a channel
#   INSTALL_KUBE_LITE_ARTIFACT_URL mirrors, separated by spaces: MIRROR/VERSION/FILE; first choice
#   INSTALL_KUBE_LITE_PUBLIC_KEY   replaces the public key below that verifies the release
#   INSTALL_KUBE_LITE_SKIP_DOWNLOAD  true: use the program that is installed
#   INSTALL_KUBE_LITE_BIN          install this file
#   INSTALL_KUBE_LITE_PREFER_BUNDLED_BIN  true: containerd and runc of the release, not those of
#                                  the distribution
#   INSTALL_KUBE_LITE_BIN_DIR      folder of the programs; default /usr/local/bin, or /opt/bin
#                                  if that is read-only
#   INSTALL_KUBE_LITE_BIN_DIR_READ_ONLY  true: write nothing there; implies SKIP_DOWNLOAD
#   INSTALL_KUBE_LITE_CONFIG_DIR   environment file and list of installed files;
#                                  default /etc/kube-lite
#   INSTALL_KUBE_LITE_CACHE_DIR    unfinished downloads; default /var/cache/kube-lite
#   INSTALL_KUBE_LITE_SHARE_DIR    completion files; default /usr/share
#   INSTALL_KUBE_LITE_NAME         a further instance: the service kube-lite-NAME
#   INSTALL_KUBE_LITE_SYSTEMD_DIR  service files; default /etc/systemd/system or /etc/init.d
#                                  (also INSTALL_KUBE_LITE_UNIT_DIR)
#   INSTALL_KUBE_LITE_TYPE         Type= of the systemd service: simple or exec; default simple
#   INSTALL_KUBE_LITE_SERVICE      systemd, openrc or none; default: the running service manager
#   INSTALL_KUBE_LITE_LOG          log without a journal; default /var/log/kube-lite.log
#   INSTALL_KUBE_LITE_SKIP_ENABLE  true: install only
#   INSTALL_KUBE_LITE_SKIP_START   true: install, start at the next boot
#   INSTALL_KUBE_LITE_FORCE_RESTART  true: restart the service although nothing changed
#   INSTALL_KUBE_LITE_SYMLINK      ctr and crictl for kube-lite's containerd: skip, or force even if
#                                  there are others on PATH
#   INSTALL_KUBE_LITE_FIX_CGROUP   true: turn on the memory controller of a Raspberry Pi
#   INSTALL_KUBE_LITE_TIMEOUT      seconds to wait for the node to be Ready; default 120
#   KUBE_LITE_PROFILE              cargo profile of a build from source; default release
# The names of k3s's installer (INSTALL_K3S_*) have the same effect; those without effect are
# reported, and those that cannot work here are refused by name.
# A file that only root can read keeps these variables: KUBE_LITE_*, K3S_* (kube-lite rejects the
# unsupported ones by name), CONTAINERD_*, AWS_* and *_PROXY.
set -eu
umask 022
# The key that signs releases, and the release host. `xtask release` sets both in the installer
# that it publishes. An empty URL means that it must be in INSTALL_KUBE_LITE_URL.
public_key=RWRizA+jOa14ZKHm3U1ZWRMtDtKWgRBqISPeN0zjjPanAxyrAzpq4Von
release_url=
ready_timeout=${INSTALL_KUBE_LITE_TIMEOUT:-120}
kubernetes=0.37.1 # version of k8s.io/kubectl that matches the served API
version='' step_begin='' step_name='' work='' cache='' keep_cache='' sums='' bundle='' arch=''
reboot='' unchanged='; nothing was changed'
# Variables with the prefix KUBE_LITE_ or K3S_ that belong to this script or to the service file.
own_variables='KUBE_LITE_(PROFILE|BIN|FLAGS|COMMAND|TEST_[A-Z0-9_]*)'
# The folder of this script; empty if it comes from a pipe.
here='' self='sh'
case $0 in
  *.sh)
    here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
    self=$0 ;;
esac

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
is_true() { eval "[ \"\${INSTALL_KUBE_LITE_$1:-}\" = true ]"; }
clean() {
  [ -z "$work" ] || rm -rf "$work"
  # A download that was cut off continues in the next run.
  [ -z "$cache" ] || [ -n "$keep_cache" ] || {
    rm -rf "$cache"
    rmdir "$cache_dir" 2>/dev/null || true
  }
}
trap clean EXIT
trap 'exit 130' INT TERM

# --- configuration --------------------------------------------------------------------------------

# Gives the variables of k3s's installer their effect, and refuses unknown names.
installer_variables() {
  step_name=variables
  for name in $(env | sed -n 's/^\(INSTALL_K3S_[A-Z0-9_]*\)=..*/\1/p'); do
    short=${name#INSTALL_K3S_}
    case $short in
      ARTIFACT_URL | BIN_DIR | BIN_DIR_READ_ONLY | CHANNEL | EXEC | FORCE_RESTART | NAME | \
        SKIP_DOWNLOAD | SKIP_ENABLE | SKIP_START | SYMLINK | SYSTEMD_DIR | TYPE | VERSION)
        eval "[ -n \"\${INSTALL_KUBE_LITE_$short:-}\" ] || INSTALL_KUBE_LITE_$short=\$$name" ;;
      SELINUX_WARN | SKIP_SELINUX_RPM)
        note "$name changes nothing: kube-lite has no SELinux policy to install" ;;
      COMMIT | PR)
        fail "$name is not supported: only releases can be downloaded" \
          "set INSTALL_KUBE_LITE_VERSION, or run install.sh in a checkout of that commit" ;;
      CHANNEL_URL)
        fail "$name is not supported: it names a host of k3s's releases" \
          "set INSTALL_KUBE_LITE_URL to the release host" ;;
      *) fail "$name is not a variable of this script" "see the head of install.sh" ;;
    esac
  done
  for name in $(env | sed -n 's/^\(INSTALL_KUBE_LITE_[A-Z0-9_]*\)=..*/\1/p'); do
    case ${name#INSTALL_KUBE_LITE_} in
      ARTIFACT_URL | BIN | BIN_DIR | BIN_DIR_READ_ONLY | CACHE_DIR | CHANNEL | CONFIG_DIR | EXEC | \
        FIX_CGROUP | FORCE_RESTART | LOG | NAME | PREFER_BUNDLED_BIN | PUBLIC_KEY | SERVICE | \
        SHARE_DIR | SKIP_DOWNLOAD | SKIP_ENABLE | SKIP_START | SYMLINK | SYSTEMD_DIR | TIMEOUT | \
        TYPE | UNIT_DIR | URL | VERSION) ;;
      *) fail "$name is not a variable of this script" "see the head of install.sh" ;;
    esac
  done
  [ -z "${GITHUB_URL:-}" ] ||
    note "GITHUB_URL changes nothing: the release host is INSTALL_KUBE_LITE_URL"
  case ${INSTALL_KUBE_LITE_SKIP_DOWNLOAD:-} in
    '' | true | false | binary) ;;
    selinux) note "SKIP_DOWNLOAD=selinux changes nothing: kube-lite has no SELinux policy" ;;
    *) fail "INSTALL_KUBE_LITE_SKIP_DOWNLOAD=$INSTALL_KUBE_LITE_SKIP_DOWNLOAD: must be true" ;;
  esac
  case ${INSTALL_KUBE_LITE_SYMLINK:-} in
    '' | skip | force) ;;
    *) fail "INSTALL_KUBE_LITE_SYMLINK=$INSTALL_KUBE_LITE_SYMLINK: must be skip or force" ;;
  esac
  case ${INSTALL_KUBE_LITE_TYPE:=simple} in
    simple | exec) ;;
    *) fail "INSTALL_KUBE_LITE_TYPE=$INSTALL_KUBE_LITE_TYPE: kube-lite does not notify systemd" \
      "set simple or exec; this script waits until the node is Ready" ;;
  esac
  case ${INSTALL_KUBE_LITE_NAME:-} in
    *[!A-Za-z0-9.-]* | -*)
      fail "INSTALL_KUBE_LITE_NAME=$INSTALL_KUBE_LITE_NAME: not letters, digits, dots and dashes" ;;
  esac
  step_name=''
}
settings() {
  [ "$(id -u)" = 0 ] || {
    step_name=root
    fail "this script installs for the whole machine and needs root" "sudo $self $*"
  }
  installer_variables
  [ "$(uname -s)" = Linux ] || {
    step_name=host
    fail "kube-lite runs on Linux, this is $(uname -s)"
  }
  case $(uname -m) in
    x86_64 | aarch64) arch=$(uname -m) ;;
    arm64) arch=aarch64 ;;
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
  system=kube-lite${INSTALL_KUBE_LITE_NAME:+-$INSTALL_KUBE_LITE_NAME}
  bin_dir=$INSTALL_KUBE_LITE_BIN_DIR program=$INSTALL_KUBE_LITE_BIN_DIR/kube-lite
  config_dir=${INSTALL_KUBE_LITE_CONFIG_DIR:-/etc/kube-lite}
  env_file=$config_dir/$system.env
  # The scripts that stop and remove kube-lite.
  script_dir=$bin_dir
  ! is_true BIN_DIR_READ_ONLY || { INSTALL_KUBE_LITE_SKIP_DOWNLOAD=true script_dir=$config_dir; }
  log=${INSTALL_KUBE_LITE_LOG:-/var/log/$system.log}
  cache_dir=${INSTALL_KUBE_LITE_CACHE_DIR:-/var/cache/kube-lite}
  share_dir=${INSTALL_KUBE_LITE_SHARE_DIR:-/usr/share}
  unit_dir=${INSTALL_KUBE_LITE_UNIT_DIR:-${INSTALL_KUBE_LITE_SYSTEMD_DIR:-}}
  service=${INSTALL_KUBE_LITE_SERVICE:-}
  if [ -z "$service" ]; then
    if [ -d /run/systemd/system ] && have systemctl; then service=systemd
    elif have rc-service && [ -d /run/openrc ]; then service=openrc
    else service=none; fi
  fi
  case $service in
    systemd) unit=${unit_dir:-/etc/systemd/system}/$system.service ;;
    openrc) unit=${unit_dir:-/etc/init.d}/$system ;;
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
  pid_file=$run_dir/$system.pid
}
# An agent needs the address and the token of its server once.
agent_settings() {
  [ ! -e "$(value data-dir d DATA_DIR /var/lib/kube-lite)/agent/join.json" ] || return 0
  how="KUBE_LITE_URL=https://SERVER:6443 KUBE_LITE_TOKEN=K10... $self agent"
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
  bundled=$(sum_of "runtime-$arch.tar.gz")
  if is_true PREFER_BUNDLED_BIN || has_flag prefer-bundled-bin; then
    [ -n "$bundled" ] || [ -x "$data_dir/bin/containerd" ] ||
      fail "there is no containerd in this release" "do not prefer bundled programs"
    missing=bundled
  fi
  if [ -z "$missing" ] && containerd_is_old; then
    [ -n "$bundled" ] ||
      fail "containerd $containerd_version is too old: kube-lite needs 1.6" "install a newer one"
    missing=bundled
  fi
  if [ -n "$missing" ] && [ -n "$bundled" ]; then
    bundled_runtime
    done_step "of the release, in $data_dir/bin"
  elif [ -n "$missing" ] && [ "$missing" != bundled ]; then
    [ -z "$bundle" ] ||
      fail "the bundle has no container runtime, and $missing is not installed" \
        "install $missing, or use a bundle made with xtask release --runtime"
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
containerd_is_old() {
  containerd_version=$(PATH=$data_dir/bin:$PATH containerd --version 2>/dev/null |
    sed -n 's/.* v\{0,1\}\([0-9][0-9]*\.[0-9][0-9]*\)\..*/\1/p' | head -n 1)
  case $containerd_version in 0.* | 1.[0-5]) return 0 ;; *) return 1 ;; esac
}
# Installs containerd, its shim and runc of the release into the data directory.
bundled_runtime() {
  old=$(cat "$data_dir/bin/.runtime" 2>/dev/null || true)
  [ "$old" != "$bundled" ] || return 0
  fetch "runtime-$arch.tar.gz"
  mkdir -p "$cache/runtime" && gzip -dc "$fetched" | tar -xf - -C "$cache/runtime" ||
    fail "cannot unpack runtime-$arch.tar.gz: $(room "$cache")"
  for file in "$cache/runtime"/*; do put "$file" "$data_dir/bin/${file##*/}" 755; done
  echo "$bundled" >"$data_dir/bin/.runtime"
}
# Copies the image archives of the bundle to where the node imports them.
bundled_images() {
  [ -n "$bundle" ] && [ -n "$(sum_of "images-$arch.tar")" ] || return 0
  has_flag disable-agent && return
  begin images
  fetch "images-$arch.tar"
  mkdir -p "$cache/images" && tar -xf "$fetched" -C "$cache/images" ||
    fail "cannot unpack images-$arch.tar: $(room "$cache")"
  kept=$changed count=0
  for file in "$cache/images"/*; do
    put "$file" "$data_dir/agent/images/${file##*/}" 644
    count=$((count + 1))
  done
  # Images need no restart.
  [ "$kept" = "$changed" ] && what="$count archives, unchanged" || what="$count archives"
  changed=$kept
  done_step "$what in $data_dir/agent/images"
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
# Finds the program: the path is in `built`.
find_program() {
  url=${INSTALL_KUBE_LITE_URL:-$release_url}
  if [ -n "${INSTALL_KUBE_LITE_BIN:-}" ]; then
    begin program
    built=$INSTALL_KUBE_LITE_BIN
    [ -x "$built" ] || fail "INSTALL_KUBE_LITE_BIN=$built is not an executable file"
    done_step "taken from $built"
  elif is_true SKIP_DOWNLOAD || [ "${INSTALL_KUBE_LITE_SKIP_DOWNLOAD:-}" = binary ]; then
    begin program
    built=$program
    [ -x "$built" ] || fail "no program is at $built, and INSTALL_KUBE_LITE_SKIP_DOWNLOAD is set" \
      "put kube-lite there, or unset the variable"
    done_step "$built, as it is"
  elif [ -n "$here" ] && [ -e "$here/sha256sum-$arch.txt" ]; then
    bundle=$here
    release_program
  elif [ -z "${INSTALL_KUBE_LITE_URL:-}${INSTALL_KUBE_LITE_VERSION:-}" ] &&
    [ -z "${INSTALL_KUBE_LITE_CHANNEL:-}" ] && [ -n "$here" ] &&
    grep -qs '^name = "kube-lite"' "$here/Cargo.toml"; then
    build
  else
    [ -n "$url${INSTALL_KUBE_LITE_ARTIFACT_URL:-}" ] || {
      step_name=release
      fail "this installer has no release host" \
        "set INSTALL_KUBE_LITE_URL, or run install.sh in a checkout or an unpacked bundle"
    }
    release_program
  fi
}

# --- the release ----------------------------------------------------------------------------------

# Downloads a URL, and continues the file if it exists. The status is that of the downloader; the
# text of an error is in $work/transfer.
transfer() { # URL, file
  case $downloader in
    curl) curl -fsSL --connect-timeout 15 --speed-limit 1000 --speed-time 30 -C - \
      -o "$2" "$1" 2>"$work/transfer" ;;
    wget) wget -q -T 30 -c -O "$2" "$1" 2>"$work/transfer" ;;
  esac
}
# Downloads a URL; repeats a transfer that was cut off. Fails at once if the host has no such file.
download() { # URL, file
  attempt=0 status=0
  while :; do
    transfer "$1" "$2" &
    show_transfer $! "$2" "${1##*/}"
    wait "$transferring" && return 0 || status=$?
    case $downloader$status in
      # No such file; with a complete file also: nothing to continue.
      curl22 | wget8) [ -s "$2" ] && [ $attempt = 0 ] && rm -f "$2" || return 1 ;;
      curl33 | curl36) rm -f "$2" ;; # the host cannot continue a file
      curl23) return 1 ;;
    esac
    ! grep -qi 'no space left' "$work/transfer" || return 1
    attempt=$((attempt + 1))
    [ $attempt -lt 5 ] || return 1
    sleep 1
  done
}
# Reports the progress of a download after two seconds: each second on a terminal, every ten
# seconds elsewhere.
show_transfer() { # process, file, name
  transferring=$1 ticks=0
  while kill -0 "$transferring" 2>/dev/null; do
    sleep 0.1 2>/dev/null || sleep 1
    ticks=$((ticks + 1))
    [ $ticks -gt 20 ] && [ $((ticks % 10)) = 0 ] || continue
    size=$(($(stat -c %s "$2" 2>/dev/null || echo 0) / 1048576))
    if [ -t 1 ]; then printf '\r       %-60s' "downloading $3: $size MB"
    elif [ $((ticks % 100)) = 30 ]; then note "downloading $3: $size MB"; fi
  done
  [ ! -t 1 ] || [ $ticks -le 20 ] || printf '\r%-70s\r' ''
}
transfer_error() { # the last words of the downloader
  text=$(tail -n 1 "$work/transfer" 2>/dev/null)
  printf '%s\n' "${text:-$downloader status $status}"
}
# The free space of the disk with a directory.
room() {
  df -Pk "$1" 2>/dev/null |
    awk -v d="$1" 'NR == 2 {printf "%d MB free on the disk of %s\n", $4 / 1024, d}'
}
sum_of() { [ -z "$sums" ] || awk -v n="$1" '$2 == n {print $1}' "$sums"; }
# Provides a file of the release; its path is in `fetched`. Its checksum is verified.
fetch() { # name
  want=$(sum_of "$1")
  [ -n "$want" ] || fail "release $version has no $1" "choose another version"
  prepare_cache
  if [ -n "$bundle" ]; then
    fetched=$bundle/$1
    [ -e "$fetched" ] || fail "$fetched is missing" "unpack the bundle again"
    [ "$(sum "$fetched")" = "$want" ] ||
      fail "$1 is damaged: its checksum is not that of the release$unchanged" \
        "unpack the bundle again"
    return
  fi
  # The name is the checksum: an unfinished download continues only into the same file.
  fetched=$cache/$want
  [ ! -e "$fetched" ] || [ "$(sum "$fetched")" != "$want" ] || return 0
  for base in ${INSTALL_KUBE_LITE_ARTIFACT_URL:-} $url; do
    keep_cache=1
    if download "$base/$version/$1" "$fetched"; then
      keep_cache=''
      [ "$(sum "$fetched")" != "$want" ] || return 0
      size=$(stat -c %s "$fetched")
      rm -f "$fetched"
      why="$base/$version/$1 is damaged ($size bytes): its checksum is not that of the release"
    else
      why="cannot download $base/$version/$1: $(transfer_error)"
      case $downloader$status in
        curl23) why="$why ($(room "$cache"))" keep_cache='' ;;
        curl22 | wget8) keep_cache='' ;;
      esac
      ! grep -qi 'no space left' "$work/transfer" || keep_cache=''
    fi
  done
  fail "$why$unchanged" "run this script again"
}
prepare_cache() {
  [ -z "$cache" ] || return 0
  folder=$cache_dir/download
  mkdir -p "$folder" || fail "cannot create $folder"
  [ ! -L "$folder" ] && [ "$(stat -c %u "$folder")" = 0 ] && chmod 700 "$folder" ||
    fail "$folder does not belong to root" "remove it"
  cache=$folder
}
find_downloader() {
  if have curl; then downloader=curl
  elif have wget; then downloader=wget
  else fail "neither curl nor wget is installed" "install curl"; fi
}
# Verifies an Ed25519 signature in minisign's format: that of the file and that of the comment,
# which names version and architecture.
verify_signature() { # file, signature
  key=${INSTALL_KUBE_LITE_PUBLIC_KEY:-$public_key}
  [ -n "$key" ] || fail "this installer has no public key to verify a release with" \
    "use the install.sh of the release host, or set INSTALL_KUBE_LITE_PUBLIC_KEY"
  wrong="the signature of $version is wrong: it is not from the key $key$unchanged"
  wrong_fix="check INSTALL_KUBE_LITE_URL; if that is right, the host or a proxy changes files"
  case $(openssl version 2>/dev/null) in
    "OpenSSL "[3-9]* | "OpenSSL "[1-9][0-9]*) verify_with_openssl "$1" "$2" ;;
    *)
      have minisign || fail "cannot verify the signature of $version: neither openssl 3 nor \
minisign is installed$unchanged" "$(have apk && echo apk add openssl ||
          echo install openssl 3 or minisign) and run this script again"
      minisign -V -q -m "$1" -x "$2" -P "$key" >/dev/null 2>&1 || fail "$wrong" "$wrong_fix" ;;
  esac
  comment=$(sed -n '3s/^trusted comment: //p' "$2")
  [ "$comment" = "kube-lite $version $arch" ] ||
    fail "the host serves '$comment' as $version for $arch$unchanged" "$wrong_fix"
}
verify_with_openssl() { # file, signature
  decode() { openssl base64 -d -A; }
  printf '%s' "$key" | decode >"$work/key" 2>/dev/null || true
  sed -n 2p "$2" | tr -d '\n' | decode >"$work/first" 2>/dev/null || true
  sed -n 4p "$2" | tr -d '\n' | decode >"$work/second" 2>/dev/null || true
  [ "$(stat -c %s "$work/key")" = 42 ] && [ "$(head -c 2 "$work/key")" = Ed ] ||
    fail "the public key $key is not a key of minisign" "use the install.sh of the release host"
  [ "$(stat -c %s "$work/first")" = 74 ] && [ "$(stat -c %s "$work/second")" = 64 ] &&
    [ "$(head -c 2 "$work/first")" = Ed ] || fail "$wrong" "$wrong_fix"
  # SubjectPublicKeyInfo of Ed25519, RFC 8410.
  {
    printf '\060\052\060\005\006\003\053\145\160\003\041\000'
    tail -c 32 "$work/key"
  } >"$work/key.der"
  tail -c 64 "$work/first" >"$work/first.sig"
  {
    cat "$work/first.sig"
    sed -n '3s/^trusted comment: //p' "$2" | tr -d '\n'
  } >"$work/commented"
  is_signed() {
    openssl pkeyutl -verify -pubin -keyform DER -inkey "$work/key.der" -rawin -in "$1" \
      -sigfile "$2" >/dev/null 2>&1
  }
  is_signed "$1" "$work/first.sig" && is_signed "$work/commented" "$work/second" ||
    fail "$wrong" "$wrong_fix"
}
# The version of the release: of the bundle, the variable, or the channel.
find_version() {
  if [ -n "$bundle" ]; then version=$(cat "$bundle/version" 2>/dev/null || true)
  elif [ -n "${INSTALL_KUBE_LITE_VERSION:-}" ]; then version=$INSTALL_KUBE_LITE_VERSION
  else
    channel=${INSTALL_KUBE_LITE_CHANNEL:-stable}
    case $channel in
      *[!A-Za-z0-9._-]* | .*) fail "INSTALL_KUBE_LITE_CHANNEL=$channel is not a channel" ;;
    esac
    [ -n "$url" ] || fail "a mirror has no channels" "set INSTALL_KUBE_LITE_VERSION"
    download "$url/channels/$channel" "$work/channel" ||
      fail "channel $channel is not at $url: $(transfer_error)$unchanged" \
        "check INSTALL_KUBE_LITE_URL and INSTALL_KUBE_LITE_CHANNEL"
    version=$(head -c 100 "$work/channel" | tr -d '[:space:]')
  fi
  case $version in
    *+k3s*)
      fail "$version is a version of k3s$unchanged" \
        "unset INSTALL_K3S_VERSION, or name a version of kube-lite" ;;
    '' | *[!A-Za-z0-9._-]* | .* | -*)
      fail "'$version' is not a version$unchanged" \
        "check INSTALL_KUBE_LITE_URL and INSTALL_KUBE_LITE_VERSION" ;;
  esac
}
# Finds, verifies and unpacks the program of a release.
release_program() {
  begin release
  [ -n "$bundle" ] || find_downloader
  find_version
  name=sha256sum-$arch.txt
  if [ -n "$bundle" ]; then
    cp "$bundle/$name" "$bundle/$name.sig" "$work/" 2>/dev/null ||
      fail "$bundle/$name.sig is missing" "unpack the bundle again"
  else
    for base in ${INSTALL_KUBE_LITE_ARTIFACT_URL:-} $url; do
      rm -f "$work/$name" "$work/$name.sig"
      download "$base/$version/$name" "$work/$name" &&
        download "$base/$version/$name.sig" "$work/$name.sig" && break
    done
    [ -s "$work/$name" ] && [ -s "$work/$name.sig" ] ||
      fail "no release $version for $arch at $base: $(transfer_error)$unchanged" \
        "check INSTALL_KUBE_LITE_URL and INSTALL_KUBE_LITE_VERSION"
  fi
  verify_signature "$work/$name" "$work/$name.sig"
  sums=$work/$name
  want_program=$(sum_of "kube-lite-$arch")
  if [ -x "$program" ] && [ "$(sum "$program")" = "$want_program" ]; then
    built=$program
    done_step "$version, verified, is installed"
    return
  fi
  fetch "kube-lite-$arch.gz"
  unpack "$fetched" "kube-lite-$arch" "$cache/kube-lite"
  built=$cache/kube-lite
  done_step "$version, signature and checksum verified"
}
unpack() { # file, name of its content in the checksums, target
  gzip -dc "$1" >"$3" 2>"$work/unpack" ||
    fail "cannot unpack $2: $(tail -n 1 "$work/unpack") ($(room "$cache"))$unchanged"
  [ "$(sum "$3")" = "$(sum_of "$2")" ] ||
    fail "$2 is damaged: its checksum is not that of the release$unchanged"
  chmod 755 "$3"
}

# --- from source ----------------------------------------------------------------------------------

build() {
  begin build
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
  note "building from source with profile $profile (minutes the first time)"
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
  directory=$(dirname "$2")
  mkdir -p "$directory" && cp "$1" "$2.new" 2>"$work/put" && chmod "$3" "$2.new" &&
    mv -f "$2.new" "$2" || {
    rm -f "$2.new"
    fail "cannot write $2: $(sed 's/.*: //' "$work/put") ($(room "$directory"))" \
      "free space and run this script again"
  }
  changed="$changed $2" unchanged=''
}
# Whether the memory controller of cgroups is on. A Raspberry Pi turns it on by its command line.
has_memory_controller() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    grep -qw memory /sys/fs/cgroup/cgroup.controllers
  else awk '$1 == "memory" && $4 == 1 {on = 1} END {exit !on}' /proc/cgroups; fi
}
memory_controller() {
  has_flag disable-agent && return
  has_memory_controller && return
  cmdline=''
  for file in /boot/cmdline.txt /boot/firmware/cmdline.txt; do
    [ ! -f "$file" ] || cmdline=$file
  done
  [ -n "$cmdline" ] || return 0 # the host check reports it
  begin cgroups
  options='cgroup_memory=1 cgroup_enable=memory'
  if ! grep -qw cgroup_enable=memory "$cmdline"; then
    is_true FIX_CGROUP ||
      fail "the memory controller is off, which nodes need" \
        "add $options to the line in $cmdline and reboot, or set INSTALL_KUBE_LITE_FIX_CGROUP=true"
    [ "$(grep -c . "$cmdline")" = 1 ] ||
      fail "$cmdline has more than one line" "add $options to its first line and reboot"
    [ -e "$cmdline.kube-lite-backup" ] || cp -p "$cmdline" "$cmdline.kube-lite-backup" ||
      fail "cannot write $cmdline.kube-lite-backup"
    sed -e "s/[[:space:]]*\$/ $options/" -e 's/ cgroup_disable=memory//' "$cmdline" >"$work/cmdline"
    kept=$changed
    put "$work/cmdline" "$cmdline" "$(stat -c %a "$cmdline")"
    changed=$kept
  fi
  reboot=1
  done_step "the memory controller is on after a reboot ($cmdline)"
}
host_check() {
  [ -z "$reboot" ] || return 0
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
  names='(KUBE_LITE|K3S|CONTAINERD|AWS)_[A-Z0-9_]+'
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
Description=$system: Kubernetes on this machine
Wants=network-online.target
After=network-online.target

[Service]
Type=$INSTALL_KUBE_LITE_TYPE
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
description="$system: Kubernetes on this machine"
supervisor=supervise-daemon
set -a; [ ! -f $env_file ] || . $env_file; set +a
command="$program"
command_args="$mode \$KUBE_LITE_FLAGS"
output_log="$log"
error_log="$log"
pidfile="/run/$system.pid"
respawn_delay=2
# Without a limit, which counts all restarts since the start.
respawn_max=0
# At shutdown of the machine pods get --shutdown-grace-period.
retry="TERM/90/KILL/5"
rc_ulimit="-n 1048576"
depend() { want cgroups; use net; after network-online firewall; }
start_pre() { modprobe -q -a overlay br_netfilter nf_tables bridge veth || true; }
U
      put "$work/unit" "$unit" 755 ;;
  esac
}
server_pid() { # of the running server, empty if none runs
  case $service in
    systemd) systemctl show -p MainPID --value "$system" 2>/dev/null | grep -vx 0 || true ;;
    openrc) rc-service -q "$system" status >/dev/null 2>&1 && echo supervised || true ;;
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
    systemd) journalctl -u "$system" --since "$started_at" -o cat --no-pager 2>/dev/null || true ;;
    *) tail -c "+$log_from" "$log" 2>/dev/null || true ;;
  esac
}
not_started() { is_true SKIP_ENABLE || is_true SKIP_START || [ -n "$reboot" ]; }
start() {
  begin service
  log_from=$(($(stat -c %s "$log" 2>/dev/null || echo 0) + 1)) \
    started_at=$(date '+%Y-%m-%d %H:%M:%S')
  if not_started; then
    what='not enabled, not started'
    is_true SKIP_ENABLE || case $service in
      systemd) [ ! -d /run/systemd/system ] ||
        { systemctl daemon-reload && systemctl enable -q "$system" && what='starts at boot'; } ;;
      openrc) [ ! -d /run/openrc ] ||
        { rc-update -q add "$system" default && what='starts at boot'; } ;;
    esac
    done_step "$what"
    return
  fi
  before=$(server_pid)
  if [ -n "$before" ] && [ -z "$changed" ] && ! is_true FORCE_RESTART; then
    done_step "nothing changed, left running"
    return
  fi
  if [ -z "$before" ] && "$program" status --data-dir="$data_dir" >/dev/null 2>&1; then
    fail "another server uses $data_dir, and this script did not start it" \
      "stop it, or choose another directory with --data-dir"
  fi
  case $service in
    systemd)
      systemctl daemon-reload && systemctl enable -q "$system" &&
        systemctl restart --no-block "$system" ||
        fail "systemd cannot start the service" "systemctl status $system"
      done_step "systemd, starts at boot" ;;
    openrc)
      rc-update -q add "$system" default && rc-service -q "$system" restart ||
        fail "OpenRC cannot start the service" "rc-service $system start"
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
      done_step "in the background (no service manager runs here; after a reboot: $self)" ;;
  esac
}
# Waits until the node is Ready. The status socket reports readiness; an error of the process ends
# the wait.
wait_ready() {
  ! not_started || return 0
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
  [ "$service" != systemd ] || show_log="journalctl -u $system"
  [ -n "$fix" ] || fix="read the log ($show_log)"
  fail "$1${reason:+: $reason}" "$fix; then run this script again"
}

# --- kubectl --------------------------------------------------------------------------------------

kubectl_program() {
  begin kubectl
  how=''
  kubectl_page=https://kubernetes.io/docs/tasks/tools/install-kubectl-linux/
  have kubectl || [ -x "$bin_dir/kubectl" ] || released_kubectl || {
    go=$(command -v go || echo /usr/local/go/bin/go)
    if [ ! -x "$go" ]; then
      how="kubectl is missing and cannot be downloaded: $kubectl_page"
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
        put "$source/kubectl" "$bin_dir/kubectl" 755
        record "$bin_dir/kubectl"
      else
        how="kubectl cannot be built ($(tail -n 1 "$work/go")): $kubectl_page"
      fi
    fi
  }
  done_step "${how:-$(command -v kubectl || echo "$bin_dir/kubectl")}"
}
# Remembers a file for the uninstallation.
record() {
  grep -qsx "$1" "$config_dir/installed-files" || echo "$1" >>"$config_dir/installed-files"
}
# kubectl of the release, or of Kubernetes' download host with its checksum.
released_kubectl() {
  ! is_true BIN_DIR_READ_ONLY || return 1
  if [ -n "$(sum_of "kubectl-$arch.gz")" ]; then
    fetch "kubectl-$arch.gz"
    unpack "$fetched" "kubectl-$arch" "$cache/kubectl"
  else
    [ -z "$bundle" ] && { have curl || have wget; } || return 1
    find_downloader
    prepare_cache
    case $arch in x86_64) machine=amd64 ;; *) machine=arm64 ;; esac
    from=https://dl.k8s.io/release/v1.${kubernetes#0.}/bin/linux/$machine/kubectl
    download "$from.sha256" "$work/kubectl.sha256" && download "$from" "$cache/kubectl" || return 1
    [ "$(sum "$cache/kubectl")" = "$(head -c 64 "$work/kubectl.sha256")" ] || {
      note "kubectl from $from is damaged and was not installed"
      return 1
    }
  fi
  put "$cache/kubectl" "$bin_dir/kubectl" 755
  record "$bin_dir/kubectl"
}
# ctr and crictl for kube-lite's containerd, and the configuration of crictl. Programs of the data
# directory get a script on PATH; those of the distribution keep theirs, which uses another socket.
runtime_clients() {
  has_flag disable-agent && return
  is_true BIN_DIR_READ_ONLY && return
  case " $flags " in *" --container-runtime-endpoint"*) return ;; esac
  [ "${INSTALL_KUBE_LITE_SYMLINK:-}" != skip ] || return 0
  socket=$run_dir/containerd/containerd.sock
  found=''
  for client in ctr crictl; do
    [ ! -e "$bin_dir/$client" ] || grep -qsx "$bin_dir/$client" "$config_dir/installed-files" ||
      continue
    real=$data_dir/bin/$client
    if [ ! -x "$real" ]; then
      [ "${INSTALL_KUBE_LITE_SYMLINK:-}" = force ] || continue
      real=$(PATH=$(echo ":$PATH:" | sed "s|:$bin_dir:|:|") command -v "$client") || continue
    fi
    case $client in
      ctr) printf '#!/bin/sh\nCONTAINERD_ADDRESS=%s CONTAINERD_NAMESPACE=k8s.io exec %s "$@"\n' \
        "\${CONTAINERD_ADDRESS:-$socket}" "$real" ;;
      crictl) printf '#!/bin/sh\nCONTAINER_RUNTIME_ENDPOINT=%s exec %s "$@"\n' \
        "\${CONTAINER_RUNTIME_ENDPOINT:-unix://$socket}" "$real" ;;
    esac >"$work/client"
    put "$work/client" "$bin_dir/$client" 755
    record "$bin_dir/$client"
    found="$found $client"
  done
  if { have crictl || [ -x "$data_dir/bin/crictl" ]; } && [ ! -e /etc/crictl.yaml ]; then
    printf 'runtime-endpoint: unix://%s\nimage-endpoint: unix://%s\n' "$socket" "$socket" \
      >"$work/crictl"
    put "$work/crictl" /etc/crictl.yaml 644
    record /etc/crictl.yaml
    found="$found /etc/crictl.yaml"
  fi
  [ -z "$found" ] || { begin clients; done_step "for kube-lite's containerd:$found"; }
}
# Completion files, for shells that have a folder for them.
completion_files() {
  begin completion
  found=''
  for entry in bash:bash-completion/completions/kube-lite zsh:zsh/vendor-completions/_kube-lite \
    zsh:zsh/site-functions/_kube-lite fish:fish/vendor_completions.d/kube-lite.fish; do
    target=$share_dir/${entry#*:} shell=${entry%%:*}
    [ -d "${target%/*}" ] || continue
    case "$found " in *" $shell "*) continue ;; esac
    "$program" completion "$shell" >"$work/completion" 2>/dev/null || continue
    put "$work/completion" "$target" 644
    record "$target"
    found="$found $shell"
  done
  [ -z "$found" ] || done_step "for$found"
}
# Copies the administrator's kubeconfig for the calling user. A file of the user stays; only a copy
# made here is updated.
kubectl_config() {
  begin kubeconfig
  hint=''
  ! not_started || {
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
system='$system' program='$program' bin_dir='$bin_dir' script_dir='$script_dir'
config_dir='$config_dir' env_file='$env_file' cache_dir='$cache_dir'
service='$service' unit='$unit' log='$log' data_dir='$data_dir' run_dir='$run_dir'
kubelet_dir='$kubelet_dir' log_dir='$log_dir' cni_conf_dir='$cni_conf_dir'
cni_bin_dir='$cni_bin_dir' cgroup_root='$cgroup_root' bridge='$bridge' table='$table'
pid_file='$pid_file' kubeconfig='$kubeconfig'
read_only='$(is_true BIN_DIR_READ_ONLY && echo 1 || true)'
S
  {
    printf '#!/bin/sh\n# Stops %s and everything it runs: pods, their mounts and network.\n' \
      "$system"
    printf '# Keeps the data. Written by install.sh.\nset -u\n'
    cat "$work/settings"; common_body; killall_body; } >"$work/killall"
  {
    printf '#!/bin/sh\n# Removes %s from this machine. Written by install.sh.\n' "$system"
    printf '# usage: %s-uninstall.sh [--yes] [--keep-data]\nset -u\n' "$system"
    cat "$work/settings"; common_body; uninstall_body; } >"$work/uninstall"
  # These scripts do not affect the service: a change here restarts nothing.
  kept=$changed
  put "$work/killall" "$script_dir/$system-killall.sh" 755
  put "$work/uninstall" "$script_dir/$system-uninstall.sh" 755
  changed=$kept
}
# The beginning of both scripts.
common_body() { cat <<'B'
# If another kubelet uses the shared directories, they stay.
shared=''
for other in /etc/systemd/system/k3s.service /etc/systemd/system/k3s-agent.service \
  /lib/systemd/system/kubelet.service /usr/lib/systemd/system/kubelet.service; do
  [ ! -e "$other" ] || [ "$kubelet_dir" != /var/lib/kubelet ] || shared=$other
done
# Further instances of kube-lite: they have an environment file each.
other_instances() {
  for other in "$config_dir"/kube-lite*.env; do
    [ ! -e "$other" ] || [ "$other" = "$env_file" ] || echo "$other"
  done
}
B
}
killall_body() { cat <<'B'
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
  systemd) systemctl stop "$system" 2>/dev/null ;;
  openrc) rc-service -q "$system" stop 2>/dev/null ;;
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
others=$(other_instances)
for dir in /proc/[0-9]*; do
  pid=${dir#/proc/} line=$(command_of "${dir#/proc/}")
  ours "$pid" || continue
  case ${line%% *} in
    */containerd | containerd)
      case $line in *"$run_dir/"* | *"$data_dir/"*) kill "$pid"; gone "$pid" ;; esac ;;
  esac
done
# Ids of the containers: the runtime keeps their state outside of the run directory.
tasks=$run_dir/containerd/containerd/io.containerd.runtime.v2.task/k8s.io
containers=$(ls "$tasks" 2>/dev/null)
sockets=$(cat "$tasks"/*/address "$tasks"/*/bootstrap.json 2>/dev/null |
  grep -o '/run/containerd/s/[0-9a-f]*' | sort -u)
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
for id in $containers; do
  rm -rf "/run/containerd/runc/k8s.io/$id" /var/lib/cni/results/*-"$id"-*
done
for socket in $sockets; do rm -f "$socket"; done
for top in "$run_dir" "$kubelet_dir/pods" "$kubelet_dir/plugins" "$data_dir"; do
  awk -v top="$top/" 'index($2, top) == 1 {print $2}' /proc/mounts | sort -r |
    while read -r mount; do umount -l "$mount"; done
done
if command -v ip >/dev/null; then
  # The host ends of the pods' veth pairs are ports of the bridge.
  ip -o link show master "$bridge" 2>/dev/null | sed 's/^[0-9]*: \([^@:]*\).*/\1/' |
    while read -r link; do ip link del "$link" 2>/dev/null; done
  for link in "$bridge" kube-lite-svc; do ip link del "$link" 2>/dev/null; done
  # The overlay's links have flannel's names; if flannel, k3s or another instance runs, too, the
  # links belong to it.
  [ -e /run/flannel/subnet.env ] || [ -n "$others" ] ||
    for link in flannel-wg flannel-wg-v6 $(ip -o link show 2>/dev/null |
      sed -n 's/^[0-9]*: \(flannel\(-v6\)\{0,1\}\.[0-9]*\)[@:].*/\1/p'); do
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
# Rules that k3s left in iptables, unless k3s, a kubelet or another network plugin may use them.
[ -n "$shared" ] || [ -n "$others" ] || [ -e /run/flannel/subnet.env ] ||
  for tool in iptables ip6tables; do
  command -v "$tool-save" >/dev/null && command -v "$tool-restore" >/dev/null || continue
  rules=$("$tool-save" 2>/dev/null)
  case $rules in
    *KUBE-* | *CNI-* | *flannel* | *FLANNEL*)
      printf '%s\n' "$rules" | grep -vE 'KUBE-|CNI-|CNI:|flannel|FLANNEL' | "$tool-restore" ;;
  esac
done
exit 0
B
}
uninstall_body() { cat <<'B'
yes='' keep=''
for arg in "$@"; do
  case $arg in
    --yes) yes=1 ;;
    --keep-data) keep=1 ;;
    *) echo "usage: $0 [--yes] [--keep-data]" >&2; exit 64 ;;
  esac
done
others=$(other_instances)
plan() {
  echo "$unit"
  echo "$env_file"
  if [ -z "$others" ]; then
    echo "$config_dir/installed-files"
    echo "$config_dir/installed-packages"
    echo "$config_dir/installed-kubeconfig"
    cat "$config_dir/installed-files" 2>/dev/null
    echo "$cache_dir/download"
  fi
  echo "$kubeconfig"
  while read -r sum file; do
    [ "$(sha256sum "$file" 2>/dev/null | cut -d' ' -f1)" != "$sum" ] || echo "$file"
  done 2>/dev/null <"$config_dir/installed-kubeconfig"
  [ -n "$others" ] || for link in "$cni_bin_dir"/*; do
    [ "$(readlink "$link")" != "$program" ] || echo "$link"
  done
  echo "$cni_conf_dir/10-kube-lite.conflist"; echo "$log"; echo "$run_dir"
  if [ -z "$shared" ]; then
    echo "$log_dir/pods"
    echo "$log_dir/containers"
    [ -n "$keep" ] || echo "$kubelet_dir"
  fi
  [ -n "$keep" ] || echo "$data_dir"
  [ -n "$others" ] || [ -n "$read_only" ] || echo "$program"
  echo "$script_dir/$system-killall.sh"; echo "$script_dir/$system-uninstall.sh"
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
[ -z "$others" ] || echo "Left for another instance ($(echo $others)): $program"
if [ -z "$yes" ] && [ -t 0 ]; then
  printf 'Remove all of this? [y/N] '
  read -r answer
  case $answer in y | Y | yes) yes=1 ;; esac
fi
[ -n "$yes" ] || { echo "Nothing was removed. To do it: $0 --yes"; exit 0; }
[ "$(id -u)" = 0 ] || { echo "needs root: sudo $0" >&2; exit 1; }
"$script_dir/$system-killall.sh"
# On a machine without shared mounts, kube-lite mounts the kubelet's folder over itself.
mounted_over_itself() {
  awk -v dir="$kubelet_dir" '$5 == dir && $4 != "/" {
    own = length(dir); root = length($4)
    if (substr(dir, own - root + 1) == $4 || substr($4, root - own + 1) == dir) found = 1
  } END {exit !found}' /proc/self/mountinfo
}
[ -n "$shared" ] || ! mounted_over_itself || umount -l "$kubelet_dir"
case $service in
  systemd) systemctl disable -q "$system" 2>/dev/null ;;
  openrc) rc-update -q del "$system" default 2>/dev/null ;;
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
case $service in
  systemd) systemctl daemon-reload ;;
  # OpenRC keeps the group of a service.
  openrc)
    for group in "$system" "openrc.$system" "openrc/$system" "unified/$system"; do
      rmdir "/sys/fs/cgroup/$group" 2>/dev/null
    done ;;
esac
# The groups are empty by now; rmdir fails for a group that still has a process.
[ -n "$shared" ] ||
  for group in "/sys/fs/cgroup/$cgroup_root/kubepods" /sys/fs/cgroup/*/"$cgroup_root/kubepods"; do
  [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
  [ -z "$cgroup_root" ] || rmdir "${group%/kubepods}" 2>/dev/null
done
# Folders that are empty now.
rmdir /run/containerd/runc/k8s.io /run/containerd/runc /run/containerd/s /run/containerd \
  /var/lib/cni/results /var/lib/cni "$cache_dir" 2>/dev/null
for folder in "$cni_conf_dir" "$cni_bin_dir"; do
  case $folder in */cni/*) rmdir "$folder" "${folder%/*}" 2>/dev/null ;; esac
done
echo "$list" | while read -r path; do
  case $path in */.kube/config) rmdir "${path%/config}" 2>/dev/null ;; esac
done
rmdir "$config_dir/config.yaml.d" "$config_dir" 2>/dev/null || [ ! -d "$config_dir" ] ||
  echo "Left: $config_dir, which contains other files"
echo "$system was removed."
exit 0
B
}

next() {
  echo
  [ -z "$reboot" ] || { echo "Installed. Restart this machine: $system starts with it."; return; }
  if not_started; then
    echo "Installed, not started (INSTALL_KUBE_LITE_SKIP_START or INSTALL_KUBE_LITE_SKIP_ENABLE)."
    return
  fi
  echo "Ready."
  [ -z "$hint" ] || echo "  first      $hint"
  if [ "$mode" = agent ]; then
    echo "  look       kubectl get nodes on the server, kube-lite status here"
    echo "  leave      kubectl delete node on the server, then $script_dir/$system-uninstall.sh"
    return
  fi
  has_flag disable-agent ||
    echo "  try        kubectl create deployment web --image=nginx &&" \
      "kubectl expose deployment web --port=80"
  echo "  look       kubectl get all -A    kube-lite status"
  echo "  leave      $script_dir/$system-uninstall.sh"
  [ -z "$how" ] || echo "  get        $how"
}

main() {
  settings "$@"
  find_program
  memory_controller
  container_runtime
  bundled_images
  begin program
  [ "$built" = "$program" ] || put "$built" "$program" 755
  installed=$("$program" --version) || fail "$program does not run on this machine"
  done_step "$installed in $bin_dir"
  host_check
  write_env
  write_unit
  write_leavers
  start
  wait_ready
  # The cluster is administered on the server.
  how='' hint=''
  if [ "$mode" = server ]; then kubectl_program; kubectl_config; fi
  runtime_clients
  completion_files
  next
}
main "$@"
