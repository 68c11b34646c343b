"""Money and tokens of a run: reserved before a turn, settled by what is reported, never lost."""

from __future__ import annotations

import pytest

from runtime_pack.messages import Turn, TurnStatus, Usage, turn_fault


@pytest.mark.parametrize(
    ("cached", "fine"), [(0, True), (7, True), (8, False), (-1, False), (True, False), (1.0, False)]
)
def test_cached_tokens_are_a_part_of_the_input(cached: int, fine: bool) -> None:
    """More cached tokens than input would make a turn cheaper than nothing."""
    usage = Usage(input_tokens=7, output_tokens=1, cached_input_tokens=cached)

    assert (turn_fault(Turn(status=TurnStatus.REPLY, usage=usage)) is None) is fine
