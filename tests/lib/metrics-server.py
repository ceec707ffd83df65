"""An aggregated API server for metrics.k8s.io/v1beta1 with one node: metrics-server.py CERT KEY
PORT-PIPE."""

import json, sys
from listener import Handler, serve

GROUP = "metrics.k8s.io/v1beta1"
RESOURCES = {
    "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP,
    "resources": [{
        "name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeMetrics",
        "verbs": ["get", "list"],
    }],
}
NODES = {
    "kind": "NodeMetricsList", "apiVersion": GROUP, "metadata": {},
    "items": [{
        "metadata": {"name": "of-the-other-server"}, "timestamp": "2026-01-01T00:00:00Z",
        "window": "15s", "usage": {"cpu": "1", "memory": "1Gi"},
    }],
}


class Metrics(Handler):
    def do_GET(self):
        path = self.path.partition("?")[0].rstrip("/")
        body = {f"/apis/{GROUP}": RESOURCES, f"/apis/{GROUP}/nodes": NODES}.get(path)
        self.answer(200 if body else 404, json.dumps(body).encode() if body else b"")


serve(Metrics, sys.argv[3], "0.0.0.0", sys.argv[1], sys.argv[2])
