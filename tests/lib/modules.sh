# Programs that a suite needs and tests/operators/build makes from their modules.
# usage: . tests/lib/modules.sh, before node.sh or machines.sh: modules come from the network, which
# the namespace of a suite does not have.
modules=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite/operators
# upstream's programs, of tests/conformance/upstream/build
upstream=${KUBE_LITE_UPSTREAM:-$HOME/.cache/kube-lite-upstream/bin}
# build_or_skip NAME...: builds what these lines of tests/operators/versions name. Where it cannot
# be built the suite fails in CI and is skipped elsewhere.
build_or_skip() {
  local name
  for name; do
    run_or_skip "$name" "$(dirname "${BASH_SOURCE[0]}")/../operators/build" "$name"
  done
}
# Builds upstream's containerd with its shim and runc, and skips or fails in the same way.
build_containerd_or_skip() {
  run_or_skip "upstream's containerd" \
    "$(dirname "${BASH_SOURCE[0]}")/../conformance/upstream/build" containers
}
run_or_skip() { # what is built, command...
  [ -z "${KUBE_LITE_TEST_NAMESPACE:-}" ] || return 0
  "${@:2}" >/dev/null && return 0
  [ "${CI:-}" != true ] || {
    echo "FAIL $1 does not build"
    echo "0 passed, 1 failed"
    exit 1
  }
  echo "SKIP ${0##*/}: $1 does not build"
  echo "0 passed, 0 failed"
  exit 0
}
