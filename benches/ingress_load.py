"""Starts the proxies of benches/ingress, loads them in turns and prints the table."""

import argparse, json, os, pathlib, re, signal, statistics, subprocess, sys, time

HOST = "bench.example"
CONNECTIONS = 64
ROUTES = 1000
TICKS = os.sysconf("SC_CLK_TCK")
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


def fail(text):
    sys.exit(f"benches/ingress: {text}")


def children(process):
    """The processes that a process has started, as texts."""
    pids = []
    for path in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            text = path.read_text()
        except OSError:
            continue  # ended meanwhile
        if re.search(rf"^PPid:\s*{process}$", text, re.M):
            pids.append(path.parent.name)
    return pids


class Side:
    """A proxy in the network of its machine, with its processes."""

    def __init__(self, name, args, http, https):
        self.name, self.args, self.ports = name, args, {"http": http, "https": https}
        self.home = pathlib.Path(args.scratch, f"side-{name}")
        self.home.mkdir()
        self.process = None

    def inside(self, *command):
        """Starts a program in the network of the machine."""
        with open(self.home / "log", "ab") as log:
            net = f"--net=/proc/{self.args.machine}/ns/net"
            return subprocess.Popen(
                ["nsenter", net, *map(str, command)], stdout=log, stderr=log
            )

    def start(self, routes=1):
        raise NotImplementedError

    def stop(self):
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()
            self.process = None

    def pids(self):
        """The main process and its children."""
        return [str(self.process.pid), *children(self.process.pid)]

    def cpu(self):
        """Seconds of processor time until now."""
        fields = [
            pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            for pid in self.pids()
        ]
        return sum(int(f[11]) + int(f[12]) for f in fields) / TICKS

    def memory(self):
        """PSS in MB, which counts what nginx' processes share once."""
        total = 0
        for pid in self.pids():
            text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1])
        return total / 1024

    def url(self, scheme, path, host=HOST):
        return f"{scheme}://{host}:{self.ports[scheme]}{path}"

    def wait(self, host=HOST):
        """Waits until the last route is served over both protocols."""
        for scheme, port in self.ports.items():
            command = [
                "curl", "-sk", "-o", "/dev/null", "-w", "%{http_code} %{size_download}",
                "--max-time", "2", "--resolve", f"{host}:{port}:{self.args.address}",
                self.url(scheme, "/1k", host),
            ]
            for _ in range(600):
                got = subprocess.run(command, capture_output=True, text=True).stdout
                if got == "200 1024":
                    break
                time.sleep(0.1)
            else:
                print((self.home / "log").read_text(errors="replace")[-2000:], file=sys.stderr)
                fail(f"{self.name} does not serve {self.url(scheme, '/1k', host)}: {got}")


def hosts(count):
    return [HOST] + [f"r{n}.{HOST}" for n in range(1, count)]


NGINX = """
user root; daemon off; worker_processes 2; error_log {home}/error.log; pid {home}/pid;
events {{ worker_connections 8192; }}
http {{
  access_log off; sendfile on; tcp_nopush on; server_tokens off; server_names_hash_max_size 8192;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/f;
  uwsgi_temp_path {home}/u; scgi_temp_path {home}/c;
  {servers}
}}
"""


class Nginx(Side):
    """As ingress-nginx sets it up: HTTP/1.1 with kept connections towards endpoints."""

    def start(self, routes=1):
        proxy = """
          location / {{
            proxy_pass http://{name}; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host $host;
            proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Port $server_port;
          }}"""
        scratch, servers = self.args.scratch, []
        for n, host in enumerate(hosts(routes)):
            name = f"up{n}"
            servers.append(
                f"upstream {name} {{ server {self.args.endpoint}:8080; keepalive 64; }}"
                f"server {{ listen {self.ports['http']}; listen {self.ports['https']} ssl http2;"
                f" server_name {host}; ssl_certificate {scratch}/tls.crt;"
                f" ssl_certificate_key {scratch}/tls.key;"
                " ssl_session_cache shared:s:10m;" + proxy.format(name=name) + "}"
            )
        conf = self.home / "nginx.conf"
        conf.write_text(NGINX.format(home=self.home, servers="\n".join(servers)))
        self.process = self.inside("nginx", "-p", self.home, "-e", self.home / "error.log", "-c", conf)
        self.wait(hosts(routes)[-1])


class Traefik(Side):
    def start(self, routes=1):
        scratch = self.args.scratch
        routers, services = {}, {}
        for n, host in enumerate(hosts(routes)):
            for entry in ("http", "https"):
                router = {"rule": f"Host(`{host}`)", "service": f"s{n}", "entryPoints": [entry]}
                if entry == "https":
                    router["tls"] = {}
                routers[f"{entry}-{n}"] = router
            url = f"http://{self.args.endpoint}:8080"
            services[f"s{n}"] = {"loadBalancer": {"servers": [{"url": url}]}}
        certificate = {"certFile": f"{scratch}/tls.crt", "keyFile": f"{scratch}/tls.key"}
        dynamic = {
            "http": {"routers": routers, "services": services},
            "tls": {
                "certificates": [certificate],
                "stores": {"default": {"defaultCertificate": certificate}},
            },
        }
        static = {
            "entryPoints": {k: {"address": f":{port}"} for k, port in self.ports.items()},
            "providers": {"file": {"filename": str(self.home / "dynamic.yml")}},
            "global": {"checkNewVersion": False, "sendAnonymousUsage": False},
            "log": {"level": "ERROR"},
        }
        for name, content in (("dynamic", dynamic), ("static", static)):
            (self.home / f"{name}.yml").write_text(json.dumps(content))
        self.process = self.inside(
            pathlib.Path(self.args.upstream, "traefik"), f"--configFile={self.home}/static.yml"
        )
        self.wait(hosts(routes)[-1])


class KubeLite(Side):
    """The server with its node; Ingresses and an EndpointSlice made by hand."""

    def start(self, routes=1, ingress=True):
        scratch = self.args.scratch
        # Each start begins with the objects of this call.
        self.kubeconfig = f"{scratch}/kube-lite.yaml"
        command = [
            self.args.program, "server", "--config=/dev/null", f"--data-dir={scratch}/s/data",
            "--node-name=s", f"--node-ip={self.args.address}", "--https-listen-port=6443",
            f"--write-kubeconfig={self.kubeconfig}", "--run-dir=/run/kube-lite",
            f"--kubelet-root-dir={scratch}/s/kubelet", f"--log-dir={scratch}/s/pod-logs",
            f"--cgroup-root=/{os.environ['KUBE_LITE_TEST_NAMESPACE']}/s",
            f"--cni-conf-dir={scratch}/s/cni", f"--cni-bin-dir={scratch}/s/cni-bin",
            f"--resolv-conf={scratch}/resolv.conf",
        ]
        if not ingress:
            command.append("--disable=traefik")
        # The server needs the mounts of its machine, too.
        with open(self.home / "log", "ab") as log:
            enter = ["nsenter", f"--target={self.args.machine}", "--net", "--mount", "--pid", "--uts"]
            self.process = subprocess.Popen(
                [*enter, f"--wdns={os.getcwd()}", *command], stdout=log, stderr=log
            )
        self.kubectl("wait", "--for=create", "node/s", "--timeout=60s", retry=True)
        self.kubectl("wait", "--for=condition=Ready", "node/s", "--timeout=60s")
        self.kubectl("apply", "-f", "-", text=json.dumps(self.objects(routes)))
        if ingress:
            self.wait(hosts(routes)[-1])

    def pids(self):
        """The server, which `nsenter` has as its child, without containerd."""
        return children(self.process.pid)

    def stop(self):
        if self.process:
            for pid in self.pids():
                os.kill(int(pid), signal.SIGTERM)
            self.process.wait()
            self.process = None

    def kubectl(self, *arguments, text=None, retry=False):
        command = [
            "nsenter", f"--net=/proc/{self.args.machine}/ns/net", "kubectl",
            f"--kubeconfig={self.kubeconfig}", *arguments,
        ]
        for _ in range(300):
            got = subprocess.run(command, input=text, capture_output=True, text=True)
            if got.returncode == 0:
                return got.stdout
            if not retry:
                break
            time.sleep(0.1)
        fail(f"kubectl {' '.join(arguments)}: {got.stderr}\n{(self.home / 'log').read_text()[-2000:]}")

    def objects(self, routes):
        tls = {name: pathlib.Path(self.args.scratch, name).read_text() for name in ("tls.crt", "tls.key")}
        items = [
            {
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                "spec": {"ports": [{"name": "http", "port": 80}]},
            },
            {
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
                "endpoints": [{"addresses": [self.args.endpoint], "conditions": {"ready": True}}],
            },
            {
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"},
                "type": "kubernetes.io/tls", "stringData": tls,
            },
        ]
        backend = {"service": {"name": "web", "port": {"number": 80}}}
        for n, host in enumerate(hosts(routes)):
            paths = [{"pathType": "Prefix", "path": "/", "backend": backend}]
            items.append({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {
                    "name": f"r{n}",
                    # Both schemes are measured: without a redirect.
                    "annotations": {"nginx.ingress.kubernetes.io/ssl-redirect": "false"},
                },
                "spec": {
                    "tls": [{"hosts": [host], "secretName": "tls"}],
                    "rules": [{"host": host, "http": {"paths": paths}}],
                },
            })
        return {"apiVersion": "v1", "kind": "List", "items": items}


class ProxyAlone(Side):
    """`cargo build -p ingress --example proxy`, named by KUBE_LITE_PROXY: ours without a server."""

    def start(self, routes=1):
        listen = [f"0.0.0.0:{port}" for port in self.ports.values()]
        self.process = self.inside(
            os.environ["KUBE_LITE_PROXY"], *listen, f"{self.args.endpoint}:8080"
        )
        self.wait()


SIDES = {
    "kube-lite": (KubeLite, 10080, 10443), "traefik": (Traefik, 11080, 11443),
    "nginx": (Nginx, 12080, 12443), "alone": (ProxyAlone, 13080, 13443),
}


def start_endpoint(args):
    """nginx with two files in memory, on the other machine."""
    home = pathlib.Path(args.scratch, "endpoint")
    (home / "files").mkdir(parents=True)
    for name, size in (("1k", 1024), ("1m", 1 << 20)):
        (home / "files" / name).write_bytes(b"x" * size)
    server = (
        f"server {{ listen 8080 backlog=4096; root {home}/files; keepalive_requests 1000000;"
        " open_file_cache max=10; default_type text/plain; }"
    )
    conf = home / "nginx.conf"
    conf.write_text(NGINX.format(home=home, servers=server))
    home.chmod(0o755)
    log = open(home / "log", "ab")
    command = ["nsenter", f"--net=/proc/{args.endpoint_machine}/ns/net", "nginx", "-p", home]
    return subprocess.Popen([*command, "-e", home / "error.log", "-c", conf], stdout=log, stderr=log)


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
    print(f"{text}\n\nmedians (spread) of {args.runs} interleaved runs; {missed} must values missed")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    sys.exit(1 if missed else 0)


main()
