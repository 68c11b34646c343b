"""A process that turns pages into text, one after another, and can be killed at any time.

Started by `_extract_pool` as `python -I -c` with the host's import path handed over; talks frames on
one socket, its standard input, and ends when that closes. It confines itself before the first
page: memory, processor time, no core dump, no new file or socket, no new process.
"""

import codecs
import importlib
import os
import resource

MEMORY_BYTES = 1024 * 1024 * 1024
CPU_SECONDS_PER_PAGE = 8
_LIFETIME_CPU_SECONDS = 3600
_SOCKET = 0


def main() -> None:
    """Serve pages until the host closes the socket."""
    from web_tools import _extract_wire as wire

    _warm_up()
    confine()
    os.write(_SOCKET, b"\x01")  # ready; the host waits for it, so a start-up failure is seen as one
    while (prefix := _read(wire.LENGTHS.size)) is not None:
        head_bytes, body_bytes = wire.LENGTHS.unpack(prefix)
        head, body = _read(head_bytes), _read(body_bytes)
        if head is None or body is None:
            return
        _grant_cpu()
        reply = _answer(head, body)
        del head, body
        _write(reply)


def confine() -> None:
    """Give up what reading pages does not need; cannot be undone by this process."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # Numbers below the limit that are open stay open: the socket. Nothing else can be opened.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_LIFETIME_CPU_SECONDS, _LIFETIME_CPU_SECONDS))


def _warm_up() -> None:
    """Import what would be imported while reading a page: afterwards no file can be opened."""
    importlib.import_module("turbohtml.detect")

    from web_tools import _charset_labels as labels
    from web_tools import _extract_page as page

    for codec in (*set(labels.CODECS.values()), "iso2022_jp_ext", "utf-32-le", "utf-32-be"):
        codecs.lookup(codec)  # decoding nothing would not load it
    importlib.import_module("encodings.idna")
    page.extract_page(b"<title>a</title><p><a href='b'>c</a><pre>d</pre>", "text/html", "http://a/")


def _grant_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + CPU_SECONDS_PER_PAGE
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (min(soft, hard), hard))


def _answer(head: bytes, body: bytes) -> bytes:
    import orjson

    from web_tools import _extract_page as page
    from web_tools import _extract_wire as wire
    from web_tools._extract_result import ExtractError, ExtractionFailed, FailureReason

    request = orjson.loads(head)
    try:
        if request["mode"] == "strip":
            return wire.reply_of(page.strip_page(body, request["content_type"]))
        return wire.reply_of(page.extract_page(body, request["content_type"], request["url"]))
    except ExtractError as error:
        return wire.reply_of(error)
    except MemoryError:
        return wire.reply_of(ExtractionFailed(FailureReason.OUT_OF_MEMORY))
    # The boundary of a page: whatever a parser raises is a fault of this page only.
    except Exception:  # noqa: BLE001
        return wire.reply_of(ExtractionFailed(FailureReason.PARSER_FAULT))


def _read(count: int) -> bytes | None:
    """Exactly *count* bytes, or None when the host is gone."""
    buffer = bytearray(count)
    view, filled = memoryview(buffer), 0
    while filled < count:
        got = os.readv(_SOCKET, [view[filled:]])
        if got == 0:
            return None
        filled += got
    return bytes(buffer)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_SOCKET, view) :]


if __name__ == "__main__":
    main()
