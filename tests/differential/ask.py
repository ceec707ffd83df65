#!/usr/bin/env python3
"""Sends the same requests to two API servers, and counts the differences of their answers.

usage: ask.py --upstream URL --ours URL --token T --bases FILE --full FOLDER [--requests N]
         [--seed S] [--from I] [--processes P] [--out FILE] [--only VERB/BASE-REGEX] [--again FILE]
`--bases`: YAML, name → {path, obj}; `--full`: one object per file with every field of its kind.
The exit status is 1 if there are more families of differences than --families.
"""

import argparse, base64, collections, glob, http.client, json, multiprocessing, os, re, ssl, sys
import time, urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import classes, compare, mutations, sessions

# Parallel clients, each with a namespace for its writes.
PROCESSES_MAX = 8


class Server:
    def __init__(self, url, token):
        parts = urllib.parse.urlparse(url)
        self.host, self.port, self.token, self.connection = parts.hostname, parts.port, token, None
        self.context = ssl._create_unverified_context()

    def ask(self, request):
        headers = {"Authorization": "Bearer " + self.token, "Accept": "application/json"}
        if request["body"] is not None:
            headers["Content-Type"] = "application/json"
        headers.update(request["headers"])
        path = urllib.parse.quote(request["path"], safe="/%!") + (
            "?" + urllib.parse.urlencode(request["query"]) if request["query"] else ""
        )
        for attempt in (0, 1):
            if self.connection is None:
                self.connection = http.client.HTTPSConnection(
                    self.host, self.port, context=self.context, timeout=60
                )
            try:
                body = request["body"]
                self.connection.request(
                    request["method"], path,
                    body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body,
                    headers,
                )
                answer = self.connection.getresponse()
                body = answer.read()
                if "protobuf" not in (answer.getheader("Content-Type") or ""):
                    body = body.decode("utf-8", "replace")
                warnings = [
                    value for name, value in answer.getheaders() if name.lower() == "warning"
                ]
                return answer.status, (answer.getheader("Content-Type") or ""), warnings, body
            except (http.client.HTTPException, OSError) as error:
                self.connection = None
                if attempt:
                    return 0, "", [], f"no answer: {type(error).__name__}"

    def watch(self, request, wanted, moment=0.15):
        """The events of a watch: `wanted` of them if the number is known, the bookmark that ends
        the initial events if it was requested, and what arrives within `moment` seconds after that.
        """
        query = request["query"]
        first = query.get("allowWatchBookmarks") in ("true", "1") and (
            query.get("sendInitialEvents") == "true" or query.get("resourceVersion") in ("", "0")
        )
        path = (
            urllib.parse.quote(request["path"], safe="/%!")
            + "?"
            + urllib.parse.urlencode(request["query"])
        )
        connection = http.client.HTTPSConnection(
            self.host, self.port, context=self.context, timeout=10
        )
        try:
            connection.request(
                "GET", path,
                headers={
                    "Authorization": "Bearer " + self.token, "Accept": "application/json",
                    **request["headers"],
                },
            )
            answer = connection.getresponse()
            kind, body, framed = (
                answer.getheader("Content-Type") or "", b"",
                "protobuf" in (answer.getheader("Content-Type") or ""),
            )
            until = time.monotonic() + 5
            connection.sock.settimeout(moment)
            while time.monotonic() < until:
                try:
                    part = answer.read1(1 << 20)
                except (TimeoutError, ssl.SSLError):
                    over = (
                        answer.status != 200
                        or not first
                        or b"initial-events-end" in body
                        or b"ERROR" in body
                    )
                    if over and (wanted is None or len(compare.frames(body, framed)) >= wanted):
                        break
                    answer.fp.raw._timeout_occurred = False
                    continue
                if not part:
                    break
                body += part
            return (
                answer.status, kind,
                [value for name, value in answer.getheaders() if name.lower() == "warning"],
                (
                    body
                    if framed or answer.status != 200 and "protobuf" in kind
                    else body.decode("utf-8", "replace")
                ),
            )
        except (http.client.HTTPException, OSError) as error:
            return 0, "", [], f"no answer: {type(error).__name__}"
        finally:
            connection.close()

    def simple(self, method, path, body=None, content="application/json"):
        code, _, _, text = self.ask({
            "method": method, "path": path, "query": {}, "headers": {"Content-Type": content},
            "body": None if body is None else json.dumps(body),
        })
        return code, text


def prepare(servers, bases):
    """Prepares the same state on both: two namespaces with their service account, and one stored
    object of each base that both can store."""
    for server in servers:
        for namespace in ("a", "b", *(f"w{index}" for index in range(PROCESSES_MAX))):
            server.simple("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            server.simple(
                "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts",
                {"metadata": {"name": "default"}},
            )
    taken, same = set(), {}
    for name, base in bases.items():
        own = base["obj"].get("metadata", {}).get("name")
        # Objects that affect later requests, or change by themselves, are not stored.
        if (
            not own
            or name in (
                "namespace", "limitrange", "resourcequota", "vwc", "mwc", "vap", "vapb", "map",
                "mapb", "apiservice", "crd", "servicecidr", "flowschema", "plc", "priorityclass",
                "runtimeclass", "node",
            )
            or (base["path"], own) in taken
        ):
            continue
        answers = [server.simple("POST", base["path"], base["obj"]) for server in servers]
        if [code for code, _ in answers] == [201, 201]:
            taken.add((base["path"], own))
            stored = json.loads(answers[0][1])
            # Jobs and their pods contain their own uid: a client that sends one back must send each
            # server its own.
            uids = [json.loads(text).get("metadata", {}).get("uid") for _, text in answers]
            if all(uids):
                same[uids[0]] = uids[1]
            for key in ("resourceVersion", "uid", "creationTimestamp", "managedFields"):
                stored["metadata"].pop(key, None)
            # Each server chooses addresses and ports; a write without them keeps the stored ones.
            for key in ("clusterIP", "clusterIPs", "healthCheckNodePort"):
                if isinstance(stored.get("spec"), dict) and stored["spec"].get(key) not in (
                    "None", ["None"],
                ):
                    stored["spec"].pop(key, None)
            for port in (stored.get("spec") or {}).get("ports") or []:
                port.pop("nodePort", None)
            stored.pop("status", None)
            # The name of the token's volume is random: one server would receive the other's.
            pod = stored.get("spec") or {}
            pod["volumes"] = (
                [
                    volume
                    for volume in pod.get("volumes") or []
                    if not volume["name"].startswith("kube-api-access-")
                ]
                if "volumes" in pod
                else None
            )
            if not pod.get("volumes"):
                pod.pop("volumes", None)
            for container in (pod.get("containers") or []) + (pod.get("initContainers") or []):
                mounts = [
                    mount
                    for mount in container.get("volumeMounts") or []
                    if not mount["name"].startswith("kube-api-access-")
                ]
                container.pop("volumeMounts", None)
                if mounts:
                    container["volumeMounts"] = mounts
            base["stored"] = stored
        elif answers[0][0] != answers[1][0]:
            print(
                f"not stored: {name}: upstream {answers[0]}, ours {answers[1]}"[:400],
                file=sys.stderr,
            )
    return same


def exchanged(text, pairs):
    if isinstance(text, bytes):
        return text
    for old, new in pairs:
        text = text.replace(old, new) if old in text else text
    return text


def said(answer):
    """The parts of an answer that later steps may refer to: version, uid, continue token and body.
    """
    body, found = answer[3], {}
    if isinstance(body, str):
        try:
            body_of = json.loads(body)
            meta = body_of.get("metadata") or {}
            found = {
                "rv": meta.get("resourceVersion"), "uid": meta.get("uid"),
                "continue": meta.get("continue"),
            }
            # The version of a list is the server's, which other clients' writes change, not the
            # object's.
            if "rows" in body_of or "items" in body_of:
                found.pop("rv")
        except (ValueError, AttributeError):
            pass
    return {**{key: value for key, value in found.items() if isinstance(value, str)}, "body": body}


def resolved(step, answers):
    """The step with this server's earlier answers in place of the references."""
    last = next((answer["rv"] for answer in reversed(answers) if "rv" in answer), "1")

    def put(text):
        text = text.replace("$rvlast", last)
        return re.sub(
            r"\$(rv|uid|continue)(\d+)",
            lambda found: (
                answers[int(found[2])].get(found[1], "1") if int(found[2]) < len(answers) else "1"
            ),
            text,
        )

    body = step["body"]
    if body is not None and body.startswith("$raw"):
        body = base64.b64decode(body[4:])
    elif body is not None and body.startswith("$body"):
        body = answers[int(body[5:])]["body"]
    elif body is not None:
        body = put(body)
    return {
        **step, "query": {key: put(value) for key, value in step["query"].items()}, "body": body,
    }


def session(upstream, ours, request):
    """Sends the steps in turn; the first difference ends the session, because the following ones
    would only repeat it."""
    answers, found, code, happened, over = ([], []), [], 200, [], False
    for number, step in enumerate(request["steps"]):
        if (found or over) and step["kind"] != "cleanup" and not (found and step["end"]):
            continue
        if found:
            # Objects that a session leaves would appear in the lists of other clients.
            for server, said_before in zip((upstream, ours), answers):
                server.ask(resolved(step, said_before))
            continue
        if step["kind"] == "watch":
            # A difference is checked again with a longer wait: a busy machine is slow.
            for moment in (0.15, 1.5):
                want = upstream.watch(resolved(step, answers[0]), None, moment)
                got = ours.watch(
                    resolved(step, answers[1]),
                    len(compare.frames(want[3], isinstance(want[3], bytes))), moment,
                )
                if not compare.compare(step, want, got):
                    break
        else:
            want, got = upstream.ask(resolved(step, answers[0])), ours.ask(
                resolved(step, answers[1])
            )
        answers[0].append(said(want))
        answers[1].append(said(got))
        if step["kind"] == "cleanup":
            continue
        code = want[0]
        happened.append(code)
        # The session cannot continue; its further objects are removed nevertheless.
        over = number == 0 and code >= 400
        if want[0] != 0:
            found = [(f"{what}", *pair) for what, *pair in compare.compare(step, want, got)]
        if found:
            request = {
                **request, "steps": request["steps"][: number + 1], "step": number,
                "codes": list(happened),
                "verb": f"session {step['kind'] if step['kind'] == 'watch' else step['method']}",
                "body": step["body"], "method": step["method"], "path": step["path"],
                "query": step["query"], "headers": step["headers"],
            }
    return code, request, found, len(happened)


def work(arguments, bases, full, same, index, numbers, results):
    """One client's share of the requests; returns an error as text, so that the run does not wait
    for it."""
    try:
        share(arguments, bases, full, same, index, numbers, results)
    except Exception:
        import traceback

        results.put(traceback.format_exc())
    else:
        results.put(None)


def share(arguments, bases, full, same, index, numbers, results):
    upstream, ours = (Server(url, arguments.token) for url in (arguments.upstream, arguments.ours))
    maker = mutations.Maker(bases, full, arguments.seed)
    maker.packed = {kind: path for kind, path in arguments.packed.items()}
    together = sessions.Maker(maker, f"w{index}")
    for number in numbers:
        if number % 100 < arguments.sessions:
            request = together.session(number)
            if not arguments.only or re.search(arguments.only, f"session/{request['base']}"):
                code, request, found, count = session(upstream, ours, request)
                results.put((number, code, (request, found) if found else None, count))
            continue
        request = maker.request(number)
        if arguments.only and not re.search(arguments.only, f"{request['verb']}/{request['base']}"):
            continue
        own = (
            request
            if request["body"] is None
            else {**request, "body": exchanged(request["body"], same.items())}
        )
        # Another client may create and delete objects meanwhile, so a list of all namespaces is
        # repeated before it counts as different.
        for _ in range(4 if request["method"] == "GET" or request["verb"] == "delete" else 1):
            want, got = upstream.ask(request), ours.ask(own)
            got = (*got[:3], exchanged(got[3], [(new, old) for old, new in same.items()]))
            # No answer (upstream panics on some inputs) is not a specification.
            found = [] if want[0] == 0 else compare.compare(request, want, got)
            if not found:
                break
        results.put((number, want[0], (request, found) if found else None, 1))


def named(path):
    """The kind of a golden object, from the JSON file of the same name."""
    obj = json.load(open(path.removesuffix(".pb") + ".json"))
    return (obj["apiVersion"], obj["kind"]) if obj.get("kind") else None


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("upstream", "ours", "token", "bases", "full"):
        p.add_argument("--" + name, required=True)
    p.add_argument("--requests", type=int, default=100000)
    p.add_argument("--from", type=int, default=0, dest="first")
    p.add_argument("--seed", default="1")
    p.add_argument(
        "--processes", type=int, default=6,
        help=f"clients at once, {PROCESSES_MAX} at most: each waits most of the time",
    )
    p.add_argument(
        "--out",
        help="what differed, a line of JSON each, and at last the figures: of such files "
             "families.py makes the list of all that differs",
    )
    p.add_argument(
        "--again",
        help="an --out of the same seed: repeats only those of its requests whose difference has no "
             "class",
    )
    p.add_argument("--only")
    p.add_argument(
        "--sessions", type=int, default=15,
        help="how many of a hundred are sessions of several requests",
    )
    p.add_argument("--families", type=int, default=20)
    a = p.parse_args()
    import yaml

    bases = yaml.safe_load(open(a.bases))
    full = {}
    for path in glob.glob(a.full + "/*.json"):
        obj = json.load(open(path))
        full[(obj.get("apiVersion"), obj.get("kind"))] = obj
    a.packed = {
        kind: path for path in glob.glob(a.full + "/*.pb") for kind in [named(path)] if kind
    }
    bases = json.loads(json.dumps(bases))
    same = prepare([Server(a.upstream, a.token), Server(a.ours, a.token)], bases)
    results = multiprocessing.Queue(10000)
    numbers = range(a.first, a.first + a.requests)
    if a.again:
        numbers = sorted(
            {line["request"]["id"] for line in map(json.loads, open(a.again)) if "family" in line}
        )
    a.processes = max(1, min(a.processes, PROCESSES_MAX))
    workers = [
        multiprocessing.Process(
            target=work, args=(a, bases, full, same, index, numbers[index :: a.processes], results)
        )
        for index in range(a.processes)
    ]
    for worker in workers:
        worker.start()
    broken = []
    sent, differ, codes, families, explained, examples, left = (
        0, 0, collections.Counter(), collections.Counter(), collections.Counter(), {}, len(workers),
    )
    out = open(a.out, "w") if a.out else None
    while left:
        result = results.get()
        if result is None or isinstance(result, str):
            left -= 1
            broken.extend([result] if result else [])
            continue
        number, code, found, count = result
        sent += count
        codes[code] += 1
        if sum(codes.values()) % 1000 == 0:
            print(
                f"{sent} requests, {differ} differ, {sum(families.values())} in no class",
                file=sys.stderr, flush=True,
            )
        if found:
            differ += 1
            request, what = found
            known = classes.of(request, what)
            if known:
                explained[known] += 1
                if out:
                    out.write(
                        json.dumps({"class": known, "request": request, "differences": what[:20]})
                        + "\n"
                    )
                continue
            name = compare.family(request, what)
            families[name] += 1
            examples.setdefault(name, (request, what))
            if out:
                out.write(
                    json.dumps({"family": name, "request": request, "differences": what[:20]})
                    + "\n"
                )
    print(
        "upstream's codes:",
        ", ".join(f"{code or 'no answer'}: {count}" for code, count in sorted(codes.items())),
    )
    for name, count in families.most_common(200):
        request, what = examples[name]
        print(f"{count:6} {name}\n         e.g. request {request['id']}")
    for name, count in explained.most_common():
        print(f"{count:6} known: {name}: {classes.reasons()[name]}")
    print(
        f"{sent} requests, {differ} answered differently: {sum(explained.values())} in "
        f"{len(explained)} known classes, {sum(families.values())} in {len(families)} families "
        "that are none"
    )
    if out:
        out.write(
            json.dumps({
                "seed": a.seed, "asked": sent, "differ": differ, "classes": explained,
                "none": sum(families.values()), "codes": codes,
            })
            + "\n"
        )
        out.close()
    for said in broken:
        print(f"a client ended before its share was asked:\n{said}", file=sys.stderr)
    sys.exit(0 if not broken and len(families) <= a.families else 1)


if __name__ == "__main__":
    main()
