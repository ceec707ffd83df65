# Helpers of the suites: a server with scratch directories, checks that count, cleanup in every
# case.
# usage: . tests/lib/server.sh
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bin=${KUBE_LITE_BIN:?set KUBE_LITE_BIN to the kube-lite to test (tests/run does)}
# A suite with a node has one already (node.sh).
scratch=${KUBE_LITE_TEST_SCRATCH:-$(mktemp -d /tmp/kube-lite-test.XXXXXX)}
passed=0 failed=0
server_pid=
# A free port that the kernel does not use for outgoing connections while the server is stopped.
free_port() {
  python3 - <<'P'
import random, socket
while True:
    port = random.randrange(10000, 30000)
    try: socket.socket().bind(("0.0.0.0", port))
    except OSError: continue
    print(port); break
P
}
port=$(free_port)
export KUBECONFIG=$scratch/kubeconfig
start_server() { # flags...
  "$bin" server --config=/dev/null --data-dir="$scratch/data" --https-listen-port="$port" \
    --write-kubeconfig="$KUBECONFIG" --node-ip=127.0.0.1 "$@" >>"$scratch/log" 2>&1 &
  server_pid=$!
  # The server's status socket reports readiness; --wait follows it.
  "$bin" status --data-dir="$scratch/data" --wait=ready --timeout=60 >/dev/null 2>&1 || {
    echo "FAIL server did not get ready"
    tail -n 30 "$scratch/log"
    failed=$((failed + 1))
    return 1
  }
}
stop_server() { # signal
  [ -n "$server_pid" ] || return 0
  kill "-${1:-TERM}" "$server_pid" 2>/dev/null
  # A process that ended during the signal cannot be waited for.
  [ ! -e "/proc/$server_pid" ] || wait "$server_pid" 2>/dev/null
  server_pid=
}
check() { # name, command...: passes if the command succeeds
  local name=$1; shift
  if "$@" >"$scratch/out" 2>&1; then
    passed=$((passed + 1))
    echo "ok   $name"
  else
    failed=$((failed + 1))
    echo "FAIL $name"
    tail -n 15 "$scratch/out"
  fi
}
equals() { # name, want, command...: passes if the command prints exactly this
  local name=$1 want=$2 got; shift 2
  got=$("$@" 2>&1)
  if [ "$got" = "$want" ]; then
    passed=$((passed + 1))
    echo "ok   $name"
  else
    failed=$((failed + 1))
    printf 'FAIL %s\n  want: %s\n  got:  %s\n' "$name" "$want" "$got"
  fi
}
# As `equals`, for a result that takes a moment: repeats the command until it matches.
comes() { # name, want, command...
  local end=$((SECONDS + ${COMES_WITHIN:-30}))
  until [ "$("${@:3}" 2>&1)" = "$2" ] || [ $SECONDS -ge $end ]; do sleep 0.1; done
  equals "$@"
}
refuses() { # name, part of the text, command...: passes if the command fails and prints this
  local name=$1 want=$2 got; shift 2
  if got=$("$@" 2>&1); then
    failed=$((failed + 1))
    printf 'FAIL %s: was not refused: %s\n' "$name" "$got"
    return
  fi
  case $got in
    *"$want"*) passed=$((passed + 1)); echo "ok   $name" ;;
    *) failed=$((failed + 1)); printf 'FAIL %s\n  want: %s\n  got:  %s\n' "$name" "$want" "$got" ;;
  esac
}
# A command of suites that send requests beside a load, so that the body is in no shared file.
body_or_status() { # curl's arguments...: prints the body of the answer, its status if not 200
  local answer status
  answer=$(curl -s -w '\n%{http_code}' "$@")
  status=${answer##*$'\n'}
  if [ "$status" = 200 ]; then printf %s "${answer%$'\n'*}"; else echo "$status"; fi
}
finish() {
  # A suite that ends early fails, whatever it checked before.
  [ "$1" = 0 ] || [ "$failed" != 0 ] || {
    failed=1
    echo "FAIL the suite ended early with status $1"
  }
  stop_server
  # shellcheck disable=SC2046
  [ "$failed" = 0 ] || {
    echo "last lines of the server's log:"
    tail -n 20 "$scratch/log" 2>/dev/null
  }
  if declare -F cleanup >/dev/null; then cleanup; fi
  rm -rf "$scratch"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}
trap 'finish $?; exit $?' EXIT
trap 'exit 1' INT TERM
