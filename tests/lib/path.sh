# Adds the programs that tests/lib/install builds to the end of PATH: helm, a kubectl for machines
# without one, cargo's tools.
# usage: . tests/lib/path.sh
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite
export PATH=$PATH:$cache/clients:$cache/tools/bin
