# A time of day that is wrong for one program, and may be set while it runs: the machine's own stays what it is.
# usage: . tests/lib/clock.sh (after machines.sh), then `clock`, and `with_clock` before what starts the program
cc -shared -fPIC -O1 -o "$scratch/clock.so" tests/lib/clock.c -ldl || exit 1
# A static program loads nothing.
clock_moves=; ldd "$bin" >/dev/null 2>&1 && clock_moves=yes
[ -n "$clock_moves" ] || echo "SKIP the clock of a static program cannot be moved"
head -c 8 /dev/zero > "$scratch/clock"
clock() { # seconds: how far it is off. Written in place, for it is mapped.
  python3 -c 'import struct, sys; f = open(sys.argv[1], "r+b"); f.write(struct.pack("q", int(sys.argv[2])))' "$scratch/clock" "$1"
}
clock_at() { clock $(($1 - $(date +%s))); } # seconds since 1970: what it shall be
with_clock() { KUBE_LITE_TEST_CLOCK=$scratch/clock LD_PRELOAD=$scratch/clock.so "$@"; }
