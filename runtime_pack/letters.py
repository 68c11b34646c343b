"""Letters to a run: what a process that does not drive it says, sealed, for the one that does.

A decision about a request, a grant, a request to cancel. Each is bound to its run and its key by the seal:
it cannot be moved to another run, and whoever can write the store but has no key can leave none.
Pure but for the seal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
import orjson

from runtime_pack.approvals import Decision, DecisionRefused, parse_decision
from runtime_pack.errors import ContractError, StateRefused
from runtime_pack.grants import Grant, parse_grant
from runtime_pack.inner import frozen
from runtime_pack.messages import Json, clean_text
from runtime_pack.seal import Seal

__all__ = (
    "CANCEL_KEY",
    "CancelRequest",
    "Letters",
    "decision_key",
    "grant_key",
    "open_letters",
    "seal_letter",
)

CANCEL_KEY: Final = "cancel"
_DECISION: Final = "decision:"
_GRANT: Final = "grant:"


@frozen(kw_only=True)
class CancelRequest:
    """That a run is to end after its step in hand: the words that stand in its result."""

    words: str = attrs.field(converter=clean_text)

    def to_json(self) -> dict[str, Json]:
        """The stored form."""
        return {"words": self.words}


@frozen(kw_only=True)
class Letters:
    """What was left for a run; decisions by the id of their request."""

    decisions: Mapping[str, Decision] = attrs.field(factory=dict)
    grants: tuple[Grant, ...] = ()
    cancel: CancelRequest | None = None


def grant_key(grant_id: str) -> str:
    """The key of a grant: what it is given once by."""
    return f"{_GRANT}{grant_id}"


def decision_key(request_id: str) -> str:
    """The key of the decision about a request: one letter a request, the first one stands."""
    return f"{_DECISION}{request_id}"


def seal_letter(run_id: str, key: str, body: Mapping[str, Json], seal: Seal) -> bytes:
    """A letter as a store keeps it."""
    content = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    tag = seal.tag(_statement(run_id, key, content))
    return orjson.dumps({"body": content.decode(), "tag": tag})


def open_letters(run_id: str, stored: Mapping[str, bytes], seal: Seal) -> Letters:
    """What the letters of a run say.

    Raises:
        StateRefused: one has not the seal of the host's key for this run and key, or is of no form
            that this version reads. Then none of them counts.
    """
    decisions: dict[str, Decision] = {}
    grants: list[Grant] = []
    cancel: CancelRequest | None = None
    for key, letter in stored.items():
        body = _opened(run_id, key, letter, seal)
        try:
            if key == CANCEL_KEY:
                cancel = CancelRequest(words=str(body["words"]))
                continue
            if key.startswith(_GRANT):
                grants.append(_grant(key, body))
                continue
            decision = parse_decision(body)
        except (DecisionRefused, ContractError, KeyError) as error:
            raise StateRefused(f"the letter {key[:80]!r} cannot be read ({error})") from error
        if key != decision_key(decision.request_id):
            raise StateRefused(f"the letter {key[:80]!r} is about another request")
        decisions[decision.request_id] = decision
    return Letters(decisions=decisions, grants=tuple(grants), cancel=cancel)


def _grant(key: str, body: Mapping[str, Json]) -> Grant:
    grant = parse_grant(body)
    if key != grant_key(grant.grant_id) or not grant.grant_id:
        raise StateRefused(f"the letter {key[:80]!r} is of another grant")
    return grant


def _opened(run_id: str, key: str, letter: bytes, seal: Seal) -> dict[str, Json]:
    try:
        envelope = orjson.loads(letter)
        content, tag = envelope["body"].encode(), str(envelope["tag"])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise StateRefused(f"the letter {key[:80]!r} has no seal") from error
    seal.check(_statement(run_id, key, content), tag)
    body = orjson.loads(content)
    if not isinstance(body, dict):
        raise StateRefused(f"the letter {key[:80]!r} is not an object")
    return body


def _statement(run_id: str, key: str, content: bytes) -> bytes:
    """What is sealed: nothing that a saved run, a log's head or a note of the command is sealed as."""
    where = orjson.dumps([run_id, key])
    return b"letter:" + where + b"\n" + content
