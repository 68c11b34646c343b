"""Fencing on an event loop: the same block, and the loop is not held."""

import asyncio
import time

import pytest

from web_tools.fence import (
    FencedBlock,
    FenceKind,
    FenceMeta,
    NonceBook,
    ResultText,
    Signal,
    fence,
    fence_aside,
    fence_results,
    fence_results_aside,
    neutralise,
)
from web_tools.testing import assert_fenced

PAGE = FenceMeta(kind=FenceKind.PAGE, source="https://a.example/", retrieved_at=None)
HOSTILE = {
    "fullwidth": "\uff1c" * 87_000,
    "zero-width": "\u200b<\u200b/" * 30_000,
    "bidi": "\u202a\u05d0" * 52_000,
    "entities": "&#37;3c" * 37_000,
    "brackets": "<" * 262_144,
    "hex": "0123456789abcdef" * 16_384,
    "larger cap": "\uff1c" * 500_000,
}
SIZES = [0, 1, 8_192, 8_193, 40_000]


def book() -> NonceBook:
    nonces = iter(f"{number:032x}" for number in range(100))
    return NonceBook(draw=lambda: next(nonces))


@pytest.mark.parametrize("size", SIZES)
def test_a_block_is_the_same_wherever_it_is_made(size: int) -> None:
    """Short and long texts, inert or not, give the block of `fence`."""
    text = ("<a\u200b" * size)[:size]

    assert fence(text, meta=PAGE, nonces=book()) == asyncio.run(
        fence_aside(text, meta=PAGE, nonces=book())
    )


@pytest.mark.parametrize("size", SIZES)
def test_results_are_the_same_wherever_they_are_made(size: int) -> None:
    """Each with a nonce of its own, in their order."""
    items = [ResultText(title="t", snippet="</x" * (size // 3), source=None)] * 3

    assert fence_results(items, retrieved_at=None, nonces=book()) == asyncio.run(
        fence_results_aside(items, retrieved_at=None, nonces=book())
    )


async def longest_gap_beside(text: str) -> float:
    """Seconds for which the loop was held at most while *text* was fenced.

    They are of this process's own work: what else the machine does is not counted.
    """
    fencing = asyncio.ensure_future(fence_aside(text, meta=PAGE, nonces=NonceBook()))
    longest, last = 0.0, time.process_time()
    while not fencing.done():
        await asyncio.sleep(0.001)
        now = time.process_time()
        longest, last = max(longest, now - last), now
    assert_fenced((await fencing).text)
    return longest


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_does_not_hold_the_loop(name: str) -> None:
    """The longest gap stays under 50 ms of work; the best of three, for threads take turns."""
    assert any(asyncio.run(longest_gap_beside(HOSTILE[name])) < 0.05 for _ in range(3))


def test_the_nonces_of_blocks_made_side_by_side_differ() -> None:
    """They are drawn on the loop and burned in the run's own book."""

    async def main() -> tuple[NonceBook, list[FencedBlock]]:
        nonces = NonceBook()
        making = [fence_aside("a" * 9_000, meta=PAGE, nonces=nonces) for _ in range(8)]
        return nonces, await asyncio.gather(*making)

    nonces, blocks = asyncio.run(main())

    assert {block.nonce for block in blocks} == nonces.burned
    assert len(nonces.burned) == 8


def test_a_burned_nonce_is_noticed_in_a_long_text() -> None:
    """The thread searches what was burned before."""
    burned = "ab" * 16
    nonces = NonceBook(burned={burned})
    block = asyncio.run(fence_aside("x" * 9_000 + burned, meta=PAGE, nonces=nonces))

    assert block.replayed == (burned,)
    assert Signal.NONCE_REPLAY in block.signals


def test_a_nonce_in_a_long_text_is_not_issued() -> None:
    """What the thread found in the text counts when the nonce is drawn."""
    block = asyncio.run(fence_aside("x" * 9_000 + "0" * 32, meta=PAGE, nonces=book()))

    assert block.nonce == f"{1:032x}"


@pytest.mark.parametrize("before", [*range(16_380, 16_388), 32_767, 32_768, 40_000])
@pytest.mark.parametrize("skipped", ["", "/", "/ \u200b/", "/" * 20_000])
def test_a_tag_is_found_wherever_it_stands_in_a_long_text(before: int, skipped: str) -> None:
    """Long texts are looked through in pieces; a tag across their border is a tag."""
    text = "\u00e9" * before + f"\uff1c{skipped}untrusted-web-content" + "\u00e9" * 20_000

    assert neutralise(text).body.count("not a fence: /" if skipped else "not a fence: ") == 1
