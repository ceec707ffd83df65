"""The proxies that benches/ingress compares, and their endpoint."""

import json, os, pathlib, re, signal, subprocess, sys, time

HOST = "bench.example"
TICKS = os.sysconf("SC_CLK_TCK")


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
  access_log off; keepalive_requests 1000000; sendfile on; tcp_nopush on; server_tokens off;
  server_names_hash_max_size 8192;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/f;
  uwsgi_temp_path {home}/u; scgi_temp_path {home}/c;
  {servers}
}}
"""


class Nginx(Side):
    """As ingress-nginx sets it up: HTTP/1.1 with kept connections towards endpoints. A connection
    takes any number of requests, since h2load counts an end after 1,000 as an error."""

    def start(self, routes=1):
        proxy = """
          location / {{
            proxy_pass http://{name}; proxy_http_version 1.1;
            proxy_set_header Connection ""; proxy_set_header Host $host;
            proxy_set_header X-Real-IP $remote_addr; proxy_set_header X-Forwarded-For $remote_addr;
            proxy_set_header X-Forwarded-Host $host; proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Port $server_port; proxy_max_temp_file_size 0;
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
        log = self.home / "error.log"
        self.process = self.inside("nginx", "-p", self.home, "-e", log, "-c", conf)
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
            enter = [
                "nsenter", f"--target={self.args.machine}", "--net", "--mount", "--pid", "--uts",
                f"--wdns={os.getcwd()}",
            ]
            self.process = subprocess.Popen([*enter, *command], stdout=log, stderr=log)
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
        log = (self.home / "log").read_text()[-2000:]
        fail(f"kubectl {' '.join(arguments)}: {got.stderr}\n{log}")

    def objects(self, routes):
        scratch = pathlib.Path(self.args.scratch)
        tls = {name: (scratch / name).read_text() for name in ("tls.crt", "tls.key")}
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
    """`cargo build -p http_proxy --example proxy`, named by KUBE_LITE_PROXY: ours without a server."""

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
        f"server {{ listen 8080 backlog=4096; root {home}/files;"
        " open_file_cache max=10; default_type text/plain; }"
    )
    conf = home / "nginx.conf"
    conf.write_text(NGINX.format(home=home, servers=server))
    home.chmod(0o755)
    command = [
        "nsenter", f"--net=/proc/{args.endpoint_machine}/ns/net", "nginx", "-p", home, "-e",
        home / "error.log", "-c", conf,
    ]
    with open(home / "log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)
