"""Frames of a worker are checked as if it had been taken over."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from web_tools import _extract_wire as wire
from web_tools.charset import CharsetSource
from web_tools.extract import (
    MAX_TEXT_BYTES,
    Detail,
    Extracted,
    ExtractError,
    ExtractionFailed,
    FailureReason,
    FeedEntry,
    TextOrigin,
    UnsupportedContent,
)

_NAMES = st.none() | st.text(alphabet=st.characters(codec="utf-8"), max_size=30)
RESULTS = st.builds(
    Extracted,
    text=st.text(alphabet=st.characters(codec="utf-8"), max_size=50),
    title=_NAMES,
    language=_NAMES,
    media_type=st.sampled_from(["text/html", "application/json"]),
    charset=st.sampled_from(["utf-8", "big5"]),
    charset_source=st.sampled_from(CharsetSource),
    detail=st.none() | st.sampled_from(Detail),
    hidden_chars=st.integers(min_value=0, max_value=2**40),
    refresh=_NAMES,
    refresh_base=_NAMES,
    canonical=_NAMES,
    author=_NAMES,
    published=_NAMES,
    modified=_NAMES,
    coverage=st.none() | st.integers(min_value=0, max_value=100),
    entries=st.lists(
        st.builds(
            FeedEntry, title=_NAMES, url=_NAMES, published=_NAMES, author=_NAMES, summary=_NAMES
        ),
        max_size=2,
    ).map(tuple),
    truncated=st.booleans(),
    origin=st.sampled_from(TextOrigin),
)


def _parsed(frame: bytes) -> Extracted:
    size = wire.LENGTHS.size
    head_bytes, body_bytes = wire.unpack_lengths(frame[:size])
    assert len(frame) == size + head_bytes + body_bytes
    return wire.result_of(frame[size : size + head_bytes], frame[size + head_bytes :])


@given(RESULTS)
def test_a_result_arrives_as_it_was(result: Extracted) -> None:
    """Every field survives the pipe."""
    assert result == _parsed(wire.reply_of(result))


def test_errors_arrive_as_they_were() -> None:
    """Also their fields."""
    with pytest.raises(UnsupportedContent) as unsupported:
        _parsed(wire.reply_of(UnsupportedContent("image/x", found="PNG")))
    assert ("image/x", "PNG") == (unsupported.value.media_type, unsupported.value.found)

    for reason in FailureReason:
        with pytest.raises(ExtractionFailed) as failed:
            _parsed(wire.reply_of(ExtractionFailed(reason)))
        assert reason is failed.value.reason


@pytest.mark.parametrize(
    "lengths", [(wire.MAX_HEAD_BYTES + 1, 0), (1, MAX_TEXT_BYTES + 1), (2**32 - 1, 2**32 - 1)]
)
def test_a_reply_that_is_too_long_is_not_read(lengths: tuple[int, int]) -> None:
    """A worker cannot make the host allocate what it likes."""
    with pytest.raises(ExtractionFailed) as caught:
        wire.unpack_lengths(wire.LENGTHS.pack(*lengths))

    assert FailureReason.BAD_REPLY is caught.value.reason


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"kind": None},
        {"title": 3},
        {"title": "x" * 8_194},
        {"media_type": ["text/html"]},
        {"charset_source": "magic"},
        {"detail": "fine"},
        {"hidden_chars": -1},
        {"hidden_chars": True},
        {"hidden_chars": 1.5},
        {"origin": None},
        {"refresh": {}},
        {"refresh_base": 1},
    ],
)
def test_a_field_of_the_wrong_type_is_a_bad_reply(change: dict[str, object]) -> None:
    """Nothing is coerced."""
    good = Extracted(
        text="t", media_type="text/html", charset="utf-8", charset_source=CharsetSource.VALID_UTF8
    )
    frame = wire.reply_of(good)
    head_bytes, _ = wire.unpack_lengths(frame[: wire.LENGTHS.size])
    head = orjson.loads(frame[wire.LENGTHS.size :][:head_bytes])

    with pytest.raises(ExtractionFailed) as caught:
        wire.result_of(orjson.dumps({**head, **change}), b"t")

    assert FailureReason.BAD_REPLY is caught.value.reason


@given(st.binary(max_size=60), st.binary(max_size=10))
def test_reading_a_reply_is_total(head: bytes, body: bytes) -> None:
    """Any bytes are a result or one of the two errors."""
    try:
        result = wire.result_of(head, body)
    except ExtractError:
        return
    assert isinstance(result, Extracted)
