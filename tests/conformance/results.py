#!/usr/bin/env python3
"""Reads the suite's JUnit reports, and prints one as a table.

usage: results.py [--others] JUNIT   (--others: include specs outside of conformance that ran)
"""

import re, sys, xml.etree.ElementTree as tree


class Spec:
    def __init__(self, name, outcome, seconds, words):
        self.name, self.outcome, self.seconds, self.words = name, outcome, seconds, words


def first_line(text):
    """The error of a failed spec: its first line that is not a heading."""
    lines = [
        re.sub(r"^\[(FAILED|TIMEDOUT|PANICKED|INTERRUPTED)\] ", "", line.strip())
        for line in text.splitlines()
        if line.strip()
    ]
    details = [line for line in lines if not re.match(r"In \[|There were |Full Stack|[/<{}]", line)]
    return " ".join((details or lines or ["no word"])[0].split())[:300]


def read(path, others=False):
    """The conformance specs of a report, passed, failed or skipped; with `others` also the specs
    outside of conformance that ran."""
    specs = []
    for case in tree.parse(path).iter("testcase"):
        name = case.get("name").removeprefix("[It] ")
        if "[Conformance]" in name:
            name = name[: name.index("]", name.rindex("[Conformance]")) + 1] + trailing_tags(name)
        elif not others or name == case.get("name") or case.find("skipped") is not None:
            continue
        fault = next((part for part in case if part.tag in ("failure", "error")), None)
        outcome = (
            "failed"
            if fault is not None
            else "skipped" if case.find("skipped") is not None else "passed"
        )
        words = (
            ""
            if fault is None
            else first_line((fault.get("message") or "") + "\n" + (fault.text or ""))
        )
        specs.append(Spec(name, outcome, float(case.get("time") or 0), words))
    return specs


def every(path):
    """The specs of a report that ran, without labels at the end of the names."""
    specs = [spec for spec in read(path, others=True) if spec.outcome != "skipped"]
    for spec in specs:
        # Versions of a component are in brackets of their own: [kubelet: [>=1.34]].
        spec.name = re.sub(r"( \[[^\]]*,[^\]]*\]| \[\w+: \[[^\]]*\]\])+$", "", spec.name)
    return specs


def outside(path):
    """The specs of a report that ran and are outside of conformance, named as those of `every`."""
    return [spec for spec in every(path) if "[Conformance]" not in spec.name]


def trailing_tags(name):
    """The name up to [Conformance], without the list of labels that some reports add."""
    rest = name[name.rindex("[Conformance]") + len("[Conformance]") :]
    return "".join(f" [{tag}]" for tag in re.findall(r"\[([^\]]*)\]", rest) if "," not in tag)


def table(specs):
    ran = [spec for spec in specs if spec.outcome != "skipped"]
    passed = [spec for spec in ran if spec.outcome == "passed"]
    failed = [spec for spec in ran if spec.outcome == "failed"]
    for spec in sorted(passed, key=lambda spec: spec.name):
        print(f"ok   {spec.seconds:6.1f}  {spec.name}")
    for spec in sorted(failed, key=lambda spec: spec.name):
        print(f"FAIL {spec.seconds:6.1f}  {spec.name}\n              {spec.words}")
    if len(ran) > 1:
        print("slowest:")
        for spec in sorted(ran, key=lambda spec: -spec.seconds)[:10]:
            print(f"     {spec.seconds:6.1f}  {spec.name}")
    print(
        f"{len(passed)} passed, {len(failed)} failed in {sum(spec.seconds for spec in ran):.0f} "
        "seconds of specs"
    )


if __name__ == "__main__":
    *options, report = sys.argv[1:] or [""]
    if not report or options not in ([], ["--others"]):
        sys.exit(__doc__)
    table(read(report, bool(options)))
