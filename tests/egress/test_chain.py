"""The pure redirect machine (R12)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egress import UrlRejected, parse_target
from egress.chain import REDIRECT_STATUSES, Chain, next_hop
from egress.errors import BadRedirect, TooManyRedirects
from egress.testing import redirect_graphs

_START = Chain(target=parse_target("https://example.org/a"))


def _next(chain: Chain, *locations: str, status: int = 302, limit: int = 5) -> Chain | None:
    return next_hop(chain, status=status, locations=locations, max_redirects=limit)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_with_location_is_followed(status: int) -> None:
    """The five statuses, and the answered hop joins the chain."""
    following = _next(_START, "/b", status=status)

    assert following is not None
    assert following.target.url == "https://example.org/b"
    assert [(_START.target, status)] == [(hop.target, hop.status) for hop in following.hops]


@given(st.integers(100, 599).filter(lambda status: status not in REDIRECT_STATUSES))
def test_every_other_status_is_final(status: int) -> None:
    """200, 300, 304, 305, 404 and the rest follow nothing, whatever their `Location`."""
    assert _next(_START, "/b", status=status) is None


def test_a_redirect_without_location_is_final() -> None:
    """`Location` only: no `URI`, no `Refresh`, no body."""
    assert _next(_START) is None


def test_differing_locations_are_refused() -> None:
    """Two readers would go to two places; the same value twice is one."""
    with pytest.raises(BadRedirect):
        _next(_START, "/b", "/c")
    assert _next(_START, "/b", "/b") is not None


def test_the_cap_counts_redirects() -> None:
    """Five are followed, the sixth is not; with zero none is."""
    chain = _START
    for number in range(5):
        following = _next(chain, f"/{number}")
        assert following is not None
        chain = following

    with pytest.raises(TooManyRedirects) as caught:
        _next(chain, "/6")
    assert caught.value.hop == 5
    with pytest.raises(TooManyRedirects):
        _next(_START, "/b", limit=0)


def test_a_bad_reference_tells_its_hop() -> None:
    """The rejection is about the target of redirect n."""
    with pytest.raises(UrlRejected) as caught:
        _next(_START, "javascript:alert(1)")

    assert caught.value.hop == 1


def test_a_downgrade_is_remembered() -> None:
    """Https to http marks the chain, and going back does not unmark it."""
    down = _next(_START, "http://example.org/")
    assert down is not None
    assert down.downgraded
    up = _next(down, "https://example.org/")
    assert up is not None
    assert up.downgraded
    same = _next(_START, "/b")
    assert same is not None
    assert not same.downgraded


@given(redirect_graphs(), st.integers(0, 6))
def test_a_chain_always_ends(graph: list[str], limit: int) -> None:
    """Whatever the locations, no more than `limit` redirects are followed."""
    chain, followed = _START, 0
    for location in graph:
        try:
            following = _next(chain, location, limit=limit)
        except (UrlRejected, TooManyRedirects):
            break
        assert following is not None
        chain, followed = following, followed + 1

    assert followed <= limit
    assert len(chain.hops) == followed
    assert chain.before == tuple(hop.target for hop in chain.hops)
