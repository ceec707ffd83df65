#!/usr/bin/env python3
"""Writers that record acknowledged writes, and the check of what is stored.

writers.py KUBECONFIG HISTORY N [PREFIX]
    N writers create and update ConfigMaps until HISTORY.stop exists; PREFIX begins their names
writers.py --wait HISTORY COUNT
    waits for COUNT acknowledged writes
writers.py --check KUBECONFIG HISTORY
    checks the stored objects against the history
"""

import base64, http.client, json, os, ssl, sys, tempfile, threading, time
import yaml

PATH = "/api/v1/namespaces/default/configmaps"


def connect(config):
    k = yaml.safe_load(open(config))
    host, port = k["clusters"][0]["cluster"]["server"].removeprefix("https://").split(":")
    context = ssl.create_default_context(
        cadata=base64.b64decode(k["clusters"][0]["cluster"]["certificate-authority-data"]).decode()
    )
    user = k["users"][0]["user"]
    with tempfile.NamedTemporaryFile() as cert, tempfile.NamedTemporaryFile() as key:
        cert.write(base64.b64decode(user["client-certificate-data"]))
        cert.flush()
        key.write(base64.b64decode(user["client-key-data"]))
        key.flush()
        context.load_cert_chain(cert.name, key.name)
    return http.client.HTTPSConnection(host, int(port), context=context, timeout=10)


def ask(connection, method, path, body=None):
    connection.request(
        method, path, json.dumps(body) if body is not None else None,
        {"Content-Type": "application/json"},
    )
    response = connection.getresponse()
    return response.status, json.loads(response.read() or b"{}")


def writer(name, config, history, lock, stop):
    connection, serial, exists = None, 0, False
    while not os.path.exists(stop):
        serial += 1
        body = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"serial": str(serial)},
        }
        try:
            connection = connection or connect(config)
            method, path = ("PUT", f"{PATH}/{name}") if exists else ("POST", PATH)
            code, answer = ask(connection, method, path, body)
        except (OSError, http.client.HTTPException, ValueError):
            # Not acknowledged: the write may have happened.
            connection = None
            with lock:
                history.write(f"{name} {serial} ? 0\n")
                history.flush()
            time.sleep(0.02)
            continue
        if code in (200, 201):
            exists = True
            with lock:
                history.write(f"{name} {serial} ok {answer['metadata']['resourceVersion']}\n")
                history.flush()
        elif code == 409 and not exists:
            exists = True  # an unacknowledged creation did happen
        elif code == 404 and exists:
            with lock:
                history.write(f"{name} {serial} lost 0\n")
                history.flush()
            exists = False
        else:
            # Rejected, or unknown.
            with lock:
                history.write(f"{name} {serial} ? 0\n")
                history.flush()
            time.sleep(0.02)


def main():
    if sys.argv[1] == "--wait":
        history, count = sys.argv[2], int(sys.argv[3])
        deadline = time.time() + 120
        while time.time() < deadline:
            if os.path.exists(history) and sum(" ok " in line for line in open(history)) >= count:
                return
            time.sleep(0.02)
        sys.exit("the writers make no progress")
    if sys.argv[1] == "--check":
        check(sys.argv[2], sys.argv[3])
        return
    config, path, count, prefix = sys.argv[1], sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])
    lock = threading.Lock()
    with open(path, "w") as history:
        threads = [
            threading.Thread(
                target=writer, args=(f"w{prefix}{i}", config, history, lock, path + ".stop")
            )
            for i in range(count)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def check(config, path):
    acknowledged, tried, versions, faults = {}, {}, {}, []
    for line in open(path):
        name, serial, outcome, version = line.split()
        tried[name] = int(serial)
        if outcome == "lost":
            faults.append(f"{name}: vanished before write {serial}")
        if outcome == "ok":
            acknowledged[name] = int(serial)
            if int(version) <= versions.get(name, 0):
                faults.append(f"{name}: version {version} after {versions[name]}")
            versions[name] = int(version)
    _, answer = ask(connect(config), "GET", PATH)
    stored = {o["metadata"]["name"]: o for o in answer["items"]}
    for name, serial in acknowledged.items():
        have = int(stored[name]["data"]["serial"]) if name in stored else 0
        if have < serial:
            faults.append(f"{name}: write {serial} was acknowledged, {have} is there")
        if have > tried[name]:
            faults.append(f"{name}: {have} was never written")
    everything = [
        o["metadata"]["resourceVersion"]
        for o in answer["items"]
        if o["metadata"]["name"].startswith("w")
    ]
    if len(set(everything)) != len(everything):
        faults.append("two objects have one version")
    print(
        f"{sum(' ok ' in l for l in open(path))} acknowledged writes by {len(acknowledged)} writers"
    )
    if faults:
        sys.exit("\n".join(faults))


main()
