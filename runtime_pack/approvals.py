"""Requests to a person and their decisions: values and the checks on them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import attrs
import orjson

from runtime_pack.labels import Label, parse_label
from runtime_pack.messages import Json, clean_text, frozen_arguments

__all__ = (
    "ApprovalRequest",
    "Decision",
    "DecisionRefused",
    "Verdict",
    "digest_arguments",
    "parse_decision",
)


class Verdict(StrEnum):
    """What a person said."""

    APPROVE = "approve"
    DENY = "deny"


def digest_arguments(arguments: Mapping[str, Json]) -> str:
    """`sha256:<hex>` over the arguments as JSON with sorted keys."""
    body = orjson.dumps(arguments, option=orjson.OPT_SORT_KEYS)
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@attrs.frozen(kw_only=True)
class ApprovalRequest:
    """What a person is asked: this tool as it is defined now, with exactly these arguments.

    `request_id` is random and used once.
    """

    request_id: str
    run: str
    task: str
    step: str
    tool: str
    tool_sha256: str
    arguments: Mapping[str, Json]
    arguments_sha256: str
    policy_sha256: str
    label: Label
    reasons: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None

    def expired(self, now: datetime) -> bool:
        """Whether it is too late to approve. None never expires: written out by the contract."""
        return self.expires_at is not None and now >= self.expires_at

    def to_json(self) -> dict[str, Json]:
        """The stored form; read back by `from_json`."""
        return {
            "request_id": self.request_id,
            "run": self.run,
            "task": self.task,
            "step": self.step,
            "tool": self.tool,
            "tool_sha256": self.tool_sha256,
            "arguments": dict(self.arguments),
            "arguments_sha256": self.arguments_sha256,
            "policy_sha256": self.policy_sha256,
            "label": self.label.to_json(),
            "reasons": list(self.reasons),
            "created_at": self.created_at.isoformat(),
            "expires_at": None if self.expires_at is None else self.expires_at.isoformat(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> ApprovalRequest:
        """Read the stored form.

        Raises:
            ValueError: not of that form, or the digest is not that of the arguments.
        """
        fields = dict(value)
        arguments, expires = fields.pop("arguments"), fields.pop("expires_at")
        reasons = fields.pop("reasons")
        label, created = parse_label(fields.pop("label")), fields.pop("created_at")
        if not isinstance(arguments, dict) or not isinstance(reasons, list):
            raise ValueError("arguments is an object and reasons is a list")
        if digest_arguments(arguments) != fields["arguments_sha256"]:
            raise ValueError("the digest is not that of the arguments")
        words = {key: str(item) for key, item in fields.items()}
        return cls(
            arguments=frozen_arguments(arguments),
            expires_at=None if expires is None else datetime.fromisoformat(str(expires)),
            reasons=tuple(str(reason) for reason in reasons),
            label=label,
            created_at=datetime.fromisoformat(str(created)),
            **words,
        )


class DecisionRefused(ValueError):
    """The decision is not of its form; the message names the fault."""


def _words(value: object) -> str:
    if not isinstance(value, str):
        raise DecisionRefused(f"{type(value).__name__} is not a string")
    return clean_text(value)


def _verdict(value: object) -> Verdict:
    if not isinstance(value, str) or value not in tuple(Verdict):
        raise DecisionRefused("verdict must be approve or deny")
    return Verdict(value)


@attrs.frozen(kw_only=True)
class Decision:
    """A person's answer to one request. Nothing but these fields is ever read from it.

    Raises:
        DecisionRefused: a field is not a string, or the verdict is neither approve nor deny.
    """

    request_id: str = attrs.field(converter=_words)
    verdict: Verdict = attrs.field(converter=_verdict)
    decided_by: str = attrs.field(converter=_words)
    reason: str = attrs.field(default="", converter=_words)


_REQUIRED: Final = frozenset({"request_id", "verdict", "decided_by"})
_ALLOWED: Final = _REQUIRED | {"reason"}


def parse_decision(value: object) -> Decision:
    """Read a decision that came from outside, as a JSON object.

    Raises:
        DecisionRefused: not an object, a field is missing, unknown or of the wrong kind: a
            decision that names another tool or other arguments is refused, not trimmed.
    """
    if not isinstance(value, Mapping):
        raise DecisionRefused("a decision is an object")
    unknown, missing = sorted(set(value) - _ALLOWED, key=str), sorted(_REQUIRED - set(value))
    if unknown or missing:
        raise DecisionRefused(f"unknown fields {unknown}, missing fields {missing}")
    return Decision(**value)
