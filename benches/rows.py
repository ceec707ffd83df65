"""The rows that are compared with peers: their measures, required values and goals, and tables.

A benchmark writes its results as lines of JSON, one per measure: {"row", "measure", "unit",
"ours": [...], "peer": [...]}, a value for each run, the runs of both sides in turns.
`benches/peers` combines the files of all benchmarks.
"""

import json, statistics

# A bound: `x` limits the ratio of our median to the peer's, `=` limits our median, in the measure's
# unit.
R, A = "x", "="


class Measure:
    def __init__(self, row, name, unit, sign=None, must=None, aim=None, of_store=False):
        self.row, self.name, self.unit, self.sign, self.must, self.aim = (
            row, name, unit, sign, must, aim,
        )
        # Whether the bound holds for the store alone, because the peer's process has no API server.
        self.of_store = of_store

    @property
    def key(self):
        return self.row, self.name


MEASURES = [
    Measure("S1", "put 256 B, 64 clients", "/s", ">=", (R, 1.5), (R, 2.2)),
    Measure("S2", "server CPU of such a put", "us", "<=", (R, 1 / 2), (R, 1 / 3)),
    Measure("S3", "put p50, 1 client", "us", "<=", (R, 0.8), (R, 0.6)),
    Measure("S4", "linearizable get, 64 clients", "/s", ">=", (R, 1.5), (R, 2)),
    Measure("S4", "server CPU of such a get", "us", "<=", (R, 1 / 2), (R, 1 / 3)),
    Measure("S5", "server CPU of a list of 2000 keys", "us", "<=", (R, 1 / 4), (R, 1 / 10)),
    Measure("S6", "server CPU of an event to 1000 watches", "us", "<=", (R, 1 / 2), (R, 1 / 6)),
    Measure("S7", "get and compare-and-swap, 64 clients", "/s", ">=", (R, 1.5), (R, 2.5)),
    Measure("S8", "written per isolated put of 500 B", "B", "<=", (R, 1 / 4), (R, 1 / 9)),
    Measure("S9", "RSS empty", "MB", "<=", (R, 0.6), (R, 0.4), of_store=True),
    Measure("S9", "RSS with 100,000 x 1 KiB", "MB", "<=", (R, 0.6), (R, 0.4), of_store=True),
    Measure("S10", "ready, empty", "ms", "<=", (R, 1 / 4), (R, 1 / 10)),
    Measure("S10", "ready after kill -9 with 100,000 x 1 KiB", "ms", "<=", (R, 1 / 4), (R, 1 / 8)),
    Measure("S11", "three members, put, 64 clients", "/s", ">=", (R, 1.5), (R, 3)),
    Measure("S11", "three members, put p50, 1 client", "us", "<=", (R, 0.8), (R, 0.5)),
    Measure(
        "S12", "leader killed: longest time without a write", "ms", "<=", (R, 1 / 2), (R, 1 / 6)
    ),
    Measure("S12", "leader stopped (SIGTERM): the same", "ms", "<=", (A, 200), (A, 50)),
    Measure("A1", "server with its node, idle: RSS", "MB", "<=", (A, 150), (A, 60)),
    Measure("A2", "agent, idle with ten pods: RSS", "MB", "<=", (A, 50), (A, 20)),
    Measure(
        "A3", "control plane's memory per pod, 10 s after the last one runs", "KB", "<=", (A, 20),
        (A, 6),
    ),
    Measure("A3", "as the last one runs", "KB"),
    Measure("A4", "simulated agents Ready", "", ">=", (A, 1000), (A, 5000)),
    Measure("A4", "API p99 while they come", "ms", "<=", (A, 1000), (A, 1000)),
    Measure("A5", "GET over TLS, 32 connections", "/s", ">=", (R, 3), (R, 10)),
    Measure("A5", "CPU of such a GET", "us", "<=", (R, 1 / 3), (R, 1 / 10)),
    Measure("A5", "GET p99, 32 connections", "us"),
    Measure("A6", "LIST of 10,000 pods: CPU", "ms", "<=", (R, 1 / 4), (R, 1 / 20)),
    Measure("A6", "LIST of 10,000 pods: extra RSS at the peak", "MB", "<=", (A, 16), (A, 2)),
    Measure("A7", "LIST of none of 300,000 pods: p50", "ms", "<=", (A, 100), (A, 10)),
    Measure("A8", "create, seen by 1000 watchers: p99", "ms", "<=", (A, 50), (A, 10)),
    Measure("C1", "scheduler, 5000 nodes, with durable bind", "pods/s", ">=", (R, 3), (R, 10)),
    Measure("C2", "scheduling alone", "pods/s", ">=", (A, 20000), (A, 250000)),
    Measure("C3", "affinity of pods", "pods/s", ">=", (R, 10), (R, 100)),
    Measure("C3", "anti-affinity of pods", "pods/s", ">=", (R, 10), (R, 100)),
    Measure("C4", "topology spreading", "pods/s", ">=", (R, 5), (R, 50)),
    Measure("C5", "same decisions as kube-scheduler", "%", ">=", (A, 99), (A, 100)),
    Measure("K1", "pod start p99, image there", "ms", "<=", (A, 1000), (A, 250)),
    Measure("K1", "own share of a pod start", "ms", "<=", None, (A, 20)),
    Measure("K2", "110 pods from zero on one node", "s", "<=", (A, 30), (A, 8)),
    Measure("K3", "idle CPU with 110 pods", "% of a core", "<=", (A, 1), (A, 0.2)),
    Measure("P1", "30,000 services from cold", "s", "<=", (A, 5), (A, 0.5)),
    Measure("P2", "endpoint change to rule, among 30,000 services", "ms", "<=", (A, 20), (A, 10)),
    Measure("P3", "first packet p99, 30,000 services over 10", "x", "<=", (A, 1.3), (A, 1.1)),
    Measure("N1", "pod to pod over VXLAN over bare veth", "x", ">=", (A, 0.85), (A, 0.93)),
    Measure(
        "R1", "node off to pods Ready elsewhere, --fast-node-loss", "s", "<=", (A, 60), (A, 10)
    ),
    Measure("R2", "exec to first 200", "ms", "<=", (A, 2000), (A, 150)),
    Measure("R2", "exec to node Ready", "ms", "<=", (A, 5000), (A, 1000)),
    Measure("W1", "written a day, idle server with its node", "MB", "<=", (A, 70), (A, 35)),
    Measure("W2", "idle CPU of a server with its node", "% of a core", "<=", (A, 1), (A, 0.3)),
    Measure("B1", "program, all roles", "MB", "<=", (A, 40), (A, 20)),
]
ROWS = list(dict.fromkeys(m.row for m in MEASURES))
KNOWN = {m.key: m for m in MEASURES}


def write(path, results):
    """`results` are dicts as described above."""
    with open(path, "a") as out:
        for line in results:
            out.write(json.dumps(line) + "\n")


def read(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def number(v):
    return f"{v:,.0f}" if abs(v) >= 100 else f"{v:.1f}" if abs(v) >= 10 else f"{v:.2f}"


def bound(sign, limit):
    if limit is None:
        return ""
    kind, value = limit
    return (
        f"{'≤' if sign == '<=' else '≥'} {value:,.3g}{'×' if kind == R else ''}"
        if value < 1000 or kind == R
        else f"{'≤' if sign == '<=' else '≥'} {value:,.0f}"
    )


def holds(sign, limit, ours, ratio):
    """None if it cannot be decided."""
    if limit is None:
        return None
    kind, value = limit
    got = ours if kind == A else ratio
    if got is None:
        return None
    return got <= value if sign == "<=" else got >= value


def verdict(measure, ours, ratio):
    must, aim = holds(measure.sign, measure.must, ours, ratio), holds(
        measure.sign, measure.aim, ours, ratio
    )
    if aim:
        return "aim met"
    if must:
        return "must met"
    if must is False:
        return "MISSED"
    return "aim missed" if aim is False else ""


def spread(values):
    if not values:
        return "–"
    if len(values) == 1:
        return number(values[0])
    return f"{number(statistics.median(values))} ({number(min(values))}–{number(max(values))})"


def table(results, rows=None, absent=None):
    """The results as Markdown, with every row of `rows`; `absent` has the reasons for missing rows.
    Also returns the number of missed required values."""
    lines = [
        "| row | measure | unit | kube-lite | peer | ratio | must | aim | |",
        "|---|---|---|---:|---:|---:|---|---|---|",
    ]
    missed = 0
    for row in rows or ROWS:
        these = [f for f in results if f["row"] == row]
        have = {(f["row"], f.get("as", f["measure"])) for f in these}
        for f in these:
            measure = KNOWN.get((row, f.get("as", f["measure"]))) or Measure(
                row, f["measure"], f["unit"]
            )
            ours, peer = f["ours"], f["peer"]
            x = statistics.median(ours) if ours else None
            ratio = (
                x / statistics.median(peer) if ours and peer and statistics.median(peer) else None
            )
            remark = "" if x is None else verdict(measure, x, ratio)
            missed += remark == "MISSED"
            lines.append(
                f"| {row} | {f['measure']} | {f['unit']} | {spread(ours)} | {spread(peer)} | "
                f"{'' if ratio is None else number(ratio)} | "
                f"{bound(measure.sign, measure.must)} | {bound(measure.sign, measure.aim)} | "
                f"{remark} |"
            )
        for measure in MEASURES:
            if measure.row == row and measure.key not in have:
                why = (
                    (absent or {}).get(measure.key)
                    or (absent or {}).get(row)
                    or "not measured in this run"
                )
                lines.append(
                    f"| {row} | {measure.name} | {measure.unit} | | | | "
                    f"{bound(measure.sign, measure.must)} | {bound(measure.sign, measure.aim)} | "
                    f"{why} |"
                )
    return "\n".join(lines), missed
