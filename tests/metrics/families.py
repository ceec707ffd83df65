"""Compares metric families: families.py THEIRS OURS KEPT. The exit status is 1 if a family of
theirs is missing in OURS and has no reason in KEPT."""

import re, sys

theirs_file, ours_file, kept_file = sys.argv[1:]
LINE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
STABILITY = re.compile(r"\[(STABLE|BETA|ALPHA|INTERNAL)\]")


def read(path):
    families = {}
    for line in open(path):
        line = line.rstrip("\n")
        if line.startswith("# HELP "):
            _, _, name, text = (line.split(" ", 3) + [""])[:4]
            found = STABILITY.search(text)
            families.setdefault(name, {"type": "", "labels": set(), "bounds": set(), "series": 0})[
                "stability"
            ] = found.group(1) if found else ""
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            families.setdefault(
                name, {"labels": set(), "bounds": set(), "series": 0, "stability": ""}
            )["type"] = kind
        elif match := LINE.match(line):
            name, labels, _ = match.groups()
            base = name if name in families else re.sub(r"_(bucket|sum|count)$", "", name)
            family = families.get(base)
            if family is None:
                sys.exit(f"{path}: a line of no family: {line}")
            family["series"] += 1
            for label, value in LABEL.findall(labels or ""):
                if label == "le" and name.endswith("_bucket"):
                    family["bounds"].add(value)
                elif label not in ("quantile",):
                    family["labels"].add(label)
    return families


theirs, ours = read(theirs_file), read(ours_file)
kept = []
for line in open(kept_file):
    line = line.split("#")[0].strip()
    if line:
        pattern, reason = line.split(None, 1)
        kept.append([re.compile(pattern + r"\Z"), reason, 0])


def reason_of(name):
    for row in kept:
        if row[0].match(name):
            row[2] += 1
            return row[1]


missing, different, same, excused = [], [], 0, 0
for name, family in sorted(theirs.items()):
    mine = ours.get(name)
    if mine is None:
        if reason_of(name):
            excused += 1
        else:
            missing.append(
                f"{name} ({family['type']}, {family['stability']}; "
                f"{', '.join(sorted(family['labels']))})"
            )
        continue
    wrong = []
    for what in ["type", "stability"]:
        if mine.get(what) != family.get(what):
            wrong.append(f"{what} {mine.get(what)!r}, theirs {family.get(what)!r}")
    # A metric without samples shows no labels.
    if mine["series"] and family["series"]:
        for what in ["labels", "bounds"]:
            if mine[what] != family[what]:
                wrong.append(
                    f"{what}: only ours {sorted(mine[what] - family[what])}, only theirs "
                    f"{sorted(family[what] - mine[what])}"
                )
    if wrong and not reason_of(name):
        different.append(f"{name}: {'; '.join(wrong)}")
    else:
        same += 1
print(
    f"{len(theirs)} families of kube-apiserver: {same} alike, {len(different)} differ, "
    f"{len(missing)} missing, {excused} left out with a reason"
)
for title, rows in [("missing", missing), ("different", different)]:
    for row in rows:
        print(f"{title}: {row}")
unused = [row[0].pattern for row in kept if not row[2]]
for pattern in unused:
    print(f"kept without need: {pattern}")
extra = sorted(set(ours) - set(theirs))
print(f"{len(extra)} families of ours alone: {' '.join(extra)}")
sys.exit(1 if missing or different else 0)
