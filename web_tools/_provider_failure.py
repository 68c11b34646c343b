"""What becomes of whatever a search provider raises: one error, without query and keys. Pure.

The words of a provider reach the operator alone, and not even the operator when they repeat what
was searched for or a credential, in any spelling.
"""

import json
from base64 import b64encode
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

import attrs

from egress.decision import DenyReason
from egress.errors import DeadlineExceeded, EgressDenied, EgressError, Stopped
from web_tools.errors import ProviderFault, SearchProviderError, WebErrorCode, WebToolError

__all__ = ("Failure", "bad_answer", "failure_of", "holds_any", "words_of")

_MAX_CHAIN: Final = 32
# Characters of an error's texts times the spellings looked for in them: some milliseconds.
_MAX_LOOKED_AT: Final = 10_000_000
_SHORTEST_WORD: Final = 4


@attrs.frozen(kw_only=True)
class Failure:
    """What is raised, and what it is raised from: None when that repeats what it must not."""

    error: WebToolError
    cause: BaseException | None


# What the model reads; the words of a provider never reach it.
_MESSAGES: Final = {
    ProviderFault.DEADLINE: "The search provider did not answer in time.",
    ProviderFault.RAISED: "The search provider failed.",
    ProviderFault.BAD_ANSWER: "The search provider gave an answer that cannot be used.",
    ProviderFault.QUERY_REFUSED: "The search provider does not take this query; use fewer words.",
    ProviderFault.UNAUTHORIZED: "The search provider refused the host's credentials.",
    ProviderFault.RATE_LIMITED: "The search provider asks to be used less often.",
    ProviderFault.QUOTA: "The operator's quota at the search provider is used up.",
    ProviderFault.UNAVAILABLE: "The search provider is not available.",
    ProviderFault.NOT_REACHABLE: "The search provider may not be reached from here.",
    ProviderFault.STOPPED: "The search was stopped.",
}
_NOT_PUBLIC: Final = (
    "The search provider has no public address; the operator names its host in allowedHosts."
)


def failure_of(error: BaseException, secrets: Collection[str], *, expired: bool) -> Failure:
    """What *error* is told as.

    Args:
        error: Whatever came out of the provider.
        secrets: Texts that must not be repeated: the query, its words, credentials.
        expired: Whether our own deadline has passed.
    """
    fault, retryable = _judge(error, expired=expired)
    silent = _repeats(error, secrets)
    name = type(error).__name__
    told = isinstance(error, SearchProviderError | EgressError) and not silent
    tool_error = WebToolError(
        WebErrorCode.SEARCH_PROVIDER_ERROR,
        _NOT_PUBLIC if _is_not_public(error) else _MESSAGES[fault],
        retryable=retryable,
        detail=fault,
        retry_after=getattr(error, "retry_after", None) if told else None,
        cause=f"{name}: {error}" if told else name,
    )
    return Failure(error=tool_error, cause=None if silent else error)


def bad_answer(cause: str) -> WebToolError:
    """The error for an answer that holds nothing of the port's form; *cause* is ours."""
    return WebToolError(
        WebErrorCode.SEARCH_PROVIDER_ERROR,
        _MESSAGES[ProviderFault.BAD_ANSWER],
        detail=ProviderFault.BAD_ANSWER,
        cause=cause,
    )


def words_of(query: str) -> frozenset[str]:
    """The query, and those of its words that are long enough to tell something."""
    plain = query.strip()
    return frozenset({plain, *(word for word in plain.split() if len(word) >= _SHORTEST_WORD)})


def holds_any(text: str, secrets: Collection[str]) -> bool:
    """Whether one of *secrets*, in any spelling, is in *text*."""
    sought = _sought(secrets)
    return any(spelling in seen for seen in _decoded(text) for spelling in sought)


def _judge(error: BaseException, *, expired: bool) -> tuple[ProviderFault, bool]:
    """What the failure is called, and whether the same search may succeed later."""
    if expired and isinstance(error, TimeoutError):
        return ProviderFault.DEADLINE, True
    if isinstance(error, SearchProviderError):
        return error.fault, error.retryable
    if isinstance(error, DeadlineExceeded):
        return ProviderFault.DEADLINE, True
    if isinstance(error, EgressDenied):
        return ProviderFault.NOT_REACHABLE, False
    if isinstance(error, Stopped):
        return ProviderFault.STOPPED, False
    if isinstance(error, EgressError):
        return ProviderFault.RAISED, bool(getattr(error, "retryable", False))
    return ProviderFault.RAISED, isinstance(error, TimeoutError | ConnectionError)


def _is_not_public(error: BaseException) -> bool:
    if not isinstance(error, EgressDenied):
        return False
    return error.violation.reason is DenyReason.ADDRESS_NOT_GLOBAL


def _repeats(error: BaseException, secrets: Collection[str]) -> bool:
    """Whether one of *secrets* is in the texts of *error*.

    Too careful on purpose: a common word costs the operator one traceback, no more. So does a
    text that is too long to be searched.
    """
    allowed = _MAX_LOOKED_AT // max(1, len(secrets) * len(_spellings("")))
    looked_at = 0
    texts: list[str] = []
    for text in _texts(error, longest=allowed):
        looked_at += len(text)
        texts.append(text)
        if looked_at > allowed:
            return True
    sought = _sought(secrets)
    return any(spelling in seen for text in texts for seen in _decoded(text) for spelling in sought)


def _sought(secrets: Collection[str]) -> frozenset[str]:
    spellings = (spelling.casefold() for each in secrets for spelling in _spellings(each))
    return frozenset(spellings) - {""}


def _spellings(word: str) -> tuple[str, ...]:
    """As it is, and as URLs, JSON, Python and credentials of HTTP write it."""
    encoded = (quote(word), quote(word, safe=""), quote_plus(word))
    based = b64encode(word.encode("utf-8", "surrogatepass")).decode().rstrip("=")
    return (word, *encoded, json.dumps(word)[1:-1], repr(word)[1:-1], based)


def _decoded(text: str) -> frozenset[str]:
    """The text, and what it is when its percent-encoding is taken away, once and twice."""
    if "%" not in text and "+" not in text:
        return frozenset({text.casefold()})
    once = unquote(text)
    return frozenset(each.casefold() for each in (text, once, unquote(once), unquote_plus(text)))


def _texts(error: BaseException, *, longest: int) -> Iterator[str]:
    """The texts of a chain of errors, their notes and their members.

    One that is longer than *longest* comes as some text that is longer.
    """
    waiting: list[BaseException | None] = [error]
    for _ in range(_MAX_CHAIN):
        if not waiting:
            return
        current = waiting.pop()
        if current is None:
            continue
        yield _text_of(current, longest=longest)
        waiting += [current.__cause__, current.__context__]
        waiting += current.exceptions if isinstance(current, BaseExceptionGroup) else ()


def _text_of(error: BaseException, *, longest: int) -> str:
    try:
        told = str(error)
        if len(told) > longest:
            return told
        told += f" {error!r} {error.args!r} {getattr(error, '__notes__', ())!r}"
    # The text of a foreign error is foreign code.
    except Exception:  # noqa: BLE001
        return ""
    return told
