"""Parts of a page through the governed tool: what the model and the host are given."""

import asyncio
from typing import Any

import pytest

from egress.testing import RecordingFetch, ScriptedAnswer
from runtime_pack import create_agent_runtime, create_web_tool_runtime
from runtime_pack.catalog import ToolOutput
from runtime_pack.ports import ExecutionContext, is_releasable
from runtime_pack.testing import ListEmitter, ScriptedModel
from web_tools.search import create_fixture_web_search_provider

URL = "https://docs.example/guide"
SECTIONS = "".join(f"<h2>Part {n}</h2><p>{f'Words of part {n}. ' * 30}</p>" for n in range(5))
PAGE = (
    "<html lang=en><head><title>Guide</title><meta name=author content='Ann Lee'></head>"
    f"<body><main><h1>Guide</h1>{SECTIONS}</main></body></html>"
)
FEED = (
    "<rss><channel><title>T</title><item><title>One</title><link>/1</link></item></channel></rss>"
)


def read(
    body: str = PAGE, kind: str = "text/html", *, paging: bool = True, **arguments: Any
) -> ToolOutput:
    async def main() -> ToolOutput:
        answer = ScriptedAnswer(headers=(("content-type", kind),), chunks=(body.encode(),))
        runtime = create_web_tool_runtime(
            create_agent_runtime(model=ScriptedModel([])),
            provider=create_fixture_web_search_provider([]),
            allowlist=["docs.example"],
            emitter=ListEmitter(),
            fetch=RecordingFetch([answer]),
            paging=paging,
        )
        context = ExecutionContext(run="run-parts")
        output = await runtime.execute_tool("web:read", {"url": URL, **arguments}, context)
        assert is_releasable(runtime)
        await runtime.release()
        return output

    return asyncio.run(main())


SEED = {
    "url", "final_url", "content_type", "text", "truncated", "fetched_at", "bytes", "untrusted", "citation",
}  # fmt: skip


@pytest.mark.parametrize("paging", [True, False])
def test_a_read_without_a_part_has_the_keys_of_the_text(paging: bool) -> None:
    """The shape of the web tools text stays as it is when nothing more is asked for."""
    output = read(paging=paging, max_bytes=500)
    data: Any = output.data

    assert set(data) == SEED
    assert ("Read on with offset" in output.text) is paging


def test_reading_on_goes_to_the_end() -> None:
    """The offsets that are told lead through the whole page, which is the same revision."""
    offset: int | None = 0
    revisions, words = set(), ""
    while offset is not None:
        data: Any = read(offset=offset, max_bytes=700).data
        revisions.add(data["citation"]["revisionId"])
        words += data["text"].split("\n", 1)[1]
        offset = data["next_offset"]

    assert len(revisions) == 1
    assert all(f"## Part {n}" in words for n in range(5))


def test_a_section_places_and_an_outline_are_told() -> None:
    """What stands outside of the block is numbers; the page's words are inside, or data."""
    section, places = read(section="part 3"), read(find="Words of part 2")
    outline: Any = read(outline=True)

    assert section.text.startswith("The section. Characters ")
    assert "Words of part 3." in section.text
    assert "Words of part 2." not in section.text
    assert places.text.startswith("Found 30 times; shown are characters ")
    assert outline.data["about"]["author"] == "Ann Lee"
    assert [heading["title"] for heading in outline.data["headings"]][-1] == "Part 4"
    for output in (section, places, outline):
        told = output.text.partition("<untrusted")[0]
        assert "Part" not in told
        assert "Ann" not in told
        assert output.framed


def test_the_outline_of_a_feed_is_its_entries() -> None:
    """As lines for the model, and as data."""
    output: Any = read(FEED, "application/rss+xml", outline=True)

    assert "- One https://docs.example/1" in output.text
    assert output.data["entries"][0]["url"] == "https://docs.example/1"


def test_what_is_not_there_is_said() -> None:
    """An unknown section and words that the page has not."""
    section: Any = read(section="Part 9")

    assert (section.ok, section.data["found"], section.data["bytes"]) == (True, False, 0)
    assert "no section of this name" in section.text
    assert "not on the page" in read(find="elephant").text
