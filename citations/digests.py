"""Digests that name a document and one state of its text.

Both are ``sha256:`` and 64 lower-case hexadecimal digits. Pure; total over ``str``.
"""

import hashlib
import re

__all__ = ("document_id", "is_digest", "revision_id")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SURROGATE = re.compile("[\ud800-\udfff]")


def document_id(url: str) -> str:
    """Digest of a canonical URL.

    The caller makes the URL canonical; this function compares nothing and repairs nothing,
    so two spellings of one address are two documents here.
    """
    return _digest(url)


def revision_id(text: str) -> str:
    """Digest of a text as it was extracted, before any cut.

    A lone surrogate counts as U+FFFD, as it does in the fence, so the revision in a
    fenced block and the one in its citation are the same digest.
    """
    return _digest(text)


def is_digest(value: str) -> bool:
    """Whether *value* has exactly the form that the functions above produce."""
    return _DIGEST.fullmatch(value) is not None


def _digest(text: str) -> str:
    whole = _SURROGATE.sub("\ufffd", text)
    return "sha256:" + hashlib.sha256(whole.encode()).hexdigest()
