"""Prints how many of a set of recorded answers agree, from the differences of one replay; fails if
one does not.

usage: set.py DIFFERENCES [--codes 200,201] [--groups a,b] RECORDED.jsonl.gz..."""

import argparse, gzip, json, os, sys

p = argparse.ArgumentParser(description=__doc__)
p.add_argument("--codes")
p.add_argument("--groups")
p.add_argument("differences")
p.add_argument("recorded", nargs="+")
a = p.parse_args()
if not os.path.exists(a.differences):
    sys.exit("no replay")
different = {d["id"]: d["problems"] for d in map(json.loads, open(a.differences))}
total, failed = 0, []
for name in a.recorded:
    for case in map(json.loads, gzip.open(name, "rt")):
        if case.get("unstable") or a.codes and str(case["code"]) not in a.codes.split(","):
            continue
        if a.groups and case["group"].removeprefix("scenario-") not in a.groups.split(","):
            continue
        total += 1
        if case["id"] in different:
            failed.append(case["id"])
print(f"     {total - len(failed)} of {total} agree")
for case in failed[:10]:
    print("    ", case, *different[case][:3], sep="\n       ")
sys.exit(1 if failed or not total else 0)
