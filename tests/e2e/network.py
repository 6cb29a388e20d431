"""Hosts on one machine: network namespaces, joined by a router whose ways a test cuts or slows, one direction at a time.

enter() starts the test anew in namespaces of its own (as root): its network is the router's, and the kernel removes
everything with the test's last process. What runs on a host is started with Host.prefix, or opens its sockets inside
Host.inside(). Bridges, netem and the like are not in every kernel: packets are dropped by rules of the router, and
delayed by a program behind a tun device.
"""
import collections
import contextlib
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import threading
import time

from harness import Missing

CLONE_NEWNET = 0x40000000
INSIDE = "KVBLEND_TEST_NAMESPACES"


def enter():
    """Go on in new namespaces; returns there. Raises Missing where that is not possible."""
    if os.environ.get(INSIDE):
        return
    if os.geteuid() != 0:
        raise Missing("network namespaces want root")
    new = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run(new + ["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"], stdout=subprocess.DEVNULL,
                      stderr=subprocess.DEVNULL, check=False).returncode != 0:
        raise Missing("no network namespaces here (unshare, ip, veth)")
    os.environ[INSIDE] = "1"
    os.execvp(new[0], new + [sys.executable, os.path.abspath(sys.argv[0])] + sys.argv[1:])


def ip(*args):
    subprocess.run(["ip", *args], check=True)


class Host:
    def __init__(self, i):
        self.address, self.name = f"10.77.{i}.2", f"h{i}"
        self.path = f"/run/netns/{self.name}"
        self.prefix = ["nsenter", f"--net={self.path}"]
        ip("netns", "add", self.name)
        ip("link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"10.77.{i}.1/24", "dev", self.name)
        ip("link", "set", self.name, "up")
        for args in (("link", "set", "lo", "up"), ("addr", "add", f"{self.address}/24", "dev", "eth0"),
                     ("link", "set", "eth0", "up"), ("route", "add", "default", "via", f"10.77.{i}.1")):
            ip("-n", self.name, *args)

    @contextlib.contextmanager
    def inside(self):
        """Sockets that this thread makes are the host's."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net", "rb") as before, open(self.path, "rb") as there:
            if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(before.fileno(), CLONE_NEWNET)


class Network:
    """n hosts and the router between them, which is this process."""

    def __init__(self, n):
        subprocess.run(["mount", "-t", "tmpfs", "kvblend-test", "/run"], check=True)
        ip("link", "set", "lo", "up")
        with open("/proc/sys/net/ipv4/ip_forward", "w") as f:
            f.write("1")
        self.hosts = [Host(i + 1) for i in range(n)]

    def cut(self, a, b):
        """Nothing from host a reaches host b any more; what b says still reaches a."""
        ip("rule", "add", "pref", "100", "from", a.address, "to", b.address, "blackhole")

    def mend(self):
        """All ways are open again."""
        while subprocess.run(["ip", "rule", "del", "pref", "100"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            pass

    @contextlib.contextmanager
    def slow(self, host, seconds):
        """Everything to the host and from it takes so much longer."""
        with open("/dev/net/tun", "r+b", buffering=0) as tun:
            fcntl.ioctl(tun, 0x400454ca, struct.pack("16sH22x", b"slow", 0x1001))  # TUNSETIFF: IFF_TUN, IFF_NO_PI
            ip("link", "set", "slow", "up")
            ip("route", "add", "default", "dev", "slow", "table", "7")
            ways = [("iif", h.name, "to", host.address) for h in self.hosts if h is not host] + [("iif", host.name)]
            for way in ways:
                ip("rule", "add", "pref", "200", *way, "lookup", "7")
            over = threading.Event()
            t = threading.Thread(target=delay, args=(tun, seconds, over))
            t.start()
            try:
                yield
            finally:
                for _ in ways:
                    ip("rule", "del", "pref", "200")
                over.set()
                t.join()


def delay(tun, seconds, over):
    """What comes out of the device goes into it again, later."""
    waiting = collections.deque()
    while not over.is_set() or waiting:
        left = waiting[0][0] - time.monotonic() if waiting else 0.05
        if select.select([tun], [], [], max(0, left))[0]:
            waiting.append((time.monotonic() + seconds, os.read(tun.fileno(), 65536)))
        while waiting and waiting[0][0] <= time.monotonic():
            os.write(tun.fileno(), waiting.popleft()[1])
