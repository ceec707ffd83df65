#!/usr/bin/env python3
"""writers.py URL KUBECONFIG fill N | write FILE: Secrets over the API. fill creates N of them;
write changes four of them until it is killed, across restarts of the server, and records the
acknowledged writes in FILE."""

import base64, http.client, json, os, re, ssl, sys, tempfile, threading, time

url, text, what = sys.argv[1], open(sys.argv[2]).read(), sys.argv[3]
bytes_of = lambda key: base64.b64decode(re.search(key + r": *(\S+)", text).group(1))
context = ssl.create_default_context(cadata=bytes_of("certificate-authority-data").decode())
context.check_hostname = False
with tempfile.NamedTemporaryFile() as pem:
    pem.write(bytes_of("client-certificate-data") + b"\n" + bytes_of("client-key-data"))
    pem.flush()
    context.load_cert_chain(pem.name)
host = re.sub(".*//", "", url)


def connect():
    return http.client.HTTPSConnection(host, context=context, timeout=30)


def ask(connection, method, path, body, kind="application/json"):
    connection.request(method, path, json.dumps(body), {"content-type": kind})
    answer = connection.getresponse()
    return answer.status, answer.read()


def secret(name, value):
    return {
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
        "stringData": {"v": value},
    }


def fill(part, count):
    connection = connect()
    for i in range(part, count, 8):
        status, said = ask(
            connection, "POST", "/api/v1/namespaces/default/secrets",
            secret(f"s{i}", f"canary-of-a-rotation-{i}"),
        )
        assert status == 201, said


def write(name, acknowledged):
    connection, count = connect(), 0
    while True:
        count += 1
        try:
            status, _ = ask(
                connection, "PATCH", f"/api/v1/namespaces/default/secrets/{name}",
                {"stringData": {"v": str(count)}}, "application/merge-patch+json",
            )
            if status == 200:
                acknowledged[name] = count
        except (OSError, http.client.HTTPException):
            connection.close()
            connection = connect()
            time.sleep(0.05)


if what == "fill":
    parts = [threading.Thread(target=fill, args=(part, int(sys.argv[4]))) for part in range(8)]
    [part.start() for part in parts]
    [part.join() for part in parts]
else:
    acknowledged = {}
    for i in range(4):
        threading.Thread(target=write, args=(f"s{i}", acknowledged), daemon=True).start()
    while True:
        time.sleep(0.02)
        with open(sys.argv[4] + ".new", "w") as out:
            json.dump(dict(acknowledged), out)
        os.rename(sys.argv[4] + ".new", sys.argv[4])
