"""A client in the place of kubelets: it sets the status of each new pod, bound or not."""

import json, os, queue, sys, threading

from api_objects import Api, changes, read_response, request

PIPELINE = 16 # requests without an answer at a time


class PodStatusWriter:
    """Sets `status` on every pod of a namespace that appears from now on."""

    def __init__(self, address, namespace, status):
        self.address, self.path = address, f"/api/v1/namespaces/{namespace}/pods"
        self.body, self.pods, self.writes = {"status": status}, queue.SimpleQueue(), 0
        listed = json.loads(Api(address).get(self.path).read())
        self.version = listed["metadata"]["resourceVersion"]
        threading.Thread(target=self.follow, daemon=True).start()
        threading.Thread(target=self.write, daemon=True).start()

    def follow(self):
        for line in changes(self.address, self.path, self.version):
            # The event of a new pod begins with its type; most events need no decoding.
            if line.startswith(b'{"type":"ADDED"'):
                self.pods.put(json.loads(line)["object"]["metadata"]["name"])

    def write(self):
        api = Api(self.address)
        api.headers["Content-Type"] = "application/merge-patch+json"
        api.connection.connect()
        with api.connection.sock.makefile("rb") as stream:
            while True:
                names = [self.pods.get()]
                while len(names) < PIPELINE and not self.pods.empty():
                    names.append(self.pods.get())
                api.connection.sock.sendall(b"".join(
                    request(api, f"{self.path}/{name}/status", self.body, "PATCH") for name in names
                ))
                for name in names:
                    status, text = read_response(stream)
                    # A pod may be deleted before its status is set.
                    if status not in (200, 404, 409):
                        reason = f"status of pod {name}: {status} {text[:300]}"
                        print(f"{sys.argv[0]}: {reason}", file=sys.stderr, flush=True)
                        # sys.exit ends this thread alone.
                        os._exit(1)
                    self.writes += status == 200
