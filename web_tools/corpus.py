"""Documents to search and to serve: the embedded default, and a folder of files.

The embedded default is the text of the standard library's own ``pydoc_data.topics``, which
ships with every CPython. Reading a folder never fails because of one file: what is left out
is listed with its reason, and the order does not depend on the file system.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from enum import StrEnum
from html import unescape
from pathlib import Path
from typing import Final
from urllib.parse import quote, quote_from_bytes

import attrs

from web_tools._corpus_page import clean_text, heading_at_top, render_html
from web_tools._extract_media import binary_content
from web_tools._extract_strip import strip_markup
from web_tools.charset import decode
from web_tools.contract.instants import published_at
from web_tools.errors import CorpusError

__all__ = (
    "Document",
    "FolderCorpus",
    "FolderLimits",
    "SkipReason",
    "Skipped",
    "load_folder",
    "load_pydoc_topics",
    "render_page",
    "unique_paths",
)

_HTML: Final = frozenset({".html", ".htm"})
_MARKED: Final = frozenset({".md", ".markdown"})
_PLAIN: Final = frozenset({".txt"})
# Segments of RFC 3986; neither "//", which names a host, nor dots, which clients fold.
_PATH = re.compile(
    r"/|(?:/(?!\.{1,2}(?:/|\Z))(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})+)+/?"
)
_MAX_TITLE_CHARS: Final = 200


@attrs.frozen(kw_only=True)
class Document:
    """One page of a corpus.

    Attributes:
        path: URL path from the root of the site, percent-encoded ASCII, without ``?`` and ``#``.
        title: What the page is called.
        text: Plain text; what is searched, and what is shown unless `html` is given.
        html: A page of the author's own, served as it is instead of the rendered text.
        published: When it was published, by the table of the search contract; None when unknown.

    Raises:
        CorpusError: The path or the date is not of its form.
    """

    path: str
    title: str
    text: str
    html: str | None = None
    published: str | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse a path that a client would change, and text that cannot be written."""
        if _PATH.fullmatch(self.path) is None:
            raise CorpusError(f"not a URL path: {self.path!r}")
        if self.published is not None and published_at(self.published) is None:
            raise CorpusError(f"not a date of the contract: {self.published!r:.80}")
        for field in ("title", "text"):
            object.__setattr__(self, field, clean_text(getattr(self, field)))


class SkipReason(StrEnum):
    """Why a file of a folder is not in the corpus."""

    LEAVES_FOLDER = "link_leaves_folder"
    LINKED_FOLDER = "linked_folder"
    NOT_A_FILE = "not_a_regular_file"
    UNREADABLE = "unreadable"
    TOO_LARGE = "too_large"
    OVER_LIMIT = "over_limit"
    BINARY = "binary"
    EMPTY = "empty"


@attrs.frozen(kw_only=True)
class Skipped:
    """A file that was left out; `name` is its path inside the folder, printable."""

    name: str
    reason: SkipReason


@attrs.frozen(kw_only=True)
class FolderLimits:
    """Bounds of one folder; files beyond them are listed as skipped."""

    max_file_bytes: int = 2 * 1024 * 1024
    max_total_bytes: int = 256 * 1024 * 1024
    max_files: int = 10_000


@attrs.frozen(kw_only=True)
class FolderCorpus:
    """What a folder gave, both in the order of the names."""

    documents: tuple[Document, ...]
    skipped: tuple[Skipped, ...]


def load_pydoc_topics() -> tuple[Document, ...]:
    """The topics that ``help()`` shows, in the order of their names."""
    # Imported here: half a megabyte that only this corpus needs.
    from pydoc_data.topics import topics

    return tuple(_topic(name, topics[name]) for name in sorted(topics))


def load_folder(folder: Path, *, limits: FolderLimits | None = None) -> FolderCorpus:
    """The html, md and txt files below *folder*.

    Names that begin with a dot are passed over. Links to files inside the folder are
    followed; links that leave it and linked folders are not.

    Raises:
        CorpusError: *folder* is missing or not a folder.
    """
    try:
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise CorpusError(f"cannot open the folder {folder}") from error
    if not root.is_dir():
        raise CorpusError(f"not a folder: {folder}")
    return _load(root, limits or FolderLimits())


def render_page(document: Document) -> str:
    """The page that is served: the author's own, or the text with everything escaped."""
    return render_html(document.title, document.text) if document.html is None else document.html


def _topic(name: str, text: str) -> Document:
    title, rest = heading_at_top(text) or (name, text)
    return Document(path=f"/topics/{quote(name, safe='')}", title=title, text=rest)


class _Left(Exception):
    """A file is left out; carries the reason."""

    def __init__(self, reason: SkipReason) -> None:
        self.reason = reason
        super().__init__(reason)


def _load(root: Path, limits: FolderLimits) -> FolderCorpus:
    documents: list[Document] = []
    skipped: list[Skipped] = []
    room = limits.max_total_bytes
    for relative in _names(root):
        try:
            most = limits.max_file_bytes if len(documents) < limits.max_files else None
            body = _read(root, relative, most=most, room=room)
            documents.append(_document(relative, body))
            room -= len(body)
        except _Left as left:
            skipped.append(Skipped(name=_printable(relative), reason=left.reason))
    return FolderCorpus(documents=tuple(documents), skipped=tuple(skipped))


def _names(root: Path) -> Iterator[str]:
    """Paths below *root* that may be documents, and linked folders; in a fixed order."""
    found: list[str] = []
    for where, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        at = Path(where)
        linked = [name for name in folders if (at / name).is_symlink()]
        known = [name for name in files if not name.startswith(".") and _suffix(name) in _KNOWN]
        found += [str((at / name).relative_to(root)) for name in (*known, *linked)]
    # Bytes, so that names which are no valid text have an order as well.
    return iter(sorted(found, key=os.fsencode))


_KNOWN: Final = _HTML | _MARKED | _PLAIN


def _suffix(name: str) -> str:
    return Path(name).suffix.lower()


def _read(root: Path, relative: str, *, most: int | None, room: int) -> bytes:
    """The bytes of one regular file inside *root*, at most *most* of them; None: none at all."""
    if most is None:
        raise _Left(SkipReason.OVER_LIMIT)
    try:
        target = (root / relative).resolve(strict=True)
    except (OSError, RuntimeError):
        raise _Left(SkipReason.UNREADABLE) from None
    if target.is_dir():
        raise _Left(SkipReason.LINKED_FOLDER)
    if not target.is_relative_to(root):
        raise _Left(SkipReason.LEAVES_FOLDER)
    try:
        # NOFOLLOW: resolved above, so a link here was swapped in; NONBLOCK: a pipe must not hang.
        handle = os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        raise _Left(SkipReason.UNREADABLE) from None
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _Left(SkipReason.NOT_A_FILE)
        return _bounded(file.read(most + 1), most=most, room=room)


def _bounded(body: bytes, *, most: int, room: int) -> bytes:
    if len(body) > most:
        raise _Left(SkipReason.TOO_LARGE)
    if len(body) > room:
        raise _Left(SkipReason.OVER_LIMIT)
    return body


def _document(relative: str, body: bytes) -> Document:
    if binary_content(body, declared_text=True) is not None:
        raise _Left(SkipReason.BINARY)
    is_html = _suffix(relative) in _HTML
    text = clean_text(decode(body, header_charset=None, is_html=is_html).text)
    if is_html:
        return _html_document(relative, text)
    if not text.strip():
        raise _Left(SkipReason.EMPTY)
    title, rest = heading_at_top(text) or (_stem(relative), text)
    return Document(path=_url_path(relative), title=title[:_MAX_TITLE_CHARS], text=rest)


def _html_document(relative: str, markup: str) -> Document:
    text = strip_markup(markup)
    if not text.strip():
        raise _Left(SkipReason.EMPTY)
    title = _html_title(markup) or _stem(relative)
    return Document(path=_url_path(relative), title=title, text=text, html=markup)


_TITLE_OPEN = re.compile(r"<title[^<>]{0,200}>", re.IGNORECASE)


def _html_title(markup: str) -> str:
    """The content of the first title element on one line, or empty text."""
    opened = _TITLE_OPEN.search(markup)
    if opened is None:
        return ""
    inside = markup[opened.end() : opened.end() + 2 * _MAX_TITLE_CHARS].partition("<")[0]
    return " ".join(unescape(inside).split())[:_MAX_TITLE_CHARS]


def _url_path(relative: str) -> str:
    return "/" + quote_from_bytes(os.fsencode(relative))


def _stem(relative: str) -> str:
    return _printable(Path(relative).stem) or "untitled"


def _printable(name: str) -> str:
    decoded = os.fsencode(name).decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "\ufffd" for c in decoded)


def unique_paths(documents: Iterable[Document]) -> dict[str, Document]:
    """Documents by path.

    Raises:
        CorpusError: Two documents have one path.
    """
    pages: dict[str, Document] = {}
    for document in documents:
        if document.path in pages:
            raise CorpusError(f"two documents have the path {document.path}")
        pages[document.path] = document
    return pages
