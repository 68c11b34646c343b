"""Verify a signed log with nothing but Python's standard library, in one file to read.

    python auditor.py LOG KEY     exit code 0 if all holds, 1 if something does not, 2 for wrong usage

KEY is the public line, NAME+ID+BASE64, or a file that holds it.
LOG is the file that is written; its older files (LOG.000001 …) and LOG.checkpoints stand beside it.
The key line comes from whoever runs the log, never from the log. Changed keys and deleted files are
beyond this script: `runtime-pack audit verify` knows them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from pathlib import Path

__all__ = ("is_signature", "main")

# Curve and order of Ed25519, RFC 8032 section 5.1.
_P, _L = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, _P - 2, _P) % _P
_Point = tuple[int, int, int, int]


def _add(a: _Point, b: _Point) -> _Point:
    left, right = (a[1] - a[0]) * (b[1] - b[0]) % _P, (a[1] + a[0]) * (b[1] + b[0]) % _P
    c, d = 2 * a[3] * b[3] * _D % _P, 2 * a[2] * b[2] % _P
    e, f, g, h = right - left, d - c, d + c, right + left
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _times(number: int, point: _Point) -> _Point:
    total = (0, 1, 1, 0)
    while number:
        if number & 1:
            total = _add(total, point)
        point, number = _add(point, point), number >> 1
    return total


def _point(raw: bytes) -> _Point:
    y, sign = int.from_bytes(raw, "little") & (1 << 255) - 1, raw[31] >> 7
    square = (y * y - 1) * pow(_D * y * y + 1, _P - 2, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if (x * x - square) % _P:
        x = x * pow(2, (_P - 1) // 4, _P) % _P
    if y >= _P or (x * x - square) % _P or (not x and sign):
        raise ValueError("not a point of the curve")
    x = _P - x if x & 1 != sign else x
    return x, y, 1, x * y % _P


_BASE = _point((4 * pow(5, _P - 2, _P) % _P).to_bytes(32, "little"))


def is_signature(key: bytes, text: bytes, raw: bytes) -> bool:
    """Whether *raw* is the Ed25519 signature over *text* of the 32 bytes of *key*."""
    try:
        public, r, s = _point(key), _point(raw[:32]), int.from_bytes(raw[32:64], "little")
    except (ValueError, IndexError):
        return False
    digest = int.from_bytes(hashlib.sha512(raw[:32] + key + text).digest(), "little")
    a, b = _times(s, _BASE), _add(r, _times(digest % _L, public))
    same = not (a[0] * b[2] - b[0] * a[2]) % _P and not (a[1] * b[2] - b[1] * a[2]) % _P
    return len(raw) == 64 and s < _L and same


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class _Lines:
    """What the files hold: how many lines, the last one's digest and kind, and each line's root."""

    def __init__(self) -> None:
        self.count, self.prev, self.kind = 0, "0" * 64, ""
        self.origins: set[str] = set()
        self.roots: dict[int, str] = {}
        self._peaks: list[tuple[int, bytes]] = []

    def take(self, line: bytes) -> None:
        record = json.loads(line)
        self.count += 1
        plain = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        follows = (record.get("seq"), record.get("prev")) == (self.count, self.prev)
        if plain.encode() != line or not follows:
            raise ValueError(f"line {self.count}: edited or moved, or one before it was")
        self.prev, self.kind = hashlib.sha256(line).hexdigest(), record["type"]
        if self.kind in {"log:opened", "log:continued"} and "origin" in record["object"]:
            self.origins.add(record["object"]["origin"])
        node = (1, hashlib.sha256(b"\x00" + line).digest())
        while self._peaks and self._peaks[-1][0] == node[0]:
            node = (2 * node[0], _node(self._peaks.pop()[1], node[1]))
        self._peaks.append(node)
        root = node[1]
        for _, peak in reversed(self._peaks[:-1]):
            root = _node(peak, root)
        self.roots[self.count] = base64.b64encode(root).decode()


def _signed_upto(notes: str, lines: _Lines, name: str, key: bytes) -> int:
    """How many lines the last checkpoint is over; all of them are ours and over these lines."""
    mark, signed = f"\N{EM DASH} {name} ", 0
    blocks = notes.split("\n\n")
    for text, rows in zip(blocks[0:-1:2], blocks[1:-1:2], strict=False):
        origin, size, root = text.split("\n")
        given = [r.removeprefix(mark) for r in rows.split("\n") if r.startswith(mark)]
        raw = [base64.b64decode(one)[4:] for one in given]
        lines.origins.add(origin)
        ours = lines.origins == {origin} and f"{origin}/".startswith(f"{name}/")
        if not ours or not any(is_signature(key, f"{text}\n".encode(), r) for r in raw):
            raise ValueError(f"the checkpoint over {size} lines is not signed by {name}")
        if lines.roots.get(int(size)) != root:
            raise ValueError(f"the checkpoint over {size} lines is not over these: edited or cut")
        signed = int(size)
    return signed


def _older(log: Path) -> list[Path]:
    """The full files; a second name of the one that is written is none."""
    named = [p for p in log.parent.iterdir() if p.name[:-6] == f"{log.name}."]
    full = [p for p in named if set(p.name[-6:]) <= set("0123456789")]
    return sorted(p for p in full if not p.samefile(log))


def _key(given: str) -> tuple[str, bytes]:
    """Name and bytes of a public line, or of the one in a file.

    Raises:
        ValueError: it is none.
        OSError: the file cannot be read.
    """
    line = Path(given).read_text("utf-8") if Path(given).is_file() else given
    name, key_id, coded = line.strip().split("+", 2)
    raw = base64.b64decode(coded, validate=True)
    if hashlib.sha256(f"{name}\n".encode() + raw).hexdigest()[:8] != key_id or len(raw) != 33:
        raise ValueError("its parts do not belong together")
    return name, raw[1:]


def main(log: Path, name: str, key: bytes) -> str:
    """What the log proves.

    Raises:
        ValueError: something does not hold; the message says what.
        OSError: a file cannot be read.
    """
    lines = _Lines()
    for file in (*_older(log), log):
        *whole, torn = file.read_bytes().split(b"\n")
        if torn:
            raise ValueError(f"{file}: the last line is torn")
        for line in whole:
            lines.take(line)
    notes = log.with_name(f"{log.name}.checkpoints").read_text("utf-8")
    signed = _signed_upto(notes, lines, name, key)
    if signed != lines.count or lines.kind != "log:closed":
        raise ValueError(f"{lines.count} lines, {signed} signed: open, or cut or added to")
    return f"{signed} lines, all signed by {name}; head {signed}:{lines.prev}"


if __name__ == "__main__":
    try:
        _log, _given = sys.argv[1:]
        _named = _key(_given)
    except (ValueError, OSError) as error:
        sys.stderr.write(f"usage: auditor.py LOG KEY, a public line or a file with it ({error})\n")
        sys.exit(2)
    try:
        sys.stdout.write(f"{main(Path(_log), *_named)}\n")
    except (ValueError, KeyError, TypeError, OSError) as error:
        sys.exit(f"does not hold: {error}")
