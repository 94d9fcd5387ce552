"""Whose process is at the other end of a connection on this machine, as the kernel's tables say.

A port of loopback is free to all users of a machine: another may open it before our server does, or
after it died. Only Linux has these tables; elsewhere nobody is refused.
"""

import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import psutil

Address = tuple[IPv4Address | IPv6Address, int]

_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTENS: Final = "0A"  # states of a socket, as the kernel writes them
_WAITS: Final = ("01", "03")  # a connection that no process has accepted yet: it is not closed


@dataclass(frozen=True)
class _Socket:
    """A line of a table; `inode` is 0 until a process accepts the connection, and after it ends."""

    local: Address
    peer: Address
    state: str
    user: int
    inode: int


def refuse_stranger(local: Any, peer: Any) -> None:
    """Raises ConnectionRefusedError if another user of this machine is at a connection's other end.

    Args:
        local: `getsockname()` of the connected socket.
        peer: Its `getpeername()`.
    """
    here = _address(local[0], local[1])
    there = _address(peer[0], peer[1])
    place = f"{there[0]}:{there[1]}"
    for table in _TABLES:
        listeners: set[int] = set()  # the kernel lists them first
        for socket in _sockets(table):
            if socket.state == _LISTENS and _takes(socket, there):
                listeners.add(socket.user)
            elif (socket.local, socket.peer) == (there, here):
                users = {socket.user} if socket.inode else set()
                if not socket.inode and socket.state in _WAITS:  # for the one that listens
                    users = listeners
                if users and users <= _trusted():
                    return
                who = ", ".join(map(str, sorted(users))) or "nobody"
                raise ConnectionRefusedError(f"{place} belongs to another user ({who})")
    if there[0].is_loopback and _TABLES[0].exists():
        raise ConnectionRefusedError(f"{place} belongs to no process that can be seen here")


def listening_ports() -> set[int]:
    """Returns the ports at which this process listens."""
    connections = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}


def refuse_strangers_at(ports: Collection[int]) -> None:
    """Raises ConnectionRefusedError if another user is connected to one of this process's ports."""
    for one in psutil.Process().net_connections("tcp"):
        if one.raddr and one.laddr.port in ports:
            refuse_stranger(one.laddr, one.raddr)


def is_anothers(host: str, port: int) -> bool:
    """Returns whether another user's socket would take a connection to this very address."""
    try:
        address = _address("127.0.0.1" if host == "localhost" else host, port)
    except ValueError:  # a name, whose address is the network's to say
        return False
    listeners = [
        socket
        for table in _TABLES
        for socket in _sockets(table)
        if socket.state == _LISTENS and _takes(socket, address)
    ]
    # The kernel takes the one at the address itself, then the one at all addresses of its kind.
    exact = [socket for socket in listeners if socket.local == address]
    same_kind = [s for s in listeners if s.local[0].version == address[0].version]
    return not {socket.user for socket in exact or same_kind or listeners} <= _trusted()


def _trusted() -> set[int]:
    """Returns this user, and root, who can read our memory anyway (a container's ports are his)."""
    return {os.geteuid(), 0}


def _takes(listener: _Socket, address: Address) -> bool:
    host, port = listener.local
    return port == address[1] and (host == address[0] or host.is_unspecified)


def _sockets(table: Path) -> Iterator[_Socket]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for fields in map(str.split, lines):
        local = _parsed(fields[1])
        peer = _parsed(fields[2])
        yield _Socket(local, peer, fields[3], int(fields[7]), int(fields[9]))


def _parsed(text: str) -> Address:
    """Returns an address that the kernel writes as 32-bit words in the machine's byte order."""
    digits, _, port = text.partition(":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return _address(ip_address(packed), int(port, 16))


def _address(host: str | IPv4Address | IPv6Address, port: int) -> Address:
    """Returns an address in one form: an IPv4 address that an IPv6 socket serves is IPv4."""
    ip = ip_address(host.partition("%")[0]) if isinstance(host, str) else host
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return mapped or ip, port
