# Programs that a suite needs and tests/operators/build makes from their modules.
# usage: . tests/lib/modules.sh, before node.sh or machines.sh: modules come from the network, which
# the namespace of a suite does not have.
modules=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite/operators
# build_or_skip NAME...: builds what these lines of tests/operators/versions name. Where it cannot
# be built the suite fails in CI and is skipped elsewhere.
build_or_skip() {
  local name
  [ -z "${KUBE_LITE_TEST_NAMESPACE:-}" ] || return 0
  for name; do
    "$(dirname "${BASH_SOURCE[0]}")/../operators/build" "$name" >/dev/null && continue
    [ "${CI:-}" != true ] || {
      echo "FAIL $name does not build"
      echo "0 passed, 1 failed"
      exit 1
    }
    echo "SKIP ${0##*/}: $name does not build"
    echo "0 passed, 0 failed"
    exit 0
  done
}
