"""Reads the summary of a run of cyclonus: prints each test with wrong cells in its last try, and as
the last line the numbers of tests and cells. The exit status is 1 if a cell is wrong.

usage: cyclonus-results.py LOG
"""

import re
import sys

STEP = re.compile(r"Step (\d+), try (\d+)$")


def rows(path):
    """The cells of the summary's rows; a description that is wrapped is joined."""
    inside, row = False, []
    for line in open(path, encoding="utf-8", errors="replace"):
        if line.startswith("SummaryTable:"):
            inside = True
        elif inside and line.startswith("+"):
            if any(row):
                yield row
            row = []
        elif inside and line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            row = [" ".join((a, b)).strip() for a, b in zip(row or [""] * len(cells), cells)]
        elif inside:
            return


def main():
    tests, last = [], {}
    for row in rows(sys.argv[1]):
        if re.match(r"\d+: ", row[0]):
            tests.append(row[0])
        elif step := STEP.match(row[2]):
            # A later try of a step replaces an earlier one.
            last[len(tests), step[1]] = (int(row[3] or 0), int(row[4] or 0))
    wrong = {}
    for (test, _), (different, _) in last.items():
        wrong[test] = wrong.get(test, 0) + different
    for test, cells in wrong.items():
        if cells:
            print(f"{cells} wrong cells in {tests[test - 1]}")
    cells = sum(same + different for different, same in last.values())
    bad = sum(wrong.values())
    print(f"{len(tests)} tests with {len(last)} steps, {cells} cells, {bad} wrong")
    return 1 if bad or not tests else 0


sys.exit(main())
