"""The nonces of a run: drawn late, never twice, remembered as burned."""

import os
import re
from collections.abc import Callable, Iterable
from typing import Final

import attrs

__all__ = ("NonceBook", "NonceSourceFailed", "hex_runs")

NONCE_DIGITS: Final = 32  # 128 bits
_MAX_DRAWS: Final = 1_000

_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_RUNS: Final = re.compile(rb"[0-9a-f]{32,}")
_DIGITS: Final = bytes(
    ord("h") if chr(byte) in "0123456789abcdefABCDEF" else ord(".") for byte in range(256)
)
_LONG_RUN: Final = b"h" * NONCE_DIGITS
# A run of 32 has eight characters in a row of those that are looked at first.
_STRIDE: Final = 4
_SAMPLED_RUN: Final = b"h" * (NONCE_DIGITS // _STRIDE)


class NonceSourceFailed(Exception):
    """The source of nonces gave something else, or gave only values that are in use."""


def hex_runs(texts: Iterable[str]) -> tuple[str, ...]:
    """Every run of 32 or more hexadecimal digits, in lower case.

    A nonce can occur only inside such a run, and hardly any text has one.
    """
    runs: list[str] = []
    for text in texts:
        if len(text) < NONCE_DIGITS:
            continue
        data = text.encode("utf-8", "replace")
        if _has_run(data):
            runs += (found.decode() for found in _RUNS.findall(data.lower()))
    return tuple(runs)


def _has_run(data: bytes) -> bool:
    if _SAMPLED_RUN not in data[::_STRIDE].translate(_DIGITS):
        return False
    return _LONG_RUN in data.translate(_DIGITS)


def _draw() -> str:
    # As `secrets.token_hex` draws.
    return os.urandom(NONCE_DIGITS // 2).hex()


@attrs.frozen(kw_only=True)
class NonceBook:
    """Nonces of one run.

    `burned` is owned by the run, shared by reference and only grows. `draw` gives 32 lower-case
    hexadecimal digits; by default 128 random bits.
    """

    burned: set[str] = attrs.field(factory=set)
    draw: Callable[[], str] = _draw

    def issue(self, runs: Iterable[str]) -> str:
        """The first drawn nonce that is new and occurs in no run of *runs*; burned from now on.

        Raises:
            NonceSourceFailed: `draw` gave no nonce, or a thousand in a row that are in use.
        """
        runs = tuple(runs)
        for _ in range(_MAX_DRAWS):
            nonce = self.draw()
            # Our own gives nothing else.
            if self.draw is not _draw and not _NONCE.fullmatch(nonce):
                raise NonceSourceFailed(
                    f"not 32 lower-case hexadecimal digits: {len(nonce)} characters"
                )
            if nonce in self.burned:
                continue
            for run in runs:
                if nonce in run:
                    break
            else:
                self.burned.add(nonce)
                return nonce
        raise NonceSourceFailed(f"{_MAX_DRAWS} drawn values were all in use")

    def found_in(self, runs: Iterable[str]) -> tuple[str, ...]:
        """Burned nonces that occur in *runs*, sorted: somebody outside has seen a fence."""
        found: set[str] = set()
        for run in runs:
            windows = len(run) - NONCE_DIGITS + 1
            if windows < len(self.burned):
                found.update(
                    run[start : start + NONCE_DIGITS]
                    for start in range(windows)
                    if run[start : start + NONCE_DIGITS] in self.burned
                )
            else:
                found.update(nonce for nonce in self.burned if nonce in run)
        return tuple(sorted(found))

    def replayed(self, *texts: str) -> tuple[str, ...]:
        """Burned nonces in fetched text, an address or an outbound argument, in any case."""
        return self.found_in(hex_runs(texts)) if self.burned else ()
