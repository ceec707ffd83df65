"""The systems that the benchmarks measure: their processes on scratch directories, and their
metrics."""

import base64, json, os, pathlib, re, shutil, signal, socket, ssl, statistics, subprocess, sys
import tempfile, time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(
    os.environ.get(
        "CARGO_TARGET_DIR",
        os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")) + "/kube-lite/target",
    )
)
UPSTREAM = pathlib.Path(
    os.environ.get("KUBE_LITE_UPSTREAM", os.path.expanduser("~/.cache/kube-lite-upstream/bin"))
)
program, load_program = None, None  # set by prepare()
PROGRAMS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]
TICKS = os.sysconf("SC_CLK_TCK")


def prepare(more=(), upstream=True):
    """Finds or builds the programs; exits with the command that builds them if upstream's are
    needed, or `more`, and are missing."""
    global program, load_program
    missing = [p for p in [*(PROGRAMS if upstream else ()), *more] if not (UPSTREAM / p).is_file()]
    if missing:
        sys.exit(
            f"benches: no {', '.join(missing)} in {UPSTREAM}\n  fix: benches/upstream builds them "
            "from their Go modules (about 15 minutes on 2 cores)"
        )
    if not os.environ.get("KUBE_LITE_BIN") or not os.environ.get("KUBE_LITE_LOAD"):
        subprocess.run(
            [
                "cargo", "build", "--release", "--locked", "-p", "kube-lite", "-p", "benches",
                "--target-dir", TARGET,
            ],
            cwd=ROOT, check=True,
        )
    program = pathlib.Path(os.environ.get("KUBE_LITE_BIN", TARGET / "release/kube-lite"))
    load_program = os.environ.get("KUBE_LITE_LOAD", str(TARGET / "release/load"))


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def sh(*command, **more):
    return subprocess.run(
        [str(c) for c in command], check=True, capture_output=True, text=True, **more
    ).stdout


class Side:
    """One system under test: its processes on scratch directories."""

    server = 0  # which of the processes is the API server

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="kube-lite-bench."))
        self.processes, self.port = [], port()

    def spawn(self, name, *command):
        path = self.dir / f"{name}.log"
        log = open(path, "ab")
        process = subprocess.Popen([str(c) for c in command], stdout=log, stderr=log, cwd=self.dir)
        process.log = path
        self.processes.append(process)
        return process

    def start_again(self):
        """Kills the API server's process and restarts it; milliseconds from the start until ready.
        Upstream's waits a minute for its watches if it is stopped with a signal."""
        process = self.processes[self.server]
        process.kill()
        process.wait()
        self.begin = time.monotonic()
        log = open(self.dir / "again.log", "ab")
        self.processes[self.server] = subprocess.Popen(
            process.args, stdout=log, stderr=log, cwd=self.dir
        )
        wait_ready(self.port, self.processes[self.server])
        return (time.monotonic() - self.begin) * 1000

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def cpu(self):
        """CPU seconds of all processes."""
        return self.cpu_of(self.processes)

    @staticmethod
    def cpu_of(processes):
        """CPU seconds of these processes."""
        total = 0
        for p in processes:
            fields = pathlib.Path(f"/proc/{p.pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / TICKS

    def memory(self):
        """RSS and PSS in MB."""

        def field(text, name):
            return int(re.search(rf"^{name}:\s+(\d+)", text, re.M).group(1)) * 1024 / 1e6

        rollups = [pathlib.Path(f"/proc/{p.pid}/smaps_rollup").read_text() for p in self.processes]
        return sum(field(r, "Rss") for r in rollups), sum(field(r, "Pss") for r in rollups)

    def forget_peaks(self):
        """Resets the value of `peak`."""
        for p in self.processes:
            pathlib.Path(f"/proc/{p.pid}/clear_refs").write_text("5")

    def peak(self):
        """The highest RSS of all processes in MB."""
        return sum(
            int(
                re.search(
                    r"^VmHWM:\s+(\d+)", pathlib.Path(f"/proc/{p.pid}/status").read_text(), re.M
                ).group(1)
            )
            * 1024
            / 1e6
            for p in self.processes
        )

    def written(self):
        return sum(
            int(
                re.search(
                    r"write_bytes: (\d+)", pathlib.Path(f"/proc/{p.pid}/io").read_text()
                ).group(1)
            )
            for p in self.processes
        )

    def load(self, kind, *more):
        return subprocess.run(
            [
                load_program, kind, f"--server=127.0.0.1:{self.port}", f"--ca={self.ca}",
                *self.identity, *more,
            ],
            check=True, stdout=subprocess.PIPE, text=True,
        ).stdout


class Ours(Side):
    name = "kube-lite"
    flags = ["--disable-agent", "--node-ip=127.0.0.1"]
    program = None # the program to measure, if it is not the default

    def start(self):
        program = self.program or globals()["program"]
        kubeconfig = self.dir / "kubeconfig"
        self.begin = begin = time.monotonic()
        self.spawn(
            "server", program, "server", "--config=/dev/null", f"--data-dir={self.dir}/data",
            f"--https-listen-port={self.port}", f"--write-kubeconfig={kubeconfig}", *self.flags,
        )
        wait_ready(self.port, self.processes[0])
        took = time.monotonic() - begin
        sh(program, "status", f"--data-dir={self.dir}/data", "--wait=ready", "--timeout=30")
        text = kubeconfig.read_text()
        for key in ("certificate-authority", "client-certificate", "client-key"):
            data = re.search(rf"^ *{key}-data: (\S+)", text, re.M).group(1)
            (self.dir / f"{key}.pem").write_bytes(base64.b64decode(data))
        self.ca, self.identity = self.dir / "certificate-authority.pem", [
            "--identity", str(self.dir / "client-certificate.pem"),
            str(self.dir / "client-key.pem"),
        ]
        return took * 1000

    def sizes(self):
        return (self.program or program).stat().st_size / 1e6


class Upstream(Side):
    name = "upstream"
    server = 1
    controller_flags, server_flags, scheduler_flags = [], [], []
    has_scheduler = True

    def start(self):
        d, client, peer = self.dir, port(), port()
        self.ports = {} # of the controllers and of the scheduler
        sh("openssl", "genrsa", "-out", d / "sa.key", "2048")
        (d / "sa.pub").write_text(sh("openssl", "rsa", "-in", d / "sa.key", "-pubout"))
        (d / "tokens.csv").write_text(
            'admin,admin,1,"system:masters"\nkcm,system:kube-controller-manager,2\n'
            'sched,system:kube-scheduler,3\nn1,system:node:n1,4,"system:nodes"\n'
        )
        for user in ("admin", "kcm", "sched", "n1"):
            (d / f"{user}.kubeconfig").write_text(
                json.dumps({
                    "apiVersion": "v1", "kind": "Config", "current-context": "x",
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{
                        "name": "c",
                        "cluster": {
                            "server": f"https://127.0.0.1:{self.port}",
                            "insecure-skip-tls-verify": True,
                        },
                    }],
                    "users": [{"name": "u", "user": {"token": user}}],
                })
            )
        self.ca, self.identity = d / "certs/apiserver.crt", ["--token=admin"]
        self.begin = begin = time.monotonic()
        self.spawn(
            "etcd", UPSTREAM / "etcd", f"--data-dir={d}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
        )
        self.spawn(
            "apiserver", UPSTREAM / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{client}",
            "--service-cluster-ip-range=10.96.0.0/16", f"--secure-port={self.port}",
            "--bind-address=127.0.0.1", "--kubelet-preferred-address-types=InternalIP",
            "--advertise-address=192.0.2.1", f"--cert-dir={d}/certs",
            f"--token-auth-file={d}/tokens.csv", "--authorization-mode=Node,RBAC",
            f"--service-account-key-file={d}/sa.pub",
            f"--service-account-signing-key-file={d}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--enable-admission-plugins=NodeRestriction", *self.server_flags,
        )
        wait_ready(self.port, self.processes[1])
        took = time.monotonic() - begin
        for name, user, more in (
            (
                "kube-controller-manager", "kcm",
                [
                    f"--service-account-private-key-file={d}/sa.key",
                    f"--root-ca-file={d}/certs/apiserver.crt", "--use-service-account-credentials",
                    *self.controller_flags,
                ],
            ),
            ("kube-scheduler", "sched", self.scheduler_flags),
        )[: 2 if self.has_scheduler else 1]:
            config, self.ports[name] = d / f"{user}.kubeconfig", port()
            self.spawn(
                name, UPSTREAM / name, f"--kubeconfig={config}",
                f"--authentication-kubeconfig={config}", f"--authorization-kubeconfig={config}",
                "--leader-elect=false", f"--cert-dir={d}/certs-{user}",
                f"--secure-port={self.ports[name]}",
                *more,
            )
        self.settle()
        return took * 1000

    @staticmethod
    def settle():
        time.sleep(5) # controllers create their first objects; no event marks the end

    sizes = staticmethod(lambda: sum((UPSTREAM / p).stat().st_size for p in PROGRAMS) / 1e6)


def wait_ready(number, process):
    """The first 200 of /readyz; a starting server sends no event, so this polls every 2 ms."""
    context = ssl._create_unverified_context()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"benches: {process.args[0]} ended with {process.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", number), 5) as raw, context.wrap_socket(
                raw
            ) as tls:
                tls.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if b" 200 " in tls.recv(64):
                    return
        except OSError:
            pass
        time.sleep(0.002)
    sys.exit(f"benches: {process.args[0]} did not get ready in 60 s")


def table(results, targets):
    """The medians of kube-lite and of its peer, the other key of `results`, as a table, and the
    number of missed targets."""
    [peer] = results.keys() - {"kube-lite"}
    ours, theirs = results["kube-lite"], results[peer]
    lines = [
        f"| measure | kube-lite | spread | {peer} | spread | ratio | must | |",
        "|---|---:|---:|---:|---:|---:|---|---|",
    ]
    missed = 0
    for name in ours[0]:
        a, b = [r[name] for r in ours], [r[name] for r in theirs]
        x, y = statistics.median(a), statistics.median(b)
        ratio = x / y if y else float("nan")
        must, verdict = "", ""
        if name in targets:
            form, sign, limit = targets[name]
            got = {"abs": x, "diff": x - y, "ratio": ratio}[form]
            met = got <= limit if sign == "<=" else got >= limit
            missed += not met
            unit = {"abs": "", "diff": " more", "ratio": "×"}[form]
            must, verdict = f"{sign} {limit:g}{unit}", (
                "met" if met else "MISSED"
            )
        number = lambda v: f"{v:.0f}" if v >= 100 else f"{v:.2f}" if v < 10 else f"{v:.1f}"
        lines.append(
            f"| {name} | {number(x)} | {number(min(a))}–{number(max(a))} | {number(y)} | "
            f"{number(min(b))}–{number(max(b))} | {ratio:.2f} | {must} | {verdict} |"
        )
    return "\n".join(lines), missed
