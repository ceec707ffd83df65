# Starts an API server and runs parts of `abuse-*.py` against it; after server.sh.
# usage: . tests/lib/abuse.sh; abuse PART
echo 'abuser,admin,1,"system:masters"' > "$scratch/tokens"
start_server --disable-agent --disable-controller-manager --disable-scheduler --token-auth-file="$scratch/tokens" || exit 1
abuse() { # part: counts what it prints
  ABUSE_PORT=$port ABUSE_TOKEN=abuser ABUSE_PID=$server_pid timeout 300 python3 tests/lib/abuse-"$1".py > "$scratch/said" 2>&1; local status=$?
  cat "$scratch/said"
  passed=$((passed + $(grep -c '^ok ' "$scratch/said"))) failed=$((failed + $(grep -c '^FAIL ' "$scratch/said")))
  [ "$status" = 0 ] || { failed=$((failed + 1)); echo "FAIL the part $1 ended with $status"; }
  equals "nothing panicked" 0 grep -c panicked "$scratch/log"
  equals "the server is ready" ok kubectl get --raw /readyz
}
