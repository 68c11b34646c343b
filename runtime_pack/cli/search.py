"""`runtime-pack search QUERY`: one search through the governed tool, for people and machines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import click

from runtime_pack.catalog import ToolOutput
from runtime_pack.cli._corpus import load_corpus, serve
from runtime_pack.cli._interrupts import Interrupts, run_interruptibly
from runtime_pack.cli._provider import load_provider
from runtime_pack.cli._text import exit_codes, note, say, say_json
from runtime_pack.cli._web_tools import failure_of, opened_tools
from runtime_pack.messages import Json, clean_text
from runtime_pack.web_catalog import SEARCH_TOOL
from web_tools.arguments import Recency, WebToolCaps
from web_tools.search import WebSearchProvider

__all__ = ("command",)

_MOST: Final = 100
_EXIT: Final = exit_codes(
    {
        0: "the search was made; that nothing was found is said",
        1: "it failed",
        2: "wrong usage",
        130: "interrupted",
    }
)


@click.command("search", short_help="Search with a provider or a corpus.", epilog=_EXIT)
@click.argument("query")
@click.option(
    "--corpus",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Search the html, md and txt files of a folder.  [default: the embedded corpus]",
)
@click.option(
    "--provider",
    metavar="MODULE:FACTORY",
    help="Search with a provider of yours: a callable without arguments that makes a WebSearchProvider.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=_MOST),
    default=10,
    show_default=True,
    help="The most results.",
)
@click.option(
    "--recency", type=click.Choice([str(word) for word in Recency]), help="A hint to the provider."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each result.")
def command(
    query: str,
    *,
    corpus: Path | None,
    provider: str | None,
    limit: int,
    recency: str | None,
    as_json: bool,
) -> int:
    """Search for QUERY, as literal text, and list what was found.

    Titles and snippets are other people's words. What is found is not read: `runtime-pack read` does
    that, under a list of hosts. The addresses of a corpus are served while the command runs and no
    longer.
    """
    if corpus is not None and provider is not None:
        raise click.UsageError("--corpus and --provider exclude each other")
    arguments: dict[str, Json] = {"query": clean_text(query), "limit": limit}
    if recency is not None:
        arguments["recency"] = recency

    async def search(interrupts: Interrupts) -> int:
        del interrupts
        async with _source(corpus, provider) as found_by:
            caps = WebToolCaps(max_results=limit)
            async with opened_tools(allow=(), policy=None, provider=found_by, caps=caps) as tools:
                return _show(await tools.call(SEARCH_TOOL, arguments), as_json=as_json)

    return run_interruptibly(search)


@asynccontextmanager
async def _source(corpus: Path | None, provider: str | None) -> AsyncIterator[WebSearchProvider]:
    if provider is not None:
        yield load_provider(provider)
        return
    loaded = load_corpus(corpus)
    for skipped in loaded.skipped:
        note(f"left out: {skipped}")
    async with serve(loaded) as served:
        yield served.provider


def _show(output: ToolOutput, *, as_json: bool) -> int:
    if not output.ok:
        failure = failure_of(output)
        if as_json:
            say_json({"ok": False, "error": failure})
        else:
            note(f"{failure['code']}: {failure.get('message', '')}")
        return 1
    data: Any = output.data
    results = data["results"]
    for number, result in enumerate(results, 1):
        if as_json:
            say_json({"ok": True, "number": number, **result, "untrusted": True})
        else:
            say(_row(number, result))
    if not results:
        note("nothing was found")
    if data["truncated"]:
        note("there are more results than --limit")
    return 0


def _row(number: int, result: dict[str, str]) -> str:
    """Three lines, each of one value: a title that is made of several lines stays one."""
    title, snippet = (" ".join(result[name].split()) for name in ("title", "snippet"))
    lines = [f"{number:>3}  {title or '(no title)'}", f"     {result['url']}"]
    return "\n".join([*lines, f"     {snippet}"] if snippet else lines)
