# Puts what tests/lib/install builds behind the machine's own programs: helm, a kubectl where there is none, cargo's tools.
# usage: . tests/lib/path.sh
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-lite
export PATH=$PATH:$cache/clients:$cache/tools/bin
