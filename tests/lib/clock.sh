# A wrong time of day for one program, which a test can change while the program runs. The clock of
# the machine stays.
# usage: . tests/lib/clock.sh (after machines.sh), then `clock`, and `with_clock` before the command
cc -shared -fPIC -O1 -o "$scratch/clock.so" tests/lib/clock.c -ldl || exit 1
# A static program ignores LD_PRELOAD.
clock_moves=; ldd "$bin" >/dev/null 2>&1 && clock_moves=yes
[ -n "$clock_moves" ] || echo "SKIP the clock of a static program cannot be moved"
head -c 8 /dev/zero > "$scratch/clock"
clock() { # offset in seconds. Written in place, because the library maps the file.
  python3 - "$scratch/clock" "$1" <<'P'
import struct, sys
open(sys.argv[1], "r+b").write(struct.pack("q", int(sys.argv[2])))
P
}
clock_at() { clock $(($1 - $(date +%s))); } # target time in seconds since 1970
with_clock() { KUBE_LITE_TEST_CLOCK=$scratch/clock LD_PRELOAD=$scratch/clock.so "$@"; }
