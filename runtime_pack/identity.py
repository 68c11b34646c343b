"""Whose run it is: the agent, on whose behalf, and the trace it is a part of. Pure.

It stands in every event of the run, and in the saved run, so that it is carried over a suspension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Self

import attrs

from runtime_pack.errors import ContractError
from runtime_pack.inner import frozen
from runtime_pack.messages import Json

__all__ = ("RunIdentity",)

_MOST: Final = 200
_IN_SUBJECT: Final = ("agent", "agent_version", "session")
_NAMES: Final = (*_IN_SUBJECT, "on_behalf_of", "traceparent")
# W3C Trace Context, section 3.2.2: version 00, and ids that are not all zeros.
_TRACEPARENT: Final = re.compile(
    r"00-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-[0-9a-f]{2}\Z"
)


@frozen(kw_only=True)
class RunIdentity:
    """Names are the host's words: they stand in the log as they are.

    Attributes:
        agent: the id of the agent's profile.
        agent_version: of the profile or the code.
        session: what several runs belong to.
        on_behalf_of: the person or system the run works for.
        traceparent: the caller's position in its trace, in the form of W3C Trace Context.
        subject: what stands in the subject of each event.
        beside: what stands beside it: `on_behalf_of` and `trace`; None if there is neither.

    Raises:
        ContractError: a name is empty, too long or not one printable line, or the trace is no
            traceparent of version 00.
    """

    agent: str | None = None
    agent_version: str | None = None
    session: str | None = None
    on_behalf_of: str | None = None
    traceparent: str | None = None
    # Made once: they enter every line of the run.
    subject: Mapping[str, Json] = attrs.field(init=False, eq=False, repr=False)
    beside: Mapping[str, Json] | None = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        """Refuse what may not stand in a line."""
        for name in _NAMES:
            value = getattr(self, name)
            good = value is None or (type(value) is str and value.isprintable())
            if not good or value == "" or (value is not None and len(value) > _MOST):
                raise ContractError(
                    f"identity.{name}", f"must be 1 to {_MOST} printable characters"
                )
        if self.traceparent is not None and not _TRACEPARENT.match(self.traceparent):
            raise ContractError(
                "identity.traceparent", "must be 00-TRACE-SPAN-FLAGS in lower-case hex"
            )
        object.__setattr__(self, "subject", self._told(_IN_SUBJECT))
        object.__setattr__(self, "beside", self._beside() or None)

    def _told(self, names: tuple[str, ...]) -> dict[str, Json]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _beside(self) -> dict[str, Json]:
        """What stands beside the subject: `on_behalf_of`, and `trace` with the caller's span."""
        body = self._told(("on_behalf_of",))
        match = None if self.traceparent is None else _TRACEPARENT.match(self.traceparent)
        if match is not None:
            body["trace"] = {"trace_id": match["trace"], "span_id": match["span"]}
        return body

    def to_json(self) -> dict[str, Json]:
        """For saved runs."""
        return self._told(_NAMES)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read the stored form.

        Raises:
            ContractError, TypeError: not of that form.
        """
        return cls(**value)
