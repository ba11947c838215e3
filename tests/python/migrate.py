"""Migrates a virtual machine over RDMA, and compares the memory of the two QEMUs.

    migrate.py RXE PIN ADDRESS [COMMAND…]
    migrate.py RXE PIN ADDRESS:PORT

to a QEMU that listens on ADDRESS and is started by COMMAND, such as `ip netns exec far`; or that runs already,
has its control socket on PORT, and this directory. PIN is on or off.

The guest writes a counter over and over through half a megabyte, and goes on with it at the destination.
Its memory is a file, so that it can be compared. It pauses while it moves: without hardware support (KVM),
QEMU 7.2 misses some pages that a guest changes meanwhile, over TCP as well.
"""

import json
import os
import socket
import subprocess
import sys
import time

SIZE = 64 << 20

# Fills 0x10000 to 0x8ffff with a counter, for ever.
BOOT = bytes.fromhex(
    "fa"  # cli
    "31db"  # xor bx, bx
    "b80010"  # next: mov ax, 0x1000
    "8ec0"  # segment: mov es, ax
    "50"  # push ax
    "31ff"  # xor di, di
    "b90080"  # mov cx, 0x8000
    "89d8"  # mov ax, bx
    "f3ab"  # rep stosw
    "43"  # inc bx
    "58"  # pop ax
    "050010"  # add ax, 0x1000
    "3d0090"  # cmp ax, 0x9000
    "75ea"  # jne segment
    "ebe5"  # jmp next
)


class Control:
    """The control socket of a QEMU."""

    def connect(self, family, address):
        control = socket.socket(family)
        while control.connect_ex(address) != 0:
            control.close()
            self.check()
            time.sleep(0.05)
            control = socket.socket(family)
        self.control = control.makefile("rw")
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        """Its answer; events are passed over."""
        self.control.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.control.flush()
        for line in self.control:
            answer = json.loads(line)
            if "error" in answer:
                self.fail(answer["error"]["desc"])
            if "return" in answer:
                return answer["return"]
        self.fail("QEMU has closed its control socket")

    def until(self, command, *wanted):
        """Waits for a status; any other end is a failure."""
        while True:
            status = self.ask(command).get("status")
            if status in wanted:
                return
            if status in ("failed", "cancelled"):
                self.fail(f"{command}: {status}")
            time.sleep(0.05)

    def counter(self):
        return self.memory(0x10000, 2)


class Far(Control):
    """A QEMU that runs elsewhere."""

    def __init__(self, host, port):
        self.end = time.monotonic() + 120
        self.connect(socket.AF_INET, (host, int(port)))

    def check(self):
        if time.monotonic() > self.end:
            self.fail("QEMU has no control socket")

    def fail(self, why):
        sys.exit(f"the QEMU elsewhere: {why}")

    def memory(self, start, size):
        path = os.path.abspath("far.saved")
        self.ask("pmemsave", val=start, size=size, filename=path)
        with open(path, "rb") as saved:
            return saved.read()

    def quit(self):
        try:
            self.ask("quit")
        except ConnectionResetError:
            # It has ended before its answer was read.
            pass


class Machine(Control):
    """A QEMU under `rxe run`."""

    def __init__(self, name, prefix, rxe, options):
        self.file = f"{name}.memory"
        self.log = open(f"{name}.log", "w+")
        backend = f"memory-backend-file,id=ram,size={SIZE},mem-path={self.file},share=on"
        self.process = subprocess.Popen(
            [*prefix, rxe, "run", "--", "qemu-system-x86_64", "-accel", "tcg", "-nodefaults"]
            + ["-display", "none", "-m", f"{SIZE >> 20}M", "-object", backend, "-machine", "pc,memory-backend=ram"]
            + ["-drive", "file=boot,format=raw,if=floppy,read-only=on", "-qmp"]
            + [f"unix:{name}.qmp,server=on,wait=off", *options],
            stdout=self.log,
            stderr=self.log,
        )
        self.connect(socket.AF_UNIX, f"{name}.qmp")

    def check(self):
        if self.process.poll() is not None:
            self.fail(f"QEMU has ended with {self.process.returncode}")

    def fail(self, why):
        self.log.seek(0)
        sys.exit(f"{why}\n{self.log.read()}")

    def memory(self, start, size):
        with open(self.file, "rb") as memory:
            memory.seek(start)
            return memory.read(size)

    def quit(self):
        self.ask("quit")
        self.process.wait()


def main():
    rxe, pin, address, *there = sys.argv[1:]
    address, *port = address.split(":")
    with open("boot", "wb") as boot:
        boot.write(BOOT.ljust(510, b"\0") + b"\x55\xaa")
    target = f"rdma:{address}:4444"
    options = ["-S", "-incoming", "defer"]
    there = Far(address, *port) if port else Machine("there", there, rxe, options)
    here = Machine("here", [], rxe, [])
    pinned = [{"capability": "rdma-pin-all", "state": pin == "on"}]
    for machine in (there, here):
        machine.ask("migrate-set-capabilities", capabilities=pinned)
    there.ask("migrate-incoming", uri=target)
    # The guest has begun when its counter is there.
    first = here.counter()
    while here.counter() == first:
        here.check()
        time.sleep(0.05)
    here.ask("stop")
    here.ask("migrate", uri=target)
    here.until("query-migrate", "completed")
    there.until("query-migrate", "completed")
    sent = here.ask("query-migrate")["ram"]
    one, other = here.memory(0, SIZE), there.memory(0, SIZE)
    assert len(one) == SIZE
    if one != other:
        pages = [at for at in range(0, SIZE, 4096) if one[at : at + 4096] != other[at : at + 4096]]
        there.fail(f"{len(pages)} pages of the guest differ, such as that at {pages[0]:#x}")
    # And it goes on there.
    before = there.counter()
    there.ask("cont")
    while there.counter() == before:
        there.check()
        time.sleep(0.05)
    for machine in (here, there):
        machine.quit()
    print(f"the guest has moved: {sent['normal-bytes']} bytes of it, and {sent['duplicate']} empty pages")


main()
