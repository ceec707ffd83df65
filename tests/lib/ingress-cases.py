#!/usr/bin/env python3
"""Cases of tests/ingress/cases.tsv.

objects CASES ADDRESS: Services, EndpointSlices and Ingresses of the cases, as YAML (JSON).
backends ADDRESS: HTTP servers that answer with the name of their Service.
ask CASES ADDRESS: sends each request; prints name, expected and actual answer, split by tabs.
"""
import http.client
import http.server
import json
import socket
import socketserver
import ssl
import subprocess
import sys
import threading

SERVICES = {"a": 8001, "b": 8002, "c": 8003, "d": 8004, "e": 8005}
# No process listens on it.
CLOSED_PORT = 8009


def cases(path):
    with open(path, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines if not line.startswith("#")]
    for row in rows:
        assert len(row) == 5, row
    return rows


def service(name, address, port):
    meta = {"name": name, "namespace": "default"}
    ports = [{"name": "web", "port": 80, "targetPort": port}]
    yield {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": ports}}
    if address:
        yield {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "default",
                         "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "web", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        }


def ingress(number, host, text):
    paths, tls = [], []
    for part in text.split(","):
        kind, _, rest = part.partition(":")
        if kind in ("tls", "tlsmissing"):
            secret = "missing" if kind == "tlsmissing" else "tls-" + rest.replace("*", "any")
            tls.append({"hosts": [rest], "secretName": secret})
            continue
        path, _, backend = rest.rpartition("=")
        name, _, port = backend.partition("@")
        port = {"name": port} if port else {"number": 80}
        entry = {"pathType": kind, "backend": {"service": {"name": name, "port": port}}}
        if path:
            entry["path"] = path
        paths.append(entry)
    rule = {"http": {"paths": paths}}
    if host != "-":
        rule["host"] = host
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"name": f"case-{number}", "namespace": "default"},
            "spec": {"rules": [rule], **({"tls": tls} if tls else {})}}


def secret(host):
    name = "tls-" + host.replace("*", "any")
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-keyout", "/dev/stdout", "-out", "/dev/stdout", "-subj",
         f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"],
        check=True, capture_output=True, text=True).stdout
    at = made.index("-----BEGIN CERTIFICATE")
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": name, "namespace": "default"},
            "stringData": {"tls.key": made[:at], "tls.crt": made[at:]}}


def objects(path, address):
    items = []
    for name, port in SERVICES.items():
        items += service(name, address, port)
    items += service("refusing", address, CLOSED_PORT)
    items += service("empty", None, 80)
    items.append({"apiVersion": "v1", "kind": "Service",
                  "metadata": {"name": "external", "namespace": "default"},
                  "spec": {"type": "ExternalName", "externalName": "a.default.svc",
                           "ports": [{"name": "web", "port": 80}]}})
    known = {}
    for _, host, text, _, _ in cases(path):
        if (host, text) in known:
            continue
        known[host, text] = len(known)
        items.append(ingress(len(known), host, text))
        items += [secret(p[4:]) for p in text.split(",") if p.startswith("tls:")]
    json.dump({"apiVersion": "v1", "kind": "List", "items": items}, sys.stdout)


class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        text = self.server.name.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


def backends(address):
    for name, port in SERVICES.items():
        server = Server((address, port), Backend)
        server.name = name
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


def common_name(der):
    text = subprocess.run(["openssl", "x509", "-inform", "DER", "-noout", "-subject", "-nameopt",
                           "multiline", "-ext", "subjectAltName"], input=der, check=True,
                          capture_output=True).stdout.decode()
    names = [part.strip()[4:] for line in text.splitlines() for part in line.split(",")
             if part.strip().startswith("DNS:")]
    return names[0] if names else "?"


def answer(address, url, port=None):
    scheme, rest = url.split("://", 1)
    host, _, path = rest.partition("/")
    port = port or (443 if scheme == "https" else 80)
    stream = socket.create_connection((address, port), timeout=10)
    prefix = ""
    if scheme == "https":
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        stream = context.wrap_socket(stream, server_hostname=host)
        prefix = common_name(stream.getpeercert(True)) + " "
    head = f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    stream.sendall(head.encode())
    response = http.client.HTTPResponse(stream)
    response.begin()
    body = response.read().decode()
    stream.close()
    return prefix + (body if response.status == 200 else str(response.status))


def ask(path, address):
    for name, _, _, url, expected in cases(path):
        try:
            got = answer(address, url)
        except (OSError, http.client.HTTPException) as error:
            got = f"{type(error).__name__}: {error}"
        print(name, expected, got, sep="\t")


if __name__ == "__main__":
    {"objects": objects, "backends": backends, "ask": ask}[sys.argv[1]](*sys.argv[2:])
