#!/usr/bin/env python3
"""Runs a command on a new terminal, as a user at a keyboard does, and prints the screen's contents.

usage: terminal.py ROWSxCOLUMNS [EXPECT SEND]... -- COMMAND...
Waits for each EXPECT in the output, then types its SEND; the keyboard stays open until the
command ends. The exit code is the command's, or 124 if a text does not appear within 60 s.
"""

import fcntl, os, pty, select, struct, sys, termios, time

split = sys.argv.index("--")
rows, columns = (int(n) for n in sys.argv[1].split("x"))
steps = list(zip(sys.argv[2:split:2], sys.argv[3:split:2]))
child, terminal = pty.fork()
if child == 0:
    # Before the command starts, so that it never reads another size.
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    os.execvp(sys.argv[split + 1], sys.argv[split + 1 :])
screen, offset, end = b"", 0, time.monotonic() + 60
while True:
    while steps and (at := screen.find(steps[0][0].encode(), offset)) >= 0:
        offset = at + len(steps[0][0])
        os.write(terminal, steps.pop(0)[1].encode().decode("unicode_escape").encode())
        end = time.monotonic() + 60
    if not select.select([terminal], [], [], max(0, end - time.monotonic()))[0]:
        os.kill(child, 9)
        sys.stderr.write(
            f"timeout waiting for {steps[0][0] if steps else 'the end'!r}; "
            f"the screen shows {screen!r}\n"
        )
        sys.exit(124)
    try:
        part = os.read(terminal, 65536)
    except OSError:  # the other side of the terminal is closed
        break
    if not part:
        break
    screen += part
sys.stdout.write(screen.decode(errors="replace").replace("\r", ""))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
