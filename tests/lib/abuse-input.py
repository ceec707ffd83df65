"""Invalid heads and bodies: the answers of kube-apiserver 1.37.1 to each, to the letter where the
text is the server's."""

import gzip
from abuse import *

PODS = "/api/v1/namespaces/default/pods"
BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
UNREADABLE = "the object provided is unrecognized (must be of type ConfigMap): "


def answers(name, data, code, text="", closes=None, warning="", slowest=1.0, linger=0.0):
    """One request: its status, a part of the answer, whether the connection ends, and its duration.
    """
    got, body, closed, took, warned = say(data, 10, linger or (1.0 if closes else 0.0))
    message = body.decode(errors="replace")
    try:
        message = json.loads(body).get("message", message)
    except (ValueError, AttributeError):
        pass
    fault = ""
    # If the server closes the connection before it has read the request, the answer may be lost.
    codes = code if isinstance(code, tuple) else (code,)
    if got not in codes or text not in message or warning.encode() not in warned:
        fault = f"want {code} {text!r} {warning!r}, got {got} {message[:300]!r} {warned[:200]!r}"
    elif closes is not None and closed != closes:
        fault = f"the connection is {'closed' if closed else 'open'} after {got}"
    elif took - (linger or (1.0 if closes else 0.0)) > slowest:
        fault = f"took {took:.1f} s"
    check(name, fault)


def heads():
    get = lambda *headers, **more: request("GET", PODS, headers=headers, **more)
    for name, data, code, text in [
        ("no Host", get(host=None), 400, "400 Bad Request: missing required Host header"),
        ("a Host with a space", get(host="a b"), 400, "400 Bad Request: malformed Host header"),
        ("a Host with a slash", get(host="a/b"), 400, "400 Bad Request: malformed Host header"),
        ("two Hosts", get("Host: x"), 400, "400 Bad Request"),
        ("a space before the colon", get("X-A : b"), 400, ""), ("no colon", get("X-A"), 400, ""),
        ("a name with brackets", get("X(A): b"), 400, ""),
        ("NUL in a value", get("X-A: a\0b"), 400, ""),
        ("a folded line", get("X-A: b\r\n c"), 400, ""),
        (
            "two lengths", request("POST", MAPS, "{}", ["Content-Length: 2", "Content-Length: 3"]),
            400, "",
        ),
        ("a negative length", request("POST", MAPS, "{}", ["Content-Length: -1"]), 400, ""),
        (
            "a length beyond numbers", request("POST", MAPS, "{}", ["Content-Length: " + "9" * 24]),
            400, "",
        ),
        (
            "another encoding of the body",
            request("POST", MAPS, "0\r\n\r\n", ["Transfer-Encoding: gzip, chunked"]), 501,
            "Unsupported transfer encoding",
        ),
        (
            "the encoding twice",
            request("POST", MAPS, "0\r\n\r\n", ["Transfer-Encoding: chunked"] * 2), 501,
            "Unsupported transfer encoding",
        ),
        ("bytes that are not HTTP", b"\0\1\2\3\r\n\r\n", 400, ""),
        ("a megabyte of headers", get("X-A: " + "a" * 1200000), (431, 0), ""),
        ("20,000 headers", get(*(f"X-{i}: a" for i in range(20000))), (431, 0), ""),
    ]:
        answers(f"{name} is refused, and the connection ends", data, code, text, closes=True)
    answers(
        "a length with chunks: the chunks count, and the connection ends",
        request("POST", MAPS, "0\r\n\r\n", ["Content-Length: 5", "Transfer-Encoding: chunked"]),
        400, "unexpected end of JSON input", closes=True,
    )
    answers("200 headers are accepted", get(*(f"X-{i}: a" for i in range(200))), 200)
    answers("an unknown token", get(token="nope"), 401, "Unauthorized")
    answers(
        "groups without a user to act as", get("Impersonate-Group: g"), 400,
        'requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"g"}, '
        'Extra:map[string][]string(nil)} without impersonating a user name',
    )
    answers(
        "a user to act as that is no text is not passed over", get("Impersonate-User: a\xff"), 400,
        "is no text",
    )
    answers("what cannot be accepted", get("Accept: text/html"), 406)
    answers(
        "a content type without a name", request("POST", MAPS, "{}", kind=";;;"), 415,
        "the body of the request was in an unknown format",
    )
    answers(
        "a name that leads elsewhere", request("GET", f"{MAPS}/%2e%2e"), 400,
        "Name parameter invalid: \"..\": may not be '..'",
    )
    answers(
        "a name with a percent sign", request("GET", f"{MAPS}/a%25b"), 400,
        "Name parameter invalid: \"a%b\": may not contain '%'",
    )
    answers(
        "a watch that lives longer than time",
        request("GET", f"{MAPS}?watch=1&timeoutSeconds=9223372036854775807"), 200,
    )
    answers(
        "a watch of less than no time", request("GET", f"{MAPS}?watch=1&timeoutSeconds=-5"), 200
    )


def bodies():
    post = lambda body, kind="application/json", **more: request(
        "POST", MAPS, body, kind=kind, **more
    )
    deep = "[" * 9000 + "]" * 9000
    for name, body, code, text in [
        ("no body", "", 400, "unexpected end of JSON input"),
        (
            "half of one", '{"apiVersion":"v1","kind":"ConfigMap"', 400,
            "unexpected end of JSON input",
        ),
        ("NUL in a string", '{"a":"\0"}', 400, "invalid character '\\x00' in string literal"),
        ("NaN", '{"data":{"a":NaN}}', 400, "invalid character 'N' looking for beginning of value"),
        ("two objects", config_map("a") * 2, 400, "after top-level value"),
        ("a list", "[]", 400, "json: cannot unmarshal array into Go value"),
        ("3 MB of brackets", "[" * 3145728, 400, "exceeded max depth"),
        ("3 MB of braces", "{" * 3145728, 400, ""),
        (
            "9,000 lists in one another", f'{{"apiVersion":"v1","kind":"ConfigMap","x":{deep}}}',
            400, "exceeded max depth",
        ),
        ("more than 3 MiB", config_map("a", data={"a": "x" * 3200000}), 413, "limit is 3145728"),
        (
            "more than 1 MiB of data", config_map("a", data={"a": "x" * 1048577}), 422,
            "ConfigMap \"a\" is invalid: []: Too long: may not be more than 1048576 bytes",
        ),
        (
            "100,000 unknown fields",
            json.dumps(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "many"}}
                | {f"x{i}": 1 for i in range(100000)}
            ),
            201, "",
        ),
    ]:
        answers(f"JSON, {name}: {code}", post(body), code, text)
    chunked = b"%x\r\n" % 3300000 + b" " * 3300000 + b"\r\n0\r\n\r\n"
    answers(
        "more than 3 MiB in chunks", post(chunked, headers=["Transfer-Encoding: chunked"]), 413,
        "limit is 3145728",
    )
    for name, body, code, text in [
        (
            "a bomb of aliases", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n" + BOMB,
            400, UNREADABLE,
        ),
        ("an alias of itself", "a: &a [*a]\n", 400, UNREADABLE),
        ("3 MB of brackets", "[" * 3000000, 400, UNREADABLE),
        ("3 MB of dashes", "- " * 1500000, 400, UNREADABLE),
        ("3 MB of question marks", "? " * 1500000, 400, UNREADABLE),
        ("100,000 colons", ":" * 100000, 400, "mapping values are not allowed in this context"),
        ("a tag of another language", "!!python/object:x {}\n", 422, ""),
    ]:
        answers(f"YAML, {name}: {code}", post(body, "application/yaml"), code, text)
    twice = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first}\nmetadata: {name: twice}\n"
    answers(
        "YAML with a key twice: the last counts, with a warning", post(twice, "application/yaml"),
        201, "", warning='line 4: key \\"metadata\\" already set in map',
    )
    strict = request("POST", MAPS + "?fieldValidation=Strict", twice, kind="application/yaml")
    answers("and is refused strictly", strict, 400, 'strict decoding error: ')
    protobuf = "application/vnd.kubernetes.protobuf"
    for name, body, code, text in [
        ("nothing", b"", 400, "empty data"), ("the mark alone", b"k8s\0", 400, "empty body"),
        ("another mark", b"abc", 400, "expected prefix [107 56 115 0]"),
        ("garbage", b"k8s\0" + b"\xff" * 100, 400, ""),
        ("a length of 4 GB", b"k8s\0\x0a\xff\xff\xff\xff\x0f", 400, ""),
    ]:
        answers(f"protobuf, {name}: {code}", post(body, protobuf), code, text)


def patches():
    say(request("POST", MAPS, config_map("target")))
    patch = lambda body, kind: request("PATCH", f"{MAPS}/target", body, kind=f"application/{kind}")
    json_patch, merge, strategic = (
        "json-patch+json", "merge-patch+json", "strategic-merge-patch+json",
    )
    copies = [{"op": "add", "path": "/data", "value": {"a": "x" * 400000}}] + [
        {"op": "copy", "from": "/data/a", "path": f"/data/b{i}"} for i in range(50)
    ]
    doubling = [{"op": "add", "path": "/data", "value": {"a": "x" * 1000}}] + [
        {"op": "copy", "from": "/data", "path": "/data/b"}
    ] * 40
    for name, data, code, text in [
        (
            "10,001 operations",
            patch(json.dumps([{"op": "test", "path": "/kind", "value": "x"}] * 10001), json_patch),
            413, "The allowed maximum operations in a JSON patch is 10000, got 10001",
        ),
        ("copies of 20 MB", patch(json.dumps(copies), json_patch), 422, ""),
        ("copies that double", patch(json.dumps(doubling), json_patch), 422, ""),
        (
            "a test that fails", patch('[{"op":"test","path":"/kind","value":"x"}]', json_patch),
            422, "the server rejected our request due to an error in our request",
        ),
        (
            "a path of 500,000 steps",
            patch(json.dumps([{"op": "add", "path": "/a" * 500000, "value": 1}]), json_patch), 422,
            "",
        ),
        (
            "an index beyond numbers",
            patch(
                json.dumps(
                    [{"op": "add", "path": "/metadata/managedFields/" + "9" * 30, "value": 1}]
                ),
                json_patch,
            ),
            422, "",
        ),
        ("half of one", patch('[{"op":', json_patch), 400, "invalid JSON patch"),
        ("null", patch("null", merge), 400, "Invalid JSON Patch"),
        ("half of a merge", patch("{", merge), 400, "invalid JSON patch"),
        (
            "an unknown directive", patch('{"$patch":"fly"}', strategic), 500,
            "unknown patch type: fly in map: map[$patch:fly]",
        ),
        ("an unknown type", patch("{}", "json"), 415, ""),
        (
            "aliases to apply",
            request(
                "PATCH", f"{MAPS}/target?fieldManager=x", BOMB, kind="application/apply-patch+yaml"
            ),
            400, "",
        ),
    ]:
        answers(f"patch, {name}: {code}", data, code, text)


def expressions():
    """Definitions with expensive patterns and rules."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    def definition(schema):
        version = {
            "name": "v1", "served": True, "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": schema}}},
        }
        names = {"plural": "bombs", "singular": "bomb", "kind": "Bomb", "listKind": "BombList"}
        return json.dumps({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "bombs.abuse.example.com"},
            "spec": {
                "group": "abuse.example.com", "scope": "Namespaced", "names": names,
                "versions": [version],
            },
        })

    texts = {"type": "array", "items": {"type": "array", "items": {"type": "string"}}}
    cost = definition({
        "type": "object", "properties": {"l": texts},
        "x-kubernetes-validations": [
            {"rule": "self.l.all(a, self.l.all(b, self.l.all(c, a.all(x, x.matches('^(a+)+$')))))"}
        ],
    })
    answers(
        "a rule of estimated cost beyond the budget: 422", request("POST", path, cost), 422,
        "estimated rule cost exceeds budget",
    )
    long = definition(
        {"type": "object", "x-kubernetes-validations": [{"rule": " && ".join(["true"] * 30000)}]}
    )
    answers(
        "a rule of 240,000 letters: 422", request("POST", path, long), 422,
        "expression code point size exceeds limit: size: 239996, limit 100000", slowest=3,
    )
    nested = definition(
        {"type": "object", "x-kubernetes-validations": [{"rule": "(" * 5000 + "true" + ")" * 5000}]}
    )
    answers("a rule of 5,000 brackets: 422", request("POST", path, nested), 422, "")
    repeat = definition({"type": "string", "pattern": "((a{0,1000}){0,1000}){0,1000}"})
    answers("a pattern that would be huge: 422", request("POST", path, repeat), 422, "")
    slow = definition({"type": "string", "pattern": "^(a+)+$"})
    answers("a pattern that backtracks elsewhere is taken", request("POST", path, slow), 201)


for part in (heads, bodies, patches, expressions):
    with Others() as others:
        part()
    check(
        f"another client was served meanwhile, and memory held ({part.__name__})",
        others.verdict(150, 3),
    )
