#!/usr/bin/env python3
"""Numbered rows in a PostgreSQL: writers that record what was acknowledged, and the check of it.

postgresql-rows.py create PSQL HOST
    creates the tables
postgresql-rows.py write PSQL HOST HISTORY
    four writers add rows until they are killed; HISTORY gets the writer and its last row per commit
postgresql-rows.py check PSQL HOST HISTORY [BYTES]
    reads all rows: those of the first BYTES of HISTORY exist, none is missing or damaged in
    between, and no commit was applied in part

A commit adds rows and sets the counter of the writer to the last one. The payload follows from the
numbers; every fiftieth one is stored in the table for large values.
"""

import random, subprocess, sys, threading, time

WRITERS = 4
# Rows of a large commit, and one of how many commits is large.
LARGE, ONE_OF = 40, 25
PAYLOAD = (
    "repeat(md5({writer} || '-' || n), case when n % 50 = 0 then 200 else 1 + n % 37 end)"
)
CREATE = f"""
create table rows (writer int, n int, payload text not null, primary key (writer, n));
alter table rows alter payload set storage external;
create table counters (writer int primary key, value int not null);
insert into counters select generate_series(0, {WRITERS - 1}), 0;
create extension amcheck;
"""
ADD = f"""with added as (insert into rows select {{writer}}, n, {PAYLOAD}
from generate_series({{first}}, {{last}}) n)
update counters set value = {{last}} where writer = {{writer}} returning value;
""".replace("\n", " ")
CHECK = f"""set enable_indexonlyscan = off; set enable_indexscan = off;
select writer, count(n), coalesce(max(n), 0), value,
  count(n) filter (where payload <> {PAYLOAD.format(writer='writer')})
from counters left join rows using (writer) group by writer, value order by writer;
"""


def psql(program, host, **more):
    return subprocess.Popen(
        [program, "-h", host, "-U", "postgres", "-X", "-qAt", "-F", " ", "-v", "ON_ERROR_STOP=1"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more,
    )


def ask(program, host, text):
    process = psql(program, host, stderr=subprocess.STDOUT)
    output, _ = process.communicate(text, timeout=120)
    if process.returncode != 0:
        sys.exit(f"psql: status {process.returncode}: {output}")
    return output


class Connection:
    """One statement after the other, each a transaction."""

    def __init__(self, program, host):
        self.process = psql(program, host, stderr=subprocess.DEVNULL)

    def number(self, text):
        """The number that a statement returns; the transaction is committed then."""
        self.process.stdin.write(text.strip() + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()


def write(program, host, history, writer):
    dice = random.Random()
    while True:
        connection = Connection(program, host)
        try:
            last = connection.number(f"select value from counters where writer = {writer};")
            while True:
                first = last + 1
                last += LARGE if dice.randrange(ONE_OF) == 0 else 1
                statement = ADD.format(writer=writer, first=first, last=last)
                if connection.number(statement) != last:
                    sys.exit(f"writer {writer}: another counter than {last}")
                history.write(f"{writer} {last}\n".encode())
                time.sleep(dice.random() * 0.01)
        except (OSError, ValueError):
            # Not acknowledged: the rows may have been written.
            connection.end()
            time.sleep(0.05)


def check(program, host, path, size):
    with open(path, "rb") as history:
        lines = history.read(size).decode().split("\n")[:-1]
    acknowledged = dict.fromkeys(range(WRITERS), 0)
    for line in lines:
        writer, last = map(int, line.split())
        acknowledged[writer] = max(acknowledged[writer], last)
    faults, total, writers = [], 0, set()
    for line in ask(program, host, CHECK).splitlines():
        writer, count, last, value, damaged = map(int, line.split())
        writers.add(writer)
        total += count
        if last < acknowledged[writer]:
            faults.append(
                f"writer {writer}: row {acknowledged[writer]} was acknowledged, the last is {last}"
            )
        if count != last:
            faults.append(f"writer {writer}: {count} rows, the last is {last}")
        if value != last:
            faults.append(f"writer {writer}: the counter is {value}, the last row {last}")
        if damaged:
            faults.append(f"writer {writer}: {damaged} damaged rows")
    if writers != set(range(WRITERS)):
        faults.append(f"only the writers {writers} have counters")
    if faults:
        sys.exit("\n".join(faults))
    print(f"{total} rows, {len(lines)} acknowledged commits")


def main(arguments):
    verb, program, host, *rest = arguments
    if verb == "create":
        ask(program, host, CREATE)
    elif verb == "write":
        # A line is one call, so that the size of the file is always one of complete lines.
        with open(rest[0], "ab", buffering=0) as history:
            threads = [
                threading.Thread(target=write, args=(program, host, history, writer))
                for writer in range(WRITERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    elif verb == "check":
        check(program, host, rest[0], int(rest[1]) if rest[1:] else -1)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1:])
