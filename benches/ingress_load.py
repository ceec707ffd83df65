"""Starts the proxies of benches/ingress, loads them in turns and prints the table."""

import argparse, json, os, pathlib, re, signal, statistics, subprocess, sys, time

from ingress_sides import SIDES, fail, start_endpoint

CONNECTIONS = 64
ROUTES = 1000
# Name of a case: scheme, path, load generator, its arguments.
CASES = {
    "HTTP, 1 KB": ("http", "/1k", "wrk", []),
    "HTTP, 1 MB": ("http", "/1m", "wrk", []),
    "TLS, 1 KB": ("https", "/1k", "wrk", []),
    "TLS, 1 MB": ("https", "/1m", "wrk", []),
    "TLS without keep-alive, 1 KB": ("https", "/1k", "wrk", ["-H", "Connection: close"]),
    "HTTP/2, 1 KB": ("https", "/1k", "h2load", ["-m", "8"]),
    "HTTP/2, 1 MB": ("https", "/1m", "h2load", ["-m", "1"]),
}


def load(side, case, seconds):
    """Requests per second, and per second of the proxy's processor time."""
    scheme, path, generator, more = CASES[case]
    cpu = side.cpu()
    if generator == "wrk":
        command = [
            "wrk", "-t2", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout=10s", *more,
            side.url(scheme, path),
        ]
    else:
        command = [
            "h2load", "-t1", f"-c{CONNECTIONS}", f"-D{seconds}", *more, side.url(scheme, path),
        ]
    got = subprocess.run(command, capture_output=True, text=True)
    cpu = side.cpu() - cpu
    if generator == "wrk":
        count = re.search(r"(\d+) requests in ([\d.]+)(m?s),", got.stdout)
        bad = re.search(r"Socket errors:.*|Non-2xx.*", got.stdout)
        # wrk counts the end of each connection without keep-alive as a read error.
        if bad and "Connection: close" in more and "Socket errors" in bad[0]:
            bad = None
        elapsed = count and float(count[2]) / (1000 if count[3] == "ms" else 1)
        requests = count and int(count[1])
    else:
        count = re.search(r"finished in ([\d.]+)(m?s), ([\d.]+) req/s", got.stdout)
        state = re.search(r"(\d+) succeeded, (\d+) failed, (\d+) errored", got.stdout)
        bad = state and (int(state[2]) or int(state[3])) and state[0]
        elapsed = count and float(count[1]) / (1000 if count[2] == "ms" else 1)
        requests = state and int(state[1])
    if not requests or bad:
        print(got.stdout + got.stderr, file=sys.stderr)
        fail(f"{side.name}, {case}: {bad or 'no result'}")
    return requests / elapsed, requests / cpu


def latency(side, rate, seconds):
    """p99 in ms of requests at a fixed rate over 64 connections, and the rate that was reached."""
    log = side.home / "requests"
    log.unlink(missing_ok=True)
    command = [
        "h2load", "-t1", "--h1", f"-c{CONNECTIONS}", f"-D{seconds}",
        f"--rps={rate / CONNECTIONS:.2f}", f"--log-file={log}", side.url("http", "/1k"),
    ]
    subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    if any(row[1] != "200" for row in rows):
        fail(f"{side.name}: not every request at {rate:.0f}/s was answered")
    times = sorted(int(row[2]) for row in rows)
    return times[len(times) * 99 // 100] / 1000, len(rows) / seconds


def median(values):
    return statistics.median(values) if values else None


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread(values):
    if not values:
        return "–"
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))}–{number(max(values))})"


# Measures whose ratio to a peer is bounded: must, aim.
def bounds(measure):
    if measure.endswith("per CPU second"):
        return {"traefik": (">=", 2, None), "nginx": (">=", 0.7, 1)}
    if measure.startswith("memory with"):
        return {"traefik": ("<=", 0.25, None)}
    return {}


def table(results, sides):
    """Markdown, and the number of missed must values. `results`: measure → side → values."""
    ours = "kube-lite" if "kube-lite" in sides else "alone"
    peers = [name for name in ("traefik", "nginx") if name in sides]
    columns = [name for name in sides]
    head = ["measure", *columns, *(f"× {peer}" for peer in peers), ""]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 2) + "---|"]
    missed = 0
    for measure, values in results.items():
        ratios, remarks = [], []
        for peer in peers:
            if not values.get(ours) or not values.get(peer):
                ratios.append("")
                continue
            ratio = median(values[ours]) / median(values[peer])
            ratios.append(f"{ratio:.2f}")
            if peer in bounds(measure):
                sign, must, aim = bounds(measure)[peer]
                holds = ratio >= must if sign == ">=" else ratio <= must
                missed += not holds
                text = f"{'≥' if sign == '>=' else '≤'} {must}× {peer}"
                remark = f"{text} met" if holds else f"{text} MISSED"
                if aim and holds:
                    remark += f", aim {aim}× {'met' if ratio >= aim else 'missed'}"
                remarks.append(remark)
        cells = [spread(values.get(name, [])) for name in columns]
        lines.append("| " + " | ".join([measure, *cells, *ratios, "; ".join(remarks)]) + " |")
    return "\n".join(lines), missed


def arguments():
    parser = argparse.ArgumentParser(prog="benches/ingress")
    for name in (
        "scratch", "program", "upstream", "machine", "address", "endpoint-machine", "endpoint"
    ):
        parser.add_argument(f"--{name}", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--sides", default="kube-lite,traefik,nginx")
    parser.add_argument("--cases", help="names or parts of names, with semicolons between them")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    args.runs = args.runs or (1 if args.quick else 5)
    args.seconds = args.seconds or (1 if args.quick else 5)
    args.sides = args.sides.split(",")
    if unknown := [name for name in args.sides if name not in SIDES]:
        fail(f"no such side: {', '.join(unknown)}; there are {', '.join(SIDES)}")
    wanted = args.cases.split(";") if args.cases else [""]
    args.cases = [c for c in CASES if any(part in c for part in wanted)]
    if not args.cases:
        fail(f"no such case; there are {'; '.join(CASES)}")
    if "traefik" in args.sides and not os.access(f"{args.upstream}/traefik", os.X_OK):
        fail(f"no traefik in {args.upstream}\n  fix: benches/upstream {args.upstream} traefik")
    return args


def throughput(args, sides, add):
    for run in range(args.runs):
        for case in args.cases:
            # No side always comes first.
            for side in sides[run % len(sides):] + sides[:run % len(sides)]:
                rate, efficiency = load(side, case, args.seconds)
                add(f"{case}: requests/s", side, rate)
                add(f"{case}: per CPU second", side, efficiency)
                print(f"{run + 1}: {side.name}, {case}: {rate:.0f}/s, {efficiency:.0f} per CPU s",
                      file=sys.stderr)


def memory(sides, add):
    """Ten seconds after a fresh start, with one route and with a thousand; of kube-lite the whole
    server, and its difference to one with `--disable=traefik` and the same objects."""
    for side in sides:
        add("memory after load, MB", side, side.memory())
        side.stop()
    for routes in (1, ROUTES):
        label = "one route" if routes == 1 else f"{routes:,} routes"
        for side in sides:
            side.start(routes)
            if side.name != "kube-lite":
                time.sleep(10)
                add(f"memory with {label}, MB", side, side.memory())
                side.stop()
                continue
            side.stop()
            whole = []
            for ingress in (True, False):
                side.start(routes, ingress)
                time.sleep(10)
                whole.append(side.memory())
                side.stop()
            add(f"whole server with {label}, MB", side, whole[0])
            # Less than the noise between two starts, which may make it negative, is 0.1.
            add(f"memory with {label}, MB", side, max(whole[0] - whole[1], 0.1))


def main():
    args = arguments()
    endpoint = start_endpoint(args)
    sides = [SIDES[name][0](name, args, *SIDES[name][1:]) for name in args.sides]
    results = {}

    def add(measure, side, value):
        results.setdefault(measure, {}).setdefault(side.name, []).append(value)

    try:
        for side in sides:
            side.start()
        throughput(args, sides, add)
        rates = results.get("HTTP, 1 KB: requests/s")
        if rates:
            rate = min(median(values) for values in rates.values()) / 2
            for run in range(args.runs):
                for side in sides[run % len(sides):] + sides[:run % len(sides)]:
                    p99, _ = latency(side, rate, args.seconds)
                    add(f"p99 at {rate:,.0f} requests/s, ms", side, p99)
        if not args.quick:
            memory(sides, add)
    finally:
        for side in sides:
            side.stop()
        endpoint.send_signal(signal.SIGTERM)
        endpoint.wait()
    text, missed = table(results, args.sides)
    print(f"{text}\n\nmedians (spread) of {args.runs} interleaved runs")
    print(f"{missed} must values missed")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    sys.exit(1 if missed else 0)


main()
