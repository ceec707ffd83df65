"""An extender of the scheduler: extender.py PORT-PIPE CALLS. Rejects the node one unless it has the
annotation cool=yes, prefers the node two, and binds with kubectl. Writes each call as a line of
CALLS: the verb and the name of the pod."""

import json, subprocess, sys
from listener import Handler, serve

port_file, calls = sys.argv[1:]


def filter_nodes(args):
    passed, failed = [], {}
    for node in args["Nodes"]["items"]:
        name = node["metadata"]["name"]
        if name == "one" and node["metadata"].get("annotations", {}).get("cool") != "yes":
            failed[name] = "node(s) were too hot"
        else:
            passed.append(node)
    return {"Nodes": {"items": passed}, "FailedAndUnresolvableNodes": failed}


def prioritize(args):
    names = [node["metadata"]["name"] for node in args["Nodes"]["items"]]
    return [{"Host": name, "Score": 10 if name == "two" else 0} for name in names]


def bind(args):
    name, namespace = args["PodName"], args["PodNamespace"]
    binding = {
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": args["PodUID"]},
        "target": {"apiVersion": "v1", "kind": "Node", "name": args["Node"]},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    command = ["kubectl", "create", "--raw", path, "-f", "-"]
    done = subprocess.run(command, input=json.dumps(binding), capture_output=True, text=True)
    return {"Error": done.stderr if done.returncode else ""}


VERBS = {"filter": filter_nodes, "prioritize": prioritize, "bind": bind}


class Extender(Handler):
    def do_POST(self):
        args = json.loads(self.body())
        verb = self.path.removeprefix("/gpus/")
        name = args["PodName"] if verb == "bind" else args["Pod"]["metadata"]["name"]
        with open(calls, "a") as out:
            out.write(f"{verb} {name}\n")
        self.answer(200, json.dumps(VERBS[verb](args)).encode())


serve(Extender, port_file)
