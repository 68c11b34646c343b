"""Connects made for a child that may make none itself.

In a Landlock domain the child's `connect` stops at its filter and is told here. Landlock denies the
child every TCP connect; a rule of it would be by port and not by address. So the parent takes a
duplicate of the child's socket and connects that, to the one address there is: the proxy's. What
the child wrote as address only decides whether it is refused. Changing it meanwhile changes nothing.
The filter alone would be no wall: a child may add a filter of its own that answers for ours (see
the note on SECCOMP_USER_NOTIF_FLAG_CONTINUE in linux/seccomp.h). What it lets pass meets Landlock.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Final

import attrs

__all__ = ("Answer", "Notification", "answer_to", "connects_made")

# Source: struct seccomp_notif, struct seccomp_notif_resp and the requests in linux/seccomp.h.
_NOTIFICATION: Final = struct.Struct("=QII iIQ 6Q")
_RESPONSE: Final = struct.Struct("=QqiI")
_RECEIVE: Final = 0xC050_2100
_SEND: Final = 0xC018_2101
_IS_VALID: Final = 0x4008_2102
_CONTINUE: Final = 1
# The same on every machine. Source: asm-generic/unistd.h and syscall_64.tbl.
_SYS_PIDFD_GETFD: Final = 438

_LOOPBACK: Final = "127.0.0.1"
_MAPPED_LOOPBACK: Final = "::ffff:127.0.0.1"
# Source: linux/in.h, linux/in6.h; the structures without what follows the address.
_FAMILY_BYTES: Final = 2
_SOCKADDR_IN: Final = struct.Struct("=H2s4s")
_SOCKADDR_IN6: Final = struct.Struct("=H2sI16s")
_SOCKADDR_AT_MOST: Final = 128


class Answer(Enum):
    """What is done about one connect."""

    CONNECT = auto()
    """The parent connects the socket to the proxy."""
    CONTINUE = auto()
    """The kernel goes on with the child's call: only where Landlock or the family holds it."""
    REFUSE = auto()
    """EACCES, as from Landlock."""


@attrs.frozen(kw_only=True)
class Notification:
    """One call that waits.

    Attributes:
        id: The kernel's name for it.
        thread: Who called.
        descriptor: The socket, by its number there.
        address: Where the address lies in its memory.
        length: Of the address, in bytes, as the kernel reads it.
    """

    id: int
    thread: int
    descriptor: int
    address: int
    length: int

    @classmethod
    def from_bytes(cls, raw: bytes) -> Notification:
        """The one that *raw*, a `struct seccomp_notif`, holds."""
        name, thread, _, _, _, _, descriptor, address, length, *_ = _NOTIFICATION.unpack(raw)
        return cls(
            id=name,
            thread=thread,
            descriptor=descriptor & 0x7FFF_FFFF,
            address=address,
            length=length & 0xFFFF_FFFF,
        )


def answer_to(address: bytes, *, port: int, allow_unix: bool) -> Answer:
    """What is done about a connect to *address*, a `struct sockaddr`. Total."""
    if len(address) < _FAMILY_BYTES:
        # One byte of a family is none: the kernel has not read the other one yet.
        return Answer.REFUSE
    family = int.from_bytes(address[:_FAMILY_BYTES], "little")
    if family == socket.AF_UNIX and allow_unix:
        return Answer.CONTINUE
    wanted = port.to_bytes(2, "big")
    if family == socket.AF_INET and len(address) >= _SOCKADDR_IN.size:
        _, at, host = _SOCKADDR_IN.unpack_from(address)
        if at == wanted and host == socket.inet_aton(_LOOPBACK):
            return Answer.CONNECT
    if family == socket.AF_INET6 and len(address) >= _SOCKADDR_IN6.size:
        _, at, _, host = _SOCKADDR_IN6.unpack_from(address)
        if at == wanted and host == socket.inet_pton(socket.AF_INET6, _MAPPED_LOOPBACK):
            return Answer.CONNECT
    return Answer.REFUSE


class _Connects:
    """Answers what the filter asks, one thread for each call that waits."""

    def __init__(self, listener: int, *, port: int, allow_unix: bool) -> None:
        self._listener = listener
        self._port = port
        self._allow_unix = allow_unix
        self._running = set[asyncio.Future[None]]()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.syscall.restype = ctypes.c_long

    def take(self) -> None:
        """Takes one call that waits; the listener is readable."""
        raw = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, raw)
        except OSError:
            # The caller was killed, or there is nobody left to call.
            if not self._anybody_left():
                asyncio.get_running_loop().remove_reader(self._listener)
            return
        told = Notification.from_bytes(bytes(raw))
        # A connect of a blocking socket blocks until the proxy, which may be ours, has room for it.
        job = asyncio.get_running_loop().run_in_executor(None, self._answer, told)
        self._running.add(job)
        job.add_done_callback(self._running.discard)

    def _anybody_left(self) -> bool:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        return not any(event & select.POLLHUP for _, event in poll.poll(0))

    async def aclose(self) -> None:
        """Waits for the calls that are being answered."""
        await asyncio.gather(*self._running, return_exceptions=True)

    def _answer(self, told: Notification) -> None:
        number, flags = errno.EACCES, 0
        try:
            answer = answer_to(self._address(told), port=self._port, allow_unix=self._allow_unix)
            if answer is Answer.CONNECT:
                number = self._connect(told)
            elif answer is Answer.CONTINUE:
                number, flags = 0, _CONTINUE
        except OSError as error:
            number = error.errno or errno.EACCES
        # Numbers of the child's choosing (an address that no file offset can be): a call that is
        # not answered would wait for ever.
        except (OverflowError, ValueError):
            number = errno.EFAULT
        try:
            fcntl.ioctl(self._listener, _SEND, _RESPONSE.pack(told.id, 0, -number, flags))
        except OSError:
            # The caller was killed meanwhile.
            return

    def _address(self, told: Notification) -> bytes:
        if told.length > _SOCKADDR_AT_MOST:
            return b""
        with Path(f"/proc/{told.thread}/mem").open("rb", buffering=0) as memory:
            memory.seek(told.address)
            return memory.read(told.length)

    def _connect(self, told: Notification) -> int:
        """The error number of connecting the child's socket to the proxy; 0 when it is."""
        process = os.pidfd_open(_thread_group(told.thread))
        try:
            ours = self._libc.syscall(
                ctypes.c_long(_SYS_PIDFD_GETFD),
                ctypes.c_long(process),
                ctypes.c_long(told.descriptor),
                ctypes.c_long(0),
            )
            if ours < 0:
                return ctypes.get_errno()
        finally:
            os.close(process)
        # Takes the descriptor over. The file behind it is the child's: its modes stay the child's.
        with socket.socket(fileno=ours) as taken:
            # The number may have become another process while we looked.
            fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", told.id))
            if taken.type != socket.SOCK_STREAM:
                return errno.EACCES
            match taken.family:
                case socket.AF_INET:
                    return taken.connect_ex((_LOOPBACK, self._port))
                case socket.AF_INET6:
                    return taken.connect_ex((_MAPPED_LOOPBACK, self._port))
                case _:
                    return errno.EACCES


def _thread_group(thread: int) -> int:
    for line in Path(f"/proc/{thread}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "Tgid":
            return int(value)
    raise ProcessLookupError(errno.ESRCH, "no thread group")


@asynccontextmanager
async def connects_made(listener: int, *, port: int, allow_unix: bool) -> AsyncIterator[None]:
    """Every connect that *listener* tells of is answered until the end of the block.

    Takes the descriptor over and closes it; connects that are made later end with ENOSYS.
    """
    connects = _Connects(listener, port=port, allow_unix=allow_unix)
    loop = asyncio.get_running_loop()
    try:
        loop.add_reader(listener, connects.take)
        yield
    finally:
        loop.remove_reader(listener)
        await connects.aclose()
        os.close(listener)
