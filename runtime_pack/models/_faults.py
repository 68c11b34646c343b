"""Why a provider gave no whole response, from status, headers and the words of its error. Pure.

Nothing of a provider's prose gets into an error: only its code word, and only when it is one. Prose
can quote the key, and errors end up in logs and saved runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import attrs

from runtime_pack.errors import ModelFault, ModelRequestError
from runtime_pack.messages import Usage

__all__ = ("Asked", "provider_fault", "refused_request", "retry_after")

_STATUSES: Final = {
    401: ModelFault.AUTH,
    402: ModelFault.AUTH,
    403: ModelFault.AUTH,
    408: ModelFault.TIMEOUT,
    409: ModelFault.CONFLICT,
    413: ModelFault.CONTEXT_OVERFLOW,
    429: ModelFault.RATE_LIMITED,
    504: ModelFault.TIMEOUT,
    529: ModelFault.OVERLOADED,
}
# Types and codes of errors, of OpenAI, Anthropic, vLLM and llama.cpp.
_WORDS: Final = {
    "authentication_error": ModelFault.AUTH,
    "billing_error": ModelFault.AUTH,
    "billing_hard_limit_reached": ModelFault.AUTH,
    # It comes as a 429, and no waiting helps.
    "insufficient_quota": ModelFault.AUTH,
    "invalid_api_key": ModelFault.AUTH,
    "permission_error": ModelFault.AUTH,
    "context_length_exceeded": ModelFault.CONTEXT_OVERFLOW,
    "exceed_context_size_error": ModelFault.CONTEXT_OVERFLOW,
    "request_too_large": ModelFault.CONTEXT_OVERFLOW,
    "bio_policy": ModelFault.REFUSED,
    "content_filter": ModelFault.REFUSED,
    "content_policy_violation": ModelFault.REFUSED,
    "invalid_prompt": ModelFault.REFUSED,
    "misalignment_policy_violation": ModelFault.REFUSED,
    "overloaded_error": ModelFault.OVERLOADED,
    "rate_limit_error": ModelFault.RATE_LIMITED,
    "rate_limit_exceeded": ModelFault.RATE_LIMITED,
    "timeout_error": ModelFault.TIMEOUT,
    "api_error": ModelFault.SERVER,
    "internal_server_error": ModelFault.SERVER,
    "server_error": ModelFault.SERVER,
    "invalid_request_error": ModelFault.INVALID_REQUEST,
    "not_found_error": ModelFault.INVALID_REQUEST,
}
# The words that say more than the status they come with.
_TELLING: Final = frozenset(
    {ModelFault.AUTH, ModelFault.CONTEXT_OVERFLOW, ModelFault.REFUSED, ModelFault.OVERLOADED}
)
# Not every provider has a code for it. Prose is only looked at, never told on.
_OVERFLOW: Final = re.compile(
    r"prompt is too long|maximum context length|context (?:length|window|size)"
    r"|exceeds? the (?:available )?context|too many (?:input )?tokens|max_model_len",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.]{0,63}\Z")
_CLIENT_ERRORS: Final = range(400, 500)
# A part of a key that is shorter than this tells nothing.
_TELLTALE_CHARACTERS: Final = 6


@attrs.frozen(kw_only=True)
class Asked:
    """Who was asked, and where: what a person may have to change.

    Attributes:
        variable: where `open_model` takes the key from.
        place: host and port of the endpoint.
        compatible: a server of somebody's own, whose base URL was written by hand.
    """

    model: str
    variable: str
    place: str
    compatible: bool

    def advice(self, fault: ModelFault, status: int | None = None) -> str:
        """What to change about a fault of this kind; nothing where nobody can."""
        if status == 404:
            base = " and the URL one that ends in /v1" if self.compatible else ""
            return f"; is {self.model[:80]!a} a model of {self.place}{base}?"
        match fault:
            case ModelFault.AUTH:
                return f"; is the key the right one (variable {self.variable}), and paid for?"
            case ModelFault.TRANSPORT:
                return f"; does a server listen on {self.place}?"
            case ModelFault.MALFORMED if self.compatible:
                return "; is the URL the one that ends in /v1?"
            case _:
                return ""


def refused_request(
    provider: str,
    *,
    asked: Asked | None = None,
    status: int,
    headers: Mapping[str, str],
    body: object,
    now: datetime,
    secret: str | None,
    surfaced: bool = False,
    usage: Usage | None = None,
) -> ModelRequestError:
    """The error that a provider answered with, by status or in the midst of a stream."""
    words = _error_words(body)
    fault = provider_fault(status, words, _prose(body))
    told = next((word for word in words if not _tells(word, secret)), "")
    named = f" ({told})" if told else ""
    said = f"answered {status}{named}" if status >= 300 else f"broke off its response{named}"
    if 300 <= status < 400:
        said = f"answered {status}: it redirects, and redirects are not followed"
    return ModelRequestError(
        fault=fault,
        message=f"{provider} {said}" + ("" if asked is None else asked.advice(fault, status)),
        status=status,
        retry_after_seconds=retry_after(headers, now),
        surfaced=surfaced,
        usage=usage,
    )


def provider_fault(status: int, words: tuple[str, ...], prose: str) -> ModelFault:
    """The fault, by the words where they say more than the status, by the status otherwise."""
    faults = [_WORDS[word] for word in words if word in _WORDS]
    telling = next((fault for fault in faults if fault in _TELLING), None)
    if telling is not None:
        return telling
    by_status = _by_status(status, faults)
    if by_status is ModelFault.INVALID_REQUEST and _OVERFLOW.search(prose):
        return ModelFault.CONTEXT_OVERFLOW
    return by_status


def _by_status(status: int, faults: list[ModelFault]) -> ModelFault:
    if status in _STATUSES:
        return _STATUSES[status]
    if status >= 500:
        return ModelFault.SERVER
    if status in _CLIENT_ERRORS or 300 <= status < 400:
        return ModelFault.INVALID_REQUEST
    # In a stream the status is 200, and only the words tell.
    return faults[0] if faults else ModelFault.SERVER


def _error_of(body: object) -> object:
    """The error inside a body; the SDKs hand over either of the two."""
    if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping | str):
        return body["error"]
    return body


def _error_words(body: object) -> tuple[str, ...]:
    error = _error_of(body)
    if not isinstance(error, Mapping):
        return ()
    found = (error.get("code"), error.get("type"))
    return tuple(word for word in found if isinstance(word, str) and _WORD.match(word))


def _prose(body: object) -> str:
    error = _error_of(body)
    told = error.get("message") if isinstance(error, Mapping) else error
    return told[:4096] if isinstance(told, str) else ""


def _tells(word: str, secret: str | None) -> bool:
    """Whether a word holds a part of the key."""
    if not secret:
        return False
    size = min(_TELLTALE_CHARACTERS, len(secret))
    pieces = (secret[at : at + size] for at in range(len(secret) - size + 1))
    return any(piece in word for piece in pieces)


def retry_after(headers: Mapping[str, Any], now: datetime) -> float | None:
    """The seconds to wait that the provider asks for; None when it asks for nothing readable.

    Milliseconds come first, as both SDKs read them. A time that is past is 0.

    Source: RFC 9110 section 10.2.3; `retry-after-ms` is OpenAI's.
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    given = headers.get("retry-after")
    seconds = _seconds(given)
    return seconds if seconds is not None else _until(given, now)


def _seconds(given: object) -> float | None:
    try:
        number = float(str(given))
    except ValueError:
        return None
    return max(number, 0.0) if math.isfinite(number) else None


def _until(given: object, now: datetime) -> float | None:
    try:
        when = parsedate_to_datetime(str(given))
    # A date of the header's form with numbers that no date has.
    except (ValueError, IndexError, OverflowError, TypeError):
        return None
    aware = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return max((aware - now).total_seconds(), 0.0)
