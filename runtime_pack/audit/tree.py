"""The Merkle tree over the lines of a log: pure, from hashes to hashes.

A leaf is SHA-256 of 0x00 and a line's bytes, a node SHA-256 of 0x01 and its two children. Lines
have no line feed here. Only the frontier of a growing tree is kept: one hash for each bit of its size.

Source: RFC 9162, sections 2.1.1 (the tree), 2.1.3 (inclusion) and 2.1.4 (consistency).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

__all__ = (
    "EMPTY_ROOT",
    "Frontier",
    "consistency_proof",
    "inclusion_proof",
    "is_consistent",
    "is_included",
    "leaf_hash",
    "root_of",
)

EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
"""The root of a tree without leaves."""


def leaf_hash(line: bytes) -> bytes:
    """The hash of one line."""
    return hashlib.sha256(b"\x00" + line).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a tree that grows: roots of its perfect subtrees, the largest first.

    Raises:
        ValueError: there is not one hash for each bit of the size.
    """

    __slots__ = ("_peaks", "size")

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        if size < 0 or len(peaks) != size.bit_count() or any(len(p) != 32 for p in peaks):
            raise ValueError("a frontier has one SHA-256 for each bit of its size")
        self.size = size
        self._peaks = list(peaks)

    @property
    def peaks(self) -> tuple[bytes, ...]:
        """The hashes, as the constructor takes them."""
        return tuple(self._peaks)

    def add(self, leaf: bytes) -> None:
        """Take the hash of one more leaf."""
        node, merged = leaf, self.size
        while merged & 1:
            node = _node(self._peaks.pop(), node)
            merged >>= 1
        self._peaks.append(node)
        self.size += 1

    def root(self) -> bytes:
        """The root of the tree as it is now."""
        if not self._peaks:
            return EMPTY_ROOT
        *rest, node = self._peaks
        for peak in reversed(rest):
            node = _node(peak, node)
        return node

    def within(self, low: int, high: int) -> Frontier:
        """The right edge of the part that stands for the leaves from *low* to below *high*.

        Raises:
            IndexError: the part is not made of whole subtrees: what it consists of is not known.
        """
        at, peaks = 0, []
        for peak, bit in zip(self._peaks, _bits(self.size), strict=True):
            if low <= at and at + bit <= high:
                peaks.append(peak)
            at += bit
        try:
            return Frontier(min(high, self.size) - low, peaks)
        except ValueError as error:
            raise IndexError("lines that are needed for it were deleted") from error


def _bits(size: int) -> list[int]:
    return [1 << at for at in reversed(range(size.bit_length())) if size >> at & 1]


def _range_root(low: int, high: int, leaves: Sequence[bytes], before: Frontier) -> bytes:
    """The root over the leaves from *low* to below *high*; the first ones are known by a frontier."""
    start = before.size
    if low >= start:
        return root_of(leaves[low - start : high - start])
    frontier = before.within(low, high)
    for leaf in leaves[: max(0, high - start)]:
        frontier.add(leaf)
    return frontier.root()


def _split(size: int) -> int:
    """The largest power of two below *size*: where the left subtree ends."""
    return 1 << (size - 1).bit_length() - 1


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The root over hashes of leaves."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.add(leaf)
    return frontier.root()


def inclusion_proof(
    index: int, leaves: Sequence[bytes], before: Frontier | None = None
) -> tuple[bytes, ...]:
    """The hashes that lead from the leaf at *index* (from 0) to the root, the leaf's sibling first.

    *before* stands for leaves that are not there any more; *leaves* are those behind them.

    Raises:
        IndexError: there is no such leaf, or it is not there any more.
    """
    before = before or Frontier()
    low, high = 0, before.size + len(leaves)
    if not before.size <= index < high:
        raise IndexError(f"there is no line {index + 1} to prove")
    siblings = []
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            siblings.append(_range_root(middle, high, leaves, before))
            high = middle
        else:
            siblings.append(_range_root(low, middle, leaves, before))
            low = middle
    return tuple(reversed(siblings))


def is_included(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Whether the proof leads from the leaf at *index* to the root of a tree of that size."""
    if not 0 <= index < size:
        return False
    at, last, node = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if at & 1 or at == last:
            node = _node(sibling, node)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            node = _node(node, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and node == root


def consistency_proof(
    old: int, leaves: Sequence[bytes], before: Frontier | None = None
) -> tuple[bytes, ...]:
    """The hashes that show the tree of the first *old* leaves to be a beginning of this one.

    Empty for no leaves and for all of them. *before* is as for `inclusion_proof`.

    Raises:
        IndexError: there are not that many leaves, or some that are needed are not there any more.
    """
    before = before or Frontier()
    low, high, whole = 0, before.size + len(leaves), True
    if not 0 <= old <= high:
        raise IndexError(f"the tree has {high} leaves, not {old}")
    if old in (0, high):
        return ()
    rest = []
    while old != high:
        middle = low + _split(high - low)
        if old <= middle:
            rest.append(_range_root(middle, high, leaves, before))
            high = middle
        else:
            rest.append(_range_root(low, middle, leaves, before))
            low, whole = middle, False
    first = () if whole else (_range_root(low, high, leaves, before),)
    return (*first, *reversed(rest))


def is_consistent(
    old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether the proof shows that the tree of size *old* is a beginning of that of *size*."""
    if not 0 <= old <= size:
        return False
    if old == size:
        return not proof and old_root == root
    if old == 0:
        return not proof and old_root == EMPTY_ROOT
    steps = list(proof) if old & (old - 1) else [old_root, *proof]
    if not steps:
        return False
    at, last = old - 1, size - 1
    while at & 1:
        at, last = at >> 1, last >> 1
    first = second = steps[0]
    for sibling in steps[1:]:
        if last == 0:
            return False
        if at & 1 or at == last:
            first, second = _node(sibling, first), _node(sibling, second)
            while at and not at & 1:
                at, last = at >> 1, last >> 1
        else:
            second = _node(second, sibling)
        at, last = at >> 1, last >> 1
    return last == 0 and first == old_root and second == root
