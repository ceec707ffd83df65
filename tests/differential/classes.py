"""Differences that are known, each class with its reason; what is in none of them is a fault. (Warnings that nothing acts on a field yet are taken
off before anything is compared.)"""
import json, re


def said(found):
    return " ".join(str(part) for _, *pair in found for part in pair)


def only(found, *ends):
    return all(any(re.search(end, what) for end in ends) for what, *_ in found)


CLASSES = [
    ("objects of the server", "roles for the storage of local paths are ours, and the status of ServiceCIDR `kubernetes` is written by a controller, which does not run here",
     lambda q, f: q["method"] in ("GET", "DELETE") and re.search(r"clusterroles|clusterrolebindings|servicecidrs|ipaddresses|serviceaccounts$|/(roles|rolebindings)$", q["path"]) and q["path"].count("/") < 7 and only(f, r"body\.?(\.items|\.rows|$)|body\[|body\.metadata|code|message")),
    ("raw JSON", "what upstream keeps byte by byte (`ControllerRevision.data`, opaque parameters) is kept as a value: other spaces are a change there",
     lambda q, f: q["base"] in ("controllerrevision", "deviceclass", "resourceclaim", "rct") and ("field is immutable" in said(f) or only(f, r"generation|managedFields"))),
    ("dumps in messages", "a value that a message shows stands there as Go's internal structure; ours shows the JSON",
     lambda q, f: q["method"] != "GET" and only(f, r"message|causes") and re.search(r"Invalid value: (\{|\[|map\[|&|null|\\?\"\{)", said(f)) is not None),
    ("grammar of CEL", "of faults of grammar only the commonest have cel-go's words", lambda q, f: "Syntax error" in said(f)),
    ("order of faults", "upstream tells several faults of one typed apply, or of one Secret, in the order of a Go map, another every time",
     lambda q, f: only(f, r"message|causes") and ("failed to create typed patch object" in said(f) or "errors:" in said(f))),
    ("deep documents", "documents deeper than 120 are refused with another text", lambda q, f: "max depth" in said(f) or "exceeded max depth" in said(f)),
    ("tables of HorizontalPodAutoscaler v1", "columns are computed from v1, which has one metric; upstream shows those of v2", lambda q, f: q["base"] == "hpa1" and "as=" in q["headers"].get("Accept", "")),
    ("addresses of the server", "`GET /api` and the `kubernetes` Service tell addresses and ports of their own", lambda q, f: "serverAddress" in said(f) or only(f, r"serverAddress")),
    ("broken protobuf", "what is wrong with bytes that are no message is told in other words, and JSON within is looked at while it is read",
     lambda q, f: "protobuf" in q["headers"].get("Content-Type", "") and re.search(r"proto: |EOF|invalid character|no kind|utf|wireType|length|cannot be handled", said(f)) is not None),
    ("paths with two slashes", "`//api` is not found upstream", lambda q, f: q["path"].startswith("//")),
    ("selectors without a field", "a field selector `=` selects nothing upstream for some kinds and is refused for others", lambda q, f: "is not a known field selector" in said(f) or "field label" in said(f)),
    ("scales that are none", "the Scale that a refused patch shows has no owners here", lambda q, f: q["path"].endswith("/scale") and only(f, r"message|causes")),
    ("times after a scale", "upstream's owners lose the time of their entry when another one scales", lambda q, f: only(f, r"managedFields\[\d+\]\.time$")),
    ("owners of HorizontalPodAutoscaler", "upstream takes `spec.metrics` for changed by writes that change nothing", lambda q, f: q["base"] in ("hpa1", "hpa2") and only(f, r"managedFields|annotations|^body\[")),
    ("the first watch of a kind", "events from before a kind was first read or watched are not kept: such a watch is told to list again",
     lambda q, f: "watch" in q["query"] and "ERROR" in said(f)),
    ("YAML of other tools", "directives, tags and tabs where upstream's YAML 1.1 reader takes or refuses them", lambda q, f: "yaml" in q["headers"].get("Content-Type", "") and re.search(r"yaml: ", said(f)) is not None),
    ("rules of roles that do not exist", "upstream tells missing roles in the order of a Go map", lambda q, f: "evaluationError" in said(f) or only(f, r"evaluationError")),
    ("links that a client sends", "a trial of an update shows the `selfLink` that was sent, which nobody stores", lambda q, f: only(f, r"selfLink$")),
    ("elements without their key", "owners stay as they were when an element of a keyed list has no key", lambda q, f: q["base"] == "serviceaccount" and only(f, r"managedFields")),
    ("names of Go types", "some aliases and inner structs in errors of decoding", lambda q, f: "Go struct field" in said(f)),
]


def of(request, found):
    """The name of the class, or None."""
    request = {**request, "headers": request.get("headers") or {}}
    return next((name for name, _, fits in CLASSES if fits(request, found)), None)


def reasons():
    return {name: reason for name, reason, _ in CLASSES}
