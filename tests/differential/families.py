#!/usr/bin/env python3
"""Prints the list of all results of `ask.py --out`: `families.py SEED.jsonl… [+AGAIN.jsonl…]
>differences.md`. A file after a `+` has the requests of the same seed that were repeated
(`--again`) with a newer program: of these only the remaining differences are listed."""

import collections, json, os, re, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import classes, compare

# The reason for a family, by its name; the others are open.
REASONS = [
    (
        r"event2 ",
        "an Event of `events.k8s.io` that a patch says to be of `v1` is read by upstream as one of "
        "the older group, which loses its note; here that patch is refused",
    ),
    (
        r"subresource service.*: 422 is 201",
        "a Service that a write to its status makes has its ports given here; upstream refuses it "
        "for those that it has not given",
    ),
    (
        r"event.*received a|list element types",
        "what a strategic patch of a broken list is told, in the order of a Go map",
    ),
    (
        r"create crd body.details.causes",
        "a fault that stands there more than once (twenty versions of one name) is told once",
    ),
    (
        r"cannot be handled as a",
        "of several values of wrong types upstream tells that of a type which reads its JSON "
        "itself, here the first one is told",
    ),
    (
        r": N\. \|",
        "an amount that is written in an unusual way (`2.`, `+2`, `02`) stays as it is written "
        "upstream; here it is canonical, so that equal amounts are equal texts",
    ),
]


def read(path):
    """The requests of a run with differences, and its totals."""
    found, figures = [], None
    for line in open(path, errors="replace"):
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "asked" in entry:
            figures = entry
            break
        found.append((entry["request"], [tuple(pair) for pair in entry["differences"]]))
    return found, figures


def short(text, most=170):
    text = re.sub(r"\s+", " ", str(text)).replace("|", "\\|")
    return text if len(text) <= most else text[: most - 1] + "…"


def main():
    again = {}
    for path in (part[1:] for part in sys.argv[1:] if part.startswith("+")):
        found, figures = read(path)
        again[figures["seed"]] = (found, figures)
    rows, known, families, examples = [], collections.Counter(), collections.Counter(), {}
    for path in (part for part in sys.argv[1:] if not part.startswith("+")):
        found, figures = read(path)
        seed = figures["seed"]
        of = [(request, what, classes.of(request, what)) for request, what in found]
        first = [entry for entry in of if entry[2] is None]
        if seed in again:
            still = [(request, what, classes.of(request, what)) for request, what in again[seed][0]]
            rest = [entry for entry in still if entry[2] is None]
        else:
            still, rest = [], first
        rows.append((
            seed, figures["asked"], len(of), len(of) - len(first), len(first),
            len(rest) if seed in again else "",
        ))
        known.update(name for _, _, name in of if name)
        for request, what, _ in rest:
            name = compare.family(request, what)
            families[name] += 1
            examples.setdefault(name, (seed, request))
    print("# What is answered differently\n")
    print(
        "Made by `tests/differential/families.py` of `ask.py --out`. A difference is in a class "
        "when only what the class is about differs. What was in none was asked again of the program"
    )
    print(
        "with the mends that came of it (the last column); what differs still is listed at the "
        "end.\n"
    )
    print(
        "| seed | requests | differing | in classes | in none | of these still, asked again |\n"
        "|---|---|---|---|---|---|"
    )
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(
        "| all | "
        + " | ".join(str(sum(row[at] or 0 for row in rows)) for at in (1, 2, 3, 4, 5))
        + " |\n"
    )
    print("## Classes\n\n| class | count | reason |\n|---|---|---|")
    reasons = classes.reasons()
    for name, count in known.most_common():
        print(f"| {name} | {count} | {short(reasons[name], 1000)} |")
    print("\n## In no class\n\n| family | count | example | reason |\n|---|---|---|---|")
    for name, count in families.most_common():
        seed, request = examples[name]
        reason = next((why for part, why in REASONS if re.search(part, name)), "open")
        print(f"| {short(name)} | {count} | seed {seed}, request {request['id']} | {reason} |")


if __name__ == "__main__":
    main()
