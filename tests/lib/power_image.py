#!/usr/bin/env python3
"""An ext4 file system on a loop image that can lose its power.

usage: power_image.py make IMAGE MEGABYTES
       power_image.py on IMAGE MOUNT
       power_image.py cut MOUNT [FILE...]
`on` mounts it, with the recovery of its journal. `cut` shuts it down without its journal and prints
the sizes that the files had right before. Python programs import the class.
"""

import fcntl, os, struct, subprocess, sys

# _IOR('X', 125, __u32), and the flag not to write the journal, as in a power cut.
EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587D, 2


class Image:
    """An ext4 file system that can lose its power."""

    def __init__(self, file, mount):
        self.file, self.mount = file, mount

    def make(self, megabytes):
        with open(self.file, "wb") as image:
            image.truncate(megabytes << 20)
        self.format()

    def format(self, *options):
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, self.file], check=True)

    def on(self):
        os.makedirs(self.mount, exist_ok=True)
        subprocess.run(["mount", "-o", "loop", self.file, self.mount], check=True)

    def off(self):
        subprocess.run(["umount", self.mount], check=True)

    def cut(self, files=()):
        """Only what was acknowledged before counts: ext4 reports success for a sync during its
        shutdown. Returns the sizes that files elsewhere had before."""
        at = os.open(self.mount, os.O_RDONLY)
        sizes = [os.path.getsize(file) for file in files]
        fcntl.ioctl(at, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        os.close(at)
        return sizes


def main(arguments):
    verb, rest = arguments[0] if arguments else "", arguments[1:]
    if verb == "make" and len(rest) == 2:
        Image(rest[0], "").make(int(rest[1]))
    elif verb == "on" and len(rest) == 2:
        Image(*rest).on()
    elif verb == "cut" and rest:
        print(*Image("", rest[0]).cut(rest[1:]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
