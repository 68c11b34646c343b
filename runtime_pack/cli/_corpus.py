"""The corpus of a command: loaded, indexed, and served on a loopback port."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import attrs
import click

from web_tools.corpus import Document, load_folder, load_pydoc_topics
from web_tools.corpus_server import serve_corpus
from web_tools.errors import WebToolsError
from web_tools.providers.local import LocalSearchProvider

__all__ = ("Corpus", "load_corpus", "serve")


@attrs.frozen(kw_only=True)
class Corpus:
    """Documents, and what was left out of them."""

    name: str
    documents: tuple[Document, ...]
    skipped: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Served:
    """A corpus that can be searched and read."""

    base_url: str
    entry: str
    provider: LocalSearchProvider


def load_corpus(folder: Path | None) -> Corpus:
    """The folder's pages, or the embedded default.

    Raises:
        click.ClickException: the folder is not one, or holds nothing to read.
    """
    if folder is None:
        return Corpus(name="pydoc_data.topics", documents=load_pydoc_topics())
    try:
        loaded = load_folder(folder)
    except WebToolsError as error:
        raise click.ClickException(str(error)) from error
    if not loaded.documents:
        raise click.ClickException(f"{folder} holds no html, md or txt file that can be read")
    skipped = tuple(f"{item.name}: {item.reason}" for item in loaded.skipped)
    return Corpus(name=str(folder), documents=loaded.documents, skipped=skipped)


@asynccontextmanager
async def serve(
    corpus: Corpus, *, port: int = 0, extra: Sequence[Document] = ()
) -> AsyncIterator[Served]:
    """Serve and index a corpus; *extra* pages are served and cannot be found.

    Raises:
        click.ClickException: the port is taken.
    """
    async with AsyncExitStack() as stack:
        pages = serve_corpus((*corpus.documents, *extra), port=port)
        try:
            base_url = await stack.enter_async_context(pages)
        except OSError as error:
            raise _not_served(port, error) from error
        with LocalSearchProvider.from_documents(corpus.documents, base_url=base_url) as provider:
            yield Served(base_url=base_url, entry=base_url.partition("://")[2], provider=provider)


def _not_served(port: int, error: OSError) -> click.ClickException:
    if port and error.errno == errno.EADDRINUSE:
        return click.ClickException(
            f"port {port}, on which this run's pages were served, is taken (another program "
            "listens there); free it and resume again"
        )
    return click.ClickException(
        f"the pages cannot be served on port {port}: {error.strerror or error}"
    )
