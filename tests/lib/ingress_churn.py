"""Changes endpoints, certificates and routes of one host every 100 ms, until the file `end` exists
in the scratch folder; a server that is away is tried again. Prints the number of changes. For
tests/ingress-churn."""

import argparse, base64, http.client, itertools, json, os, pathlib, ssl, time

import yaml

INTERVAL = 0.1
HOST = "steady.example"
INGRESSES = "/apis/networking.k8s.io/v1/namespaces/default/ingresses"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


class Api:
    def __init__(self, kubeconfig, scratch):
        config = yaml.safe_load(pathlib.Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        for name, text in (
            ("ca", cluster["certificate-authority-data"]),
            ("certificate", user["client-certificate-data"]), ("key", user["client-key-data"]),
        ):
            path = pathlib.Path(scratch, f"churn-{name}")
            path.touch(0o600)
            path.write_bytes(base64.b64decode(text))
        self.context = ssl.create_default_context(cafile=f"{scratch}/churn-ca")
        self.context.load_cert_chain(f"{scratch}/churn-certificate", f"{scratch}/churn-key")
        self.address = cluster["server"].removeprefix("https://")
        self.connection = None

    def ask(self, method, path, body=None):
        """The status; None if the server is away."""
        try:
            if not self.connection:
                self.connection = http.client.HTTPSConnection(
                    self.address, context=self.context, timeout=5
                )
            kind = "merge-patch+json" if method == "PATCH" else "json"
            headers = {"Content-Type": f"application/{kind}"}
            self.connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = self.connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            self.connection = None
            return None


def ingress(name, host, paths):
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {
            "name": name, "annotations": {"nginx.ingress.kubernetes.io/ssl-redirect": "false"},
        },
        "spec": {
            "tls": [{"hosts": [host], "secretName": "tls"}],
            "rules": [{"host": host, "http": {"paths": [
                {"pathType": "Prefix", "path": path, "backend": backend} for path in paths
            ]}}],
        },
    }


def main():
    parser = argparse.ArgumentParser()
    for name in ("kubeconfig", "scratch", "endpoints", "refusing"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    api = Api(args.kubeconfig, args.scratch)
    endpoints = args.endpoints.split(",")

    def encoded(name):
        return base64.b64encode(pathlib.Path(args.scratch, name).read_bytes()).decode()

    secrets = [
        {"tls.crt": encoded(f"{name}.crt"), "tls.key": encoded(f"{name}.key")}
        for name in ("one", "two")
    ]

    def addresses(which):
        return {"endpoints": [{"addresses": [a], "conditions": {"ready": True}} for a in which]}

    first = [
        ("/api/v1/namespaces/default/services", {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        }),
        (SLICES, {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080}],
            **addresses(endpoints),
        }),
        ("/api/v1/namespaces/default/secrets", {
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"},
            "type": "kubernetes.io/tls", "data": secrets[0],
        }),
        (INGRESSES, ingress("steady", HOST, ["/"])),
    ]
    for path, body in first:
        if (status := api.ask("POST", path, body)) != 201:
            raise SystemExit(f"POST {path}: {status}")
    sets = [endpoints, endpoints[:1], [*endpoints[1:], args.refusing], [endpoints[2], endpoints[0]]]
    changes, refused = 0, 0
    for n in itertools.count():
        if os.path.exists(f"{args.scratch}/end"):
            break
        begin = time.monotonic()
        turn = n // 4
        call = [
            ("PATCH", f"{SLICES}/web-1", addresses(sets[turn % len(sets)])),
            ("PATCH", "/api/v1/namespaces/default/secrets/tls", {"data": secrets[turn % 2]}),
            ("POST", INGRESSES, ingress(f"extra-{turn}", f"extra-{turn}.example", ["/"])),
            ("PATCH", f"{INGRESSES}/steady",
             ingress("steady", HOST, ["/"] if turn % 2 else ["/", "/1k"])),
        ][n % 4]
        status = api.ask(*call)
        if turn >= 3 and n % 4 == 2:
            api.ask("DELETE", f"{INGRESSES}/extra-{turn - 3}")
        changes += status in (200, 201)
        refused += status not in (200, 201, None)
        time.sleep(max(0, INTERVAL - (time.monotonic() - begin)))
    print(f"changes {changes}, refused {refused}")


main()
