"""Several hosts on one machine: network namespaces that reach each other only through a switch, at a rate of choice.

    host 0            switch             host 1
    eth0 ─── veth ─── [bridge] ─── veth ─── eth0          one /24, no way out, nothing in the machine's own namespace

Each host has its own loopback, so a process that tries 127.0.0.1 across hosts fails as between real machines. Each host
has its own name, which it finds at 127.0.1.1 in its own /etc/hosts, as on Debian and Ubuntu; other hosts find it at its
address.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

INTERFACE = "eth0"
_NETWORK = "192.168.77"
_SEGMENT_BYTES = 1514  # Ethernet's 14 and a packet of 1,500
_HEADER_BYTES = 14 + 20 + 32  # Ethernet, IP, TCP with its time stamps
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE = 1 << 12, 1 << 14, 1 << 19
_FILES = Path("/etc/netns")  # where `ip netns exec` finds what to lay over /etc
_numbers = itertools.count()


@dataclass(frozen=True)
class Host:
    """One network namespace with one interface."""

    namespace: str
    name: str
    address: str

    def command(self, *words: str) -> list[str]:
        """Return the command line that runs ``words`` on this host."""
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", rename, self.name, *words]

    def enter(self) -> None:
        """Move the calling process here, for good; before it has any thread or socket."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.namespace).open() as namespace:
            _demand(libc.setns(namespace.fileno(), _CLONE_NEWNET), "setns")
        _demand(libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS), "unshare")
        _demand(libc.mount(b"none", b"/", None, _MS_REC | _MS_SLAVE, None), "mount")
        for file in (_FILES / self.namespace).iterdir():
            _demand(libc.mount(bytes(file), b"/etc/" + file.name.encode(), None, _MS_BIND, None), "mount")
        socket.sethostname(self.name)


def enter_namespaces_of(process: int) -> None:
    """Move the calling process to the host of ``process``, unless it is there; before it has any thread or socket."""
    if Path(f"/proc/{process}/ns/net").samefile("/proc/self/ns/net"):
        return
    libc, descriptor = ctypes.CDLL(None, use_errno=True), os.pidfd_open(process)
    _demand(libc.setns(descriptor, _CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWUTS), "setns")
    os.close(descriptor)


def _demand(result: int, what: str) -> None:
    if result:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


@dataclass(frozen=True)
class Traffic:
    """What the kernel has counted in this namespace since it exists."""

    sent_bytes: int  # on the interface, headers included
    packets: int  # in which they were sent, acknowledgements among them
    sent_again_bytes: int  # by TCP for segments that were lost; at most, since the last of a message may be shorter

    def __sub__(self, other: Traffic) -> Traffic:
        again = self.sent_again_bytes - other.sent_again_bytes
        return Traffic(self.sent_bytes - other.sent_bytes, self.packets - other.packets, again)

    @property
    def payload_bytes(self) -> int:
        """Without Ethernet's, IP's and TCP's headers."""
        return self.sent_bytes - self.packets * _HEADER_BYTES


def traffic(interface: str = INTERFACE) -> Traffic:
    """Return the counters of the calling process's namespace: those of /sys/class/net/…/statistics, and RetransSegs.

    Read from /proc, which follows the process; /sys shows the namespace it was mounted in.
    """
    rows = (line.partition(":") for line in Path("/proc/self/net/dev").read_text().splitlines())
    sent_bytes, packets = next(map(int, rest.split()[8:10]) for name, _, rest in rows if name.strip() == interface)
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, numbers = (line.split()[1:] for line in lines if line.startswith("Tcp:"))
    sent_again = int(numbers[names.index("RetransSegs")])
    return Traffic(sent_bytes, packets, sent_again * _SEGMENT_BYTES)


@functools.cache
def refused() -> str | None:
    """Return why hosts cannot be had here; None where they can."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: iproute2 is not installed"
    if os.geteuid():
        return "network namespaces need root"
    try:
        with hosts(1, rate_bits_per_s=1e9):
            return None
    except subprocess.CalledProcessError as error:
        return f"the kernel or the container refuses network namespaces: {error.stderr.strip()}"


@dataclass(frozen=True)
class Uplink:
    """The link between two sites, with one end in each."""

    switch: str  # the namespace of both ends
    ends: tuple[str, str]

    def sent_bytes(self) -> int:
        """Return what the kernel has sent on it so far in both directions, headers included."""
        rows = (line.partition(":") for line in _run(*_inside(self.switch, "cat", "/proc/net/dev")).splitlines())
        return sum(int(rest.split()[8]) for name, _, rest in rows if name.strip() in self.ends)


@contextlib.contextmanager
def two_sites(
    each: int, *, inside_bits_per_s: float, across_bits_per_s: float, burst_kb: int = 256
) -> Iterator[tuple[list[Host], Uplink]]:
    """Set up two sites of ``each`` hosts, which share one link between the sites' switches."""
    with hosts(2 * each, rate_bits_per_s=inside_bits_per_s, burst_kb=burst_kb) as members:
        switch = members[0].namespace.rpartition("-")[0] + "-switch"
        uplink = Uplink(switch, ("uplink0", "uplink1"))
        _ip("-n", switch, "link", "add", "bridge1", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge1", "up")
        _ip("-n", switch, "link", "add", uplink.ends[0], "type", "veth", "peer", "name", uplink.ends[1])
        for number in range(each, 2 * each):
            _ip("-n", switch, "link", "set", f"port{number}", "master", "bridge1")
        for end, bridge in zip(uplink.ends, ("bridge", "bridge1"), strict=True):
            _ip("-n", switch, "link", "set", end, "master", bridge, "up")
            _shape(switch, end, across_bits_per_s, burst_kb)
        yield members, uplink


@contextlib.contextmanager
def hosts(count: int, *, rate_bits_per_s: float | None = None, burst_kb: int = 256) -> Iterator[list[Host]]:
    """Set up ``count`` hosts at one switch; take everything down at the end, with the processes still running there.

    rate_bits_per_s: of every interface, in each direction; None: as fast as the machine is. burst_kb: kilobytes that an
    interface sends at once after a pause, whatever its rate.
    """
    _sweep()
    prefix = f"tacit-{os.getpid()}-{next(_numbers)}"
    switch = f"{prefix}-switch"
    members = [Host(f"{prefix}-{n}", f"host{n}", f"{_NETWORK}.{n + 1}") for n in range(count)]
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number, host in enumerate(members):
            _plug_in(host, switch, f"port{number}", rate_bits_per_s, burst_kb)
            _write_files(host, members)
        yield members
    finally:
        for name in (*(host.namespace for host in members), switch):
            _take_down(name)


def _plug_in(host: Host, switch: str, port: str, rate_bits_per_s: float | None, burst_kb: int) -> None:
    _ip("netns", "add", host.namespace)
    _ip("link", "add", INTERFACE, "netns", host.namespace, "type", "veth", "peer", "name", port, "netns", switch)
    _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
    _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", INTERFACE)
    for interface in ("lo", INTERFACE):
        _ip("-n", host.namespace, "link", "set", interface, "up")
    if rate_bits_per_s is not None:
        for namespace, interface in ((host.namespace, INTERFACE), (switch, port)):
            _shape(namespace, interface, rate_bits_per_s, burst_kb)


def _shape(namespace: str, interface: str, rate_bits_per_s: float, burst_kb: int) -> None:
    """Limit the rate of what ``interface`` sends."""
    bucket = f"tbf rate {rate_bits_per_s:.0f}bit burst {burst_kb}kb latency 50ms"
    _run("tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", *bucket.split())


def _inside(namespace: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *words]


def _write_files(host: Host, members: Sequence[Host]) -> None:
    others = [f"{other.address} {other.name}" for other in members if other is not host]
    folder = _FILES / host.namespace
    folder.mkdir(parents=True)
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", f"127.0.1.1 {host.name}", *others, ""]))
    (folder / "resolv.conf").write_text("")  # no name server can be reached, and a query takes long


def _sweep() -> None:
    """Take down what a process that was killed has left behind."""
    for line in _run("ip", "netns", "list", check=False).splitlines():
        name = line.split()[0]
        if name.startswith("tacit-") and not Path("/proc", name.split("-")[1]).exists():
            _take_down(name)


def _take_down(name: str) -> None:
    """Remove a namespace, whether it is whole or not; a veth goes with either of its ends."""
    for pid in _run("ip", "netns", "pids", name, check=False).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run("ip", "netns", "delete", name, check=False)
    shutil.rmtree(_FILES / name, ignore_errors=True)  # their folder stays: another process may be about to use it


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str, check: bool = True) -> str:
    return subprocess.run(words, check=check, capture_output=True, text=True).stdout
