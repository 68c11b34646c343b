"""The fuzz target of everything in `egress` that reads bytes of others.

    python tests/egress/fuzz/fuzz_egress.py                     for as long as you like
    python tests/egress/fuzz/fuzz_egress.py -max_total_time=60 CORPUS

The first byte of an input chooses what reads the rest. `seeds` writes a first corpus from the case
table. Without atheris the same checks run over the seeds, in test_fuzz.py.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

_CASES: Final = Path(__file__).resolve().parents[2] / "cases" / "egress.jsonl"
_CAP: Final = 4096


def check_url(data: bytes) -> None:
    """A target or a rejection; a target is its own canonical form."""
    from egress import UrlRejected, parse_target

    try:
        target = parse_target(_text(data))
    except UrlRejected:
        return
    if parse_target(target.url) != target:
        raise AssertionError("the canonical form is not canonical")


def check_reference(data: bytes) -> None:
    """A target or a rejection, and a target that can be parsed again."""
    from egress import UrlRejected, parse_target, resolve_location

    base = parse_target("https://example.org/a/b?c")
    try:
        target = resolve_location(base, _text(data))
    except UrlRejected:
        return
    if parse_target(target.url) != target:
        raise AssertionError("the joined target is not canonical")


def check_entry(data: bytes) -> None:
    """A list or a refusal; the canonical texts mean the same list."""
    from egress import AllowlistError, parse_allowlist

    try:
        allowlist = parse_allowlist(_text(data).split("\n"))
    except AllowlistError:
        return
    if parse_allowlist(allowlist.entries) != allowlist:
        raise AssertionError("the canonical entries are another list")
    if allowlist.intersect(allowlist) != parse_allowlist(allowlist.entries).intersect(allowlist):
        raise AssertionError("the intersection depends on the spelling")


def check_explanation(data: bytes) -> None:
    """Total for any URL, tunnel, list, answers and server name."""
    from egress.explain import explain, explain_connect

    first, *rest = _text(data).split("\n")
    json.dumps(explain(first, rest[:4], rest[4:]).to_json())
    told = explain_connect(first, {"workspace": rest[:2], "run": rest[2:4]}, rest[4:6])
    json.dumps(told.to_json())


def check_body(data: bytes) -> None:
    """Never beyond the caps; the same bytes in whatever pieces they come."""
    from egress.body import BodyMeter, coding_of
    from egress.errors import FetchError

    def decoded(pieces: list[bytes], name: str) -> bytes | None:
        meter = BodyMeter(
            coding_of([name], host="h"), max_raw_bytes=_CAP, max_decoded_bytes=_CAP, host="h"
        )
        found = []
        try:
            for piece in pieces:
                found += list(meter.feed(piece))
            meter.finish()
        except FetchError:
            return None
        if meter.decoded_bytes > _CAP or meter.raw_bytes > _CAP:
            raise AssertionError("a cap was passed")
        return b"".join(found)

    for name in ("gzip", "deflate", "identity"):
        whole = decoded([data], name)
        cut = decoded([data[:3], data[3:7], data[7:]], name)
        if whole is not None and cut is not None and whole != cut:
            raise AssertionError("the body depends on how it was cut")


def check_hello(data: bytes) -> None:
    """Total, and the same in whatever pieces it comes."""
    from egress.client_hello import HelloReader, NeedMore, read_hello

    whole, reader = read_hello(data), HelloReader()
    reading = reader.feed(b"")
    for place in range(0, len(data), 7):
        if not isinstance(reading, NeedMore):
            break
        reading = reader.feed(data[place : place + 7])
    if not isinstance(reading, NeedMore) and reading != whole:
        raise AssertionError("the hello depends on how it was cut")


def check_head(data: bytes) -> None:
    """A request or a refusal; the target of a request is canonical."""
    from egress import parse_target
    from egress.proxy_head import HeadRefused, parse_head

    request = parse_head(data)
    if isinstance(request, HeadRefused):
        return
    if parse_target(request.target.url) != request.target:
        raise AssertionError("the target is not canonical")


CHECKS: Final[tuple[Callable[[bytes], None], ...]] = (
    check_url,
    check_reference,
    check_entry,
    check_explanation,
    check_body,
    check_hello,
    check_head,
)


def check(data: bytes) -> None:
    """One input."""
    if data:
        CHECKS[data[0] % len(CHECKS)](data[1:])


def _text(data: bytes) -> str:
    # Surrogate escapes stand for bytes that are not UTF-8, as in header fields.
    return data.decode("utf-8", "surrogateescape")


def _input(checker: Callable[[bytes], None], text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return bytes([CHECKS.index(checker)]) + data


def seeds() -> list[bytes]:
    """Inputs from the case table, and one of each kind that it does not have."""
    import gzip
    import zlib

    found = set()
    for line in _CASES.read_text().splitlines():
        row = json.loads(line)
        url, entries = row["url"], row["allowlist"]
        answers = [each for answers in row.get("dns", {}).values() for each in answers]
        found |= {_input(check_url, url), _input(check_entry, "\n".join(entries))}
        found |= {_input(check_explanation, "\n".join([url, *entries[:4], *answers[:2]]))}
        found |= {_input(check_reference, each) for each in row.get("redirects", ())}
        found |= {_input(check_head, head) for head in _head(row)}
    for body in (b"", b"hello " * 100, bytes(range(256))):
        found |= {_input(check_body, gzip.compress(body, mtime=0)), _input(check_body, body)}
        found |= {_input(check_body, zlib.compress(body))}
    return sorted(found | {_input(check_hello, _hello(b"example.org"))})


def _head(row: dict[str, Any]) -> list[bytes]:
    if row["kind"] != "proxy":
        return []
    request = row["request"]
    fields = "".join(f"{name}: {value}\r\n" for name, value in request["headers"])
    return [f"{request['method']} {row['url']} HTTP/1.1\r\n{fields}\r\n".encode()]


def _hello(name: bytes) -> bytes:
    """The smallest ClientHello that names a server."""

    def vector(size: int, content: bytes) -> bytes:
        return len(content).to_bytes(size, "big") + content

    sni = b"\0\0" + vector(2, vector(2, b"\0" + vector(2, name)))
    body = b"\x03\x03" + bytes(32) + vector(1, b"") + vector(2, b"\x13\x01") + vector(1, b"\0")
    message = b"\x01" + vector(3, body + vector(2, sni))
    return b"\x16\x03\x01" + vector(2, message)


def write_corpus(folder: Path) -> None:
    """The seeds, one file each, named by content."""
    for seed in seeds():
        (folder / sha256(seed).hexdigest()[:16]).write_bytes(seed)


def main() -> None:
    """Fuzz with the arguments of libFuzzer."""
    # Any: atheris has no types, and is not there on every machine.
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["egress"]):
        for name in ("explain", "body", "client_hello", "proxy_head"):
            importlib.import_module(f"egress.{name}")
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
