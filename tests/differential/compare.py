"""Compares two answers to the same request, without regard to time and the server's choices (uids,
times, versions, addresses)."""

import collections, json, re

import yaml

MARKS = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UID"),
    (
        re.compile(
            r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| [+-]\d+ UTC(?: m=[+-][\d.]+)?)?"
        ),
        "TIME",
    ),
    (re.compile(r"(kube-api-access-)[a-z0-9]{5}\b"), r"\1RANDOM"),
    (re.compile(r"\b10\.(?:96|43)\.\d+\.\d+\b"), "ADDRESS"),
    (re.compile(r"\b(?:3[0-2]\d\d\d)\b"), "PORT"),
    # In a quoted object.
    (re.compile(r'(\\*"resourceVersion\\*":\\*")\d+'), r"\1VERSION"),
    (re.compile(r'(\n *resourceVersion: ")\d+'), r"\1VERSION"),
    (re.compile(r"(the ResourceVersion in record \()\d+"), r"\1VERSION"),
    (
        re.compile(
            r"((?:resource version|ResourceVersion|current|record|meta|precondition)[:(]? ?\(?)\d+"
        ),
        r"\1VERSION",
    ),
    (re.compile(r"(too old resource version: )\d+ \(\d+\)"), r"\1VERSION"),
    (re.compile(r'("[a-z0-9.-]*-)[bcdfghjklmnpqrstvwxz2456789]{5}(")'), r"\1RANDOM\2"),
    (re.compile(r"eyJ2IjoibWV0YS5r[\w-]+"), "CONTINUE"),
    (re.compile(r"eyJhbGci[\w-]+\.[\w-]+\.[\w-]+"), "TOKEN"),
    # The rest is a dump of the server's own structures.
    (re.compile(r"(may not change fields other than [^\n]*)\n.*", re.S), r"\1"),
]
OWN = {
    "resourceVersion", "uid", "creationTimestamp", "time", "nodePort", "healthCheckNodePort",
    "selfLink", "continue", "clusterIP", "clusterIPs",
}


def text(value, sent):
    for mark, name in MARKS:
        if mark.groups:
            value = mark.sub(name, value)
        else:
            value = mark.sub(lambda found: found[0] if found[0] in sent else name, value)
    return value


def normal(value, sent, key=""):
    if isinstance(value, dict):
        out = {}
        if value.get("kind") == "Table":
            value = {
                **value,
                "columnDefinitions": [
                    {**column, "description": ""} for column in value.get("columnDefinitions") or []
                ],
            }
        for name, part in value.items():
            if name in OWN and not isinstance(part, (dict, list)) and json.dumps(part) not in sent:
                part = "OWN"
            elif (
                name == "name"
                and isinstance(value.get("generateName"), str)
                and isinstance(part, str)
                and part.startswith(value["generateName"])
                and value["generateName"]
            ):
                part = value["generateName"] + "RANDOM"
            out[name] = normal(part, sent, name)
        # Entries of the same second are sorted by manager, those of different seconds by time.
        if isinstance(out.get("managedFields"), list):
            out["managedFields"].sort(
                key=lambda entry: (
                    json.dumps({**entry, "fieldsV1": None, "time": None}, sort_keys=True)
                    if isinstance(entry, dict)
                    else ""
                )
            )
        return out
    if isinstance(value, list):
        return [normal(part, sent, key) for part in value]
    return text(value, sent) if isinstance(value, str) else value


def joined_sorted(said):
    """A message with its errors sorted by text."""
    joined = re.match(r"(.*?: )\[(.*)\]$", said, re.S)
    return joined[1] + "[" + ", ".join(sorted(joined[2].split(", "))) + "]" if joined else said


def status(body):
    """Causes have no order, and neither have the parts of the joined message."""
    if isinstance(body, dict) and body.get("kind") == "Status":
        if isinstance(body.get("details"), dict) and isinstance(
            body["details"].get("causes"), list
        ):
            body["details"]["causes"].sort(key=lambda cause: json.dumps(cause, sort_keys=True))
        said = body.get("message")
        if isinstance(said, str):
            body["message"] = joined_sorted(said)
    # Upstream iterates over its bindings in the order of a Go map, which is random.
    if (
        isinstance(body, dict)
        and body.get("kind") == "SelfSubjectRulesReview"
        and isinstance(body.get("status"), dict)
    ):
        for name in ("resourceRules", "nonResourceRules"):
            (body["status"].get(name) or []).sort(key=lambda rule: json.dumps(rule, sort_keys=True))
    if isinstance(body, dict) and isinstance(body.get("object"), dict) and "type" in body:
        body["object"] = status(body["object"])
    if isinstance(body, dict) and body.get("kind") == "Table":
        ages = [
            index
            for index, column in enumerate(body.get("columnDefinitions", []))
            if column.get("name") in ("Age", "Last Seen", "First Seen")
        ]
        for row in body.get("rows") or []:
            for index in ages:
                if index < len(row.get("cells", [])):
                    row["cells"][index] = "AGE"
            # The later events of a watch have no columns.
            row["cells"] = [
                "AGE" if isinstance(cell, str) and re.fullmatch(r"\d+s", cell) else cell
                for cell in row.get("cells") or []
            ]
    return body


def frames(body, framed):
    """The events of a watch's body: lines of JSON, or length-prefixed frames of protobuf."""
    if not framed:
        return [
            line
            for line in (body if isinstance(body, str) else body.decode("utf-8", "replace")).split(
                "\n"
            )
            if line
        ]
    found, at = [], 0
    while at + 4 <= len(body):
        length = int.from_bytes(body[at : at + 4], "big")
        found.append(body[at + 4 : at + 4 + length])
        at += 4 + length
    return found


def unpacked(data, depth=0):
    """A protobuf message without its schema: (number, value) pairs; a value that can be parsed as a
    message is one. None if it cannot be parsed."""
    out, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    try:
        while at < len(data):
            key = varint()
            number, kind = key >> 3, key & 7
            if not 0 < number < 3000:
                return None
            if kind == 0:
                value = varint()
            elif kind == 1:
                value, at = data[at : at + 8].hex(), at + 8
            elif kind == 2:
                length = varint()
                value, at = data[at : at + length], at + length
                if at > len(data):
                    return None
                inner = (
                    unpacked(value.removeprefix(b"k8s\0"), depth + 1)
                    if value and depth < 40
                    else None
                )
                readable = value.decode("utf-8", "replace")
                value = readable if inner is None or readable.isprintable() else inner
            else:
                return None
            out.append([number, value])
    except IndexError:
        return None
    return out


def masked(value, sent):
    """An unpacked message without times, uids, versions."""
    if isinstance(value, list):
        return [masked(part, sent) for part in value]
    if isinstance(value, int) and 1_750_000_000 < value < 2_100_000_000:
        return "TIME"
    if isinstance(value, str):
        if (
            value.startswith("eyJ2IjoibWV0YS5r")
            or value.isdigit()
            and json.dumps(value) not in sent
        ):
            return "OWN"
        if value.startswith("{"):
            try:
                return status(normal(json.loads(value), sent))
            except ValueError:
                pass
        return text(value, sent)
    return value


def unordered(value):
    """An unpacked message with unordered parts sorted: owners of the same second, and causes of a
    Status with the message that joins them."""
    if not isinstance(value, list):
        return value
    value = [unordered(part) for part in value]
    fields = [
        part
        for part in value
        if isinstance(part, list) and len(part) == 2 and isinstance(part[0], int)
    ]
    if len(fields) != len(value):
        return value
    # Field 17 of metadata: the owners.
    owners = sorted(
        (part for part in value if part[0] == 17 and isinstance(part[1], list)),
        key=lambda part: json.dumps([f for f in part[1] if f[0] not in (4, 7)], sort_keys=True),
    )
    rest = iter(owners)
    value = [next(rest) if part[0] == 17 and isinstance(part[1], list) else part for part in value]
    for part in value:
        if part[0] == 17 and isinstance(part[1], list):
            # Only the JSON comparison covers their times.
            part[1] = [field for field in part[1] if field[0] != 4]
    # Status: 3 its message, 5 its details, of which 4 are the causes.
    if [2, "Failure"] in value:
        value = [
            [3, joined_sorted(part[1])] if part[0] == 3 and isinstance(part[1], str) else part
            for part in value
        ]
        for part in value:
            if part[0] == 5 and isinstance(part[1], list):
                part[1].sort(
                    key=lambda field: (
                        json.dumps(field, sort_keys=True)
                        if isinstance(field, list) and field[0] == 4
                        else ""
                    )
                )
    return value


def packed(body, sent):
    if not body.startswith(b"k8s\0"):
        return body.decode("utf-8", "replace")
    return unordered(masked(unpacked(body[4:]), sent))


def same_yaml(want, got, sent):
    """Whether two documents have the same lines and content: owners of the same second have no
    order."""
    if collections.Counter(want.split("\n")) != collections.Counter(got.split("\n")):
        return False
    try:
        return normal(yaml.load(want, yaml.CSafeLoader), sent) == normal(
            yaml.load(got, yaml.CSafeLoader), sent
        )
    except (yaml.YAMLError, AttributeError):
        return False


def parsed(answer, sent, watch=False):
    code, kind, warnings, body = answer
    if isinstance(body, bytes):
        if watch and code == 200:
            body = [packed(b"k8s\0" + frame, sent) for frame in frames(body, True)]
        else:
            body = packed(body, sent)
        return code, kind, sorted(text(w, sent) for w in warnings), body
    if watch and code == 200:
        try:
            return (
                code, kind, sorted(text(w, sent) for w in warnings),
                [status(normal(json.loads(line), sent)) for line in frames(body, False)],
            )
        except ValueError:
            pass
    try:
        body = status(normal(json.loads(body), sent))
    except ValueError:
        body = text(body, sent)
    return code, kind, sorted(text(w, sent) for w in warnings), body


def differences(want, got, at=""):
    if isinstance(want, dict) and isinstance(got, dict):
        for key in sorted(set(want) | set(got)):
            if key not in want or key not in got:
                yield f"{at}.{key}", want.get(key, "(absent)"), got.get(key, "(absent)")
            else:
                yield from differences(want[key], got[key], f"{at}.{key}")
    elif isinstance(want, list) and isinstance(got, list) and len(want) == len(got):
        for index, pair in enumerate(zip(want, got)):
            yield from differences(*pair, f"{at}[{index}]")
    elif want != got or isinstance(want, bool) != isinstance(got, bool):
        yield at or ".", want, got


def agree(want, got, sent):
    """Whether two bodies are equal without normalization, as most are."""
    if isinstance(want, dict):
        if not isinstance(got, dict) or want.keys() != got.keys():
            return False
        for name, part in want.items():
            other = got[name]
            if name in OWN and isinstance(part, str) and isinstance(other, str) and part != other:
                if json.dumps(part) in sent or json.dumps(other) in sent:
                    return False
            elif not agree(part, other, sent):
                return False
        return True
    if isinstance(want, list):
        return (
            isinstance(got, list)
            and len(want) == len(got)
            and all(agree(*pair, sent) for pair in zip(want, got))
        )
    if isinstance(want, str) and isinstance(got, str):
        return want == got or text(want, sent) == text(got, sent)
    return want == got and isinstance(want, bool) == isinstance(got, bool)


def lasting(answer):
    """A watch without the periodic bookmarks; the one that ends the initial events stays."""
    code, kind, warnings, body = answer
    if isinstance(body, list):
        marks = lambda event: (
            event.get("type") == "BOOKMARK"
            if isinstance(event, dict)
            else isinstance(event, list) and [1, "BOOKMARK"] in event
        )
        body = [
            event for event in body if not marks(event) or "initial-events-end" in json.dumps(event)
        ]
    return code, kind, warnings, body


def the_same(want, got, sent):
    """Whether two answers in JSON are equal in all compared parts."""
    if want[:3] != got[:3] or not isinstance(want[3], str) or not isinstance(got[3], str):
        return False
    if want[3] == got[3]:
        return True
    try:
        return agree(json.loads(want[3]), json.loads(got[3]), sent)
    except ValueError:
        return False


def made(answer, body):
    """The answer without the suffix that a server added to a `generateName` of unusual form."""
    prefix = re.search(r'"generateName": "((?:[^"\\]|\\.)+)"', body or "")
    if not prefix or not isinstance(answer[3], str):
        return answer
    return (
        *answer[:3],
        re.sub(
            "(" + re.escape(prefix[1]) + r")[bcdfghjklmnpqrstvwxz2456789]{5}\b", r"\1RANDOM",
            answer[3],
        ),
    )


def compare(request, want, got):
    """The differences of two answers (code, content type, warnings, body): (class, what, want, got)
    each."""
    sent = (request["body"] or "") + json.dumps(request["query"]) + request["path"]
    # Kinds and fields without effect cause a warning that upstream does not have.
    own = re.compile(
        r": has no effect: |: not supported: "
        r"(this pod will not start|its pods will not start|it has no effect)$"
    )
    got = (*got[:2], [warning for warning in got[2] if not own.search(warning)], got[3])
    if the_same(want, got, sent):
        return []
    want, got = (
        parsed(made(answer, request["body"]), sent, request.get("kind") == "watch")
        for answer in (want, got)
    )
    if request.get("kind") == "watch":
        want, got = lasting(want), lasting(got)
    found = []
    if want[0] != got[0]:
        found.append(("code", want[0], got[0]))
        # The other differences follow from this one; the error is shown.
        said = [
            (
                body.get("message", "")
                if isinstance(body, dict) and body.get("kind") == "Status"
                else ""
            )
            for body in (want[3], got[3])
        ]
        found.append(("message", *said))
        return found
    if want[1] != got[1]:
        found.append(("content type", want[1], got[1]))
    if want[2] != got[2]:
        found.append(("warnings", want[2], got[2]))
    if not (
        isinstance(want[3], str)
        and isinstance(got[3], str)
        and "yaml" in want[1]
        and same_yaml(want[3], got[3], sent)
    ):
        found.extend((f"body{at}", *pair) for at, *pair in differences(want[3], got[3]))
    return found


def family(request, found):
    """A name for the difference without indexes, names and numbers, so that equal ones share one
    line."""
    what, want, got = found[-1] if found[0][0] == "code" else found[0]
    blank = lambda value: re.sub(r"\d+", "N", re.sub(r"\"[^\"]*\"", '""', str(value)))[:110]
    place = re.sub(r"\[\d+\]", "[]", what)
    if found[0][0] == "code":
        request_name = f"{request['verb']} {request['base']}"
        return f"{request_name}: {found[0][1]} is {found[0][2]}: {blank(want or got)}"
    return (
        f"{request['verb']} {request['base']} {place}: {blank(want)} | {blank(got)}"
        if "message" not in place
        else f"{request['verb']} {request['base']} message: {blank(want)} | {blank(got)}"
    )
