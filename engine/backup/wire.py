"""What really left this machine: the bytes that the other side acknowledged, as the kernel counts them per connection.

rclone counts a byte when it is read into a buffer. Buffers of parts and of the kernel hold a quarter of a gigabyte, so
on a slow link its figure runs minutes ahead. Linux tells of every TCP connection how much of it arrived (INET_DIAG).
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
REQUEST_DUMP, DONE, ERROR = 0x301, 3, 2
INFO, INFO_BIT = 2, 1 << 1
BYTES_ACKED = 120  # its place in the kernel's tcp_info, since 4.1
HEADER, MESSAGE = 16, 72
ALL_STATES = 0xFFFFFFFF


class Wire:
    """Counts what the connections of a process got through since the last look."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}

    def moved(self, pid: int) -> int | None:
        """Bytes acknowledged since the last call; None where the kernel does not tell."""
        try:
            inodes = _sockets(pid)
            now = {inode: acked for inode, acked in _acknowledged().items() if inode in inodes}
        except (OSError, struct.error):
            return None
        gained = sum(max(0, acked - self._seen.get(inode, 0)) for inode, acked in now.items())
        self._seen = now
        return gained


def _sockets(pid: int) -> set[int]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            name = str(entry.readlink())
        except OSError:
            continue
        if name.startswith("socket:["):
            found.add(int(name[8:-1]))
    return found


def _acknowledged() -> dict[int, int]:
    """Acknowledged bytes by the inode of each TCP socket of this network namespace."""
    found: dict[int, int] = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.settimeout(1.0)
        for family in (socket.AF_INET, socket.AF_INET6):
            body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, INFO_BIT, ALL_STATES)
            link.send(struct.pack("=IHHII", HEADER + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
            while _read(link.recv(1 << 18), found):
                pass
    return found


def _read(data: bytes, found: dict[int, int]) -> bool:
    """Take the connections out of one answer; whether more follow."""
    at = 0
    while at + HEADER <= len(data):
        length, kind = struct.unpack_from("=IH", data, at)
        if kind == DONE or length < HEADER:
            return False
        if kind == ERROR:
            raise OSError("sock_diag")
        (inode,) = struct.unpack_from("=I", data, at + HEADER + MESSAGE - 4)
        attribute, end = at + HEADER + MESSAGE, at + length
        while attribute + 4 <= end:
            size, name = struct.unpack_from("=HH", data, attribute)
            if name == INFO and size >= 4 + BYTES_ACKED + 8:
                (found[inode],) = struct.unpack_from("=Q", data, attribute + 4 + BYTES_ACKED)
            attribute += max(4, (size + 3) & ~3)
        at += (length + 3) & ~3
    return True
