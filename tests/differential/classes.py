"""Known differences, each class with its reason; a difference outside of them is an error. (The
warnings about unsupported fields are removed before the comparison.)"""

import json, re


def said(found):
    return " ".join(str(part) for _, *pair in found for part in pair)


def only(found, *ends):
    return all(any(re.search(end, what) for end in ends) for what, *_ in found)


def value_end(text, at):
    """The end of the value that a message shows at a position: a quoted text, JSON, or a Go dump
    with its brackets."""
    if text.startswith("\"", at):
        found = re.compile(r'"(?:\\.|[^"\\])*"').match(text, at)
        return found.end() if found else len(text)
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:
        pass
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in "[{(") - (text[place] in "]})")
        if depth == 0 and text[place] in "]})" or depth == 0 and text.startswith(": ", place):
            return place + (text[place] in "]})")
    return len(text)


def unshown(text):
    """A message without the values that it shows."""
    out, at = "", 0
    for found in re.finditer(r"Invalid value: |Unsupported value: ", text):
        if found.start() >= at:
            out, at = out + text[at : found.end()] + "VALUE", value_end(text, found.end())
    return out + text[at:]


def unhunked(text):
    """A message without the diff hunks at its end."""
    return re.sub(r"\n@@ .*", "\n@@", text, flags=re.S)


def untyped(text):
    return re.sub(
        r"cannot convert (\S+) to \S+", r"cannot convert \1 to TYPE",
        re.sub(r"Go struct field \S+ of type \S+", "Go struct FIELD", text),
    )


def alike(found, blank):
    """Whether only texts differ, and none after `blank` has removed the subject of a class. The
    message of a whole Status joins its causes in another order: it is compared only if no cause
    differs."""
    causes = any("causes[" in what for what, *_ in found)
    pairs = [pair for what, *pair in found if not (causes and what == "body.message")]
    return bool(pairs) and all(
        isinstance(want, str) and isinstance(got, str) and want != got and blank(want) == blank(got)
        for want, got in pairs
    )


def without_metrics(value):
    """Owners without those of `spec.metrics`, and without the entries that own nothing else."""
    if isinstance(value, dict):
        if "fieldsV1" in value:
            value = {key: part for key, part in value.items() if key != "time"}
        parts = {key: without_metrics(part) for key, part in value.items() if key != "f:metrics"}
        return {
            key: part
            for key, part in parts.items()
            if not (key in ("f:spec", "fieldsV1") and part == {})
        }
    if isinstance(value, list):
        return sorted(
            (
                part
                for part in map(without_metrics, value)
                if not isinstance(part, dict) or "fieldsV1" in part
            ),
            key=lambda part: json.dumps(part, sort_keys=True),
        )
    return {} if value == "(absent)" else value


def metrics_alone(found):
    return "f:metrics" in repr(found) and all(
        "managedFields" in what
        and (what.endswith(".f:metrics") or without_metrics(want) == without_metrics(got))
        for what, want, got in found
    )


def more_changed(found):
    """Whether a watch of upstream shows one more change."""
    return all(
        isinstance(want, list)
        and isinstance(got, list)
        and len(want) == len(got) + 1
        and "MODIFIED" in repr(want)
        for _, want, got in found
    )


def both_named(request):
    """Whether a strategic patch names a list or a map together with a directive that deletes from
    it."""
    directives = re.findall(r'"\$deleteFromPrimitiveList/([^"]*)": ', request["body"] or "")
    return any(f'"{name}": ' in request["body"] for name in directives)


def scaled(request):
    """Whether the session scaled its object before."""
    return any(
        step["path"].endswith("/scale") and code < 400
        for step, code in zip(request.get("steps", []), request.get("codes", []))
    )


CLASSES = [
    (
        "the server's own",
        "our server has roles for the storage of local paths, upstream has an Event about a "
        "repaired address of a Service, a controller that does not run here writes the status "
        "of ServiceCIDR `kubernetes`, and addresses, ports and the writer of priority levels "
        "differ per server",
        lambda q, f: q["method"] in ("GET", "DELETE")
        and (
            "/events" in q["path"]
            and "ClusterIPNotAllocated" in said(f)
            or re.search(
                r"clusterroles|clusterrolebindings|servicecidrs|ipaddresses|serviceaccounts$|"
                r"/(roles|rolebindings)$",
                q["path"],
            )
            and q["path"].count("/") < 7
            and only(f, r"body\.?(\.items|\.rows|$)|body\[|body\.metadata|code|message")
        )
        or "serverAddress" in said(f)
        or only(f, r"serverAddress")
        or "flowcontrol" in q["path"]
        and "api-priority-and-fairness-config-producer-v1" in said(f),
    ),
    (
        "raw JSON",
        "upstream stores `ControllerRevision.data` and opaque parameters byte by byte, ours as "
        "a value: in upstream different whitespace is a change",
        lambda q, f: q["base"] in ("controllerrevision", "deviceclass", "resourceclaim", "rct")
        and ("field is immutable" in said(f) or only(f, r"generation|managedFields")),
    ),
    (
        "Secrets in refusals",
        "a patch that makes a Secret invalid is rejected without showing the Secret: a user who "
        "may patch one may not be allowed to read it",
        lambda q, f: q["method"] == "PATCH"
        and "/secrets" in q["path"]
        and "(not shown)" in said(f)
        and alike(
            f, lambda text: re.sub(r"input byte \d+", "input byte N", untyped(unshown(text)))
        ),
    ),
    (
        "dumps in messages",
        "upstream shows the value in a message as Go's internal structure, ours as JSON",
        lambda q, f: q["method"] != "GET"
        and alike(f, unshown)
        and re.search(r"Invalid value: (\{|\[|map\[|&|null|\\?\"(\{|map\[))", said(f)) is not None,
    ),
    (
        "hunks of differences",
        "our message does not show the difference between the stored ephemeral container and "
        "the new one",
        lambda q, f: "ephemeral containers" in said(f)
        and alike(
            f,
            lambda text: unhunked(
                text.rstrip("\n") + "\n@@ " if "may not be changed" in text else text
            ),
        ),
    ),
    (
        "grammar of CEL",
        "of the syntax errors only the most frequent ones have cel-go's text",
        lambda q, f: "Syntax error" in said(f),
    ),
    (
        "order of a Go map",
        "upstream reports several errors of a typed apply or of a Secret, and missing roles, in "
        "the random order of a Go map; so is the item that it reports first for a list or for "
        "the deletions of a strategic patch",
        lambda q, f: "strategic" in q["headers"].get("Content-Type", "")
        and both_named(q)
        or only(f, r"message|causes")
        and ("failed to create typed patch object" in said(f) or "errors:" in said(f))
        or "evaluationError" in said(f)
        or only(f, r"evaluationError"),
    ),
    (
        "deep documents",
        "documents deeper than 120 levels are rejected with another text",
        lambda q, f: "max depth" in said(f) or "exceeded max depth" in said(f),
    ),
    (
        "broken protobuf",
        "the error for bytes that are not a message has another text, and JSON in it is "
        "validated during reading",
        lambda q, f: "protobuf" in q["headers"].get("Content-Type", "")
        and re.search(
            r"proto: |EOF|invalid character|no kind|utf|wireType|length|cannot be handled|\ufffd",
            said(f),
        )
        is not None,
    ),
    (
        "scales",
        "upstream's owners lose the time of their entry, and the shared fields, when another "
        "manager scales; the Scale that a rejected patch shows has no owners here",
        lambda q, f: q["path"].endswith("/scale")
        and only(f, r"message|causes")
        or only(f, r"managedFields\[\d+\]\.time$")
        or scaled(q)
        and only(f, r"managedFields|^body\[|^body\.$")
        and "f:replicas" in repr(f),
    ),
    (
        "HorizontalPodAutoscaler",
        "our columns of v1 are computed from v1, which has one metric, upstream's from v2; "
        "annotations contain the other fields of v1 as JSON, of which upstream shows zeros; "
        "writes that do not change `spec.metrics` count as a change of it in upstream, or not, "
        "at random",
        lambda q, f: q["base"] == "hpa1"
        and (
            "as=" in q["headers"].get("Accept", "")
            or "autoscaling.alpha" in said(f) + f[0][0]
            and only(f, r"annotations|f:annotations|fieldsV1\.f:metadata$|^body\[|^body\.$")
        )
        or q["base"] in ("hpa1", "hpa2")
        and (
            metrics_alone(f)
            or only(f, r"managedFields\[\d+\]\.(manager|time)$")
            or "f:metrics" in said(f)
            and only(f, r"^body\[")
        ),
    ),
    (
        "YAML of other tools",
        "directives, tags and tabs that upstream's YAML 1.1 reader accepts or rejects",
        lambda q, f: "yaml" in q["headers"].get("Content-Type", "")
        and re.search(r"yaml: ", said(f)) is not None,
    ),
    (
        "trials",
        "a dry run of an update shows the `selfLink` of the request, which no server stores; a "
        "dry run of a deletion is visible for a while in upstream's reads of the object",
        lambda q, f: only(f, r"selfLink$")
        or q["query"].get("dryRun") == "All"
        and only(f, r"metadata\.(deletionTimestamp|deletionGracePeriodSeconds|finalizers)$")
        and all(got == "(absent)" for _, _, got in f),
    ),
    (
        "phase of a new claim",
        "upstream stores a new claim without its phase, which reads show nevertheless, so that "
        "the first write after it stores the claim even without a change; here such a write "
        "changes nothing",
        lambda q, f: q["base"] in ("pvc", "pvc-min")
        and q["verb"].startswith("session")
        and (f[0] == ("code", 409, 200) or only(f, r"^body\.?$") and more_changed(f)),
    ),
    (
        "names of Go types",
        "some aliases and inner structs in decoding errors",
        lambda q, f: alike(f, untyped),
    ),
]


def of(request, found):
    """The name of the class, or None."""
    request = {**request, "headers": request.get("headers") or {}}
    return next((name for name, _, fits in CLASSES if fits(request, found)), None)


def reasons():
    return {name: reason for name, reason, _ in CLASSES}
