"""The citation record and its wire form."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from citations import InvalidCitation, KnowledgeCitation, document_id, revision_id

URL = "https://docs.example.org:8443/a?b=c"
WHEN = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
WIRE = {
    "sourceId": "docs.example.org",
    "documentId": document_id(URL),
    "path": URL,
    "revisionId": revision_id("text"),
    "retrievedAt": "2026-11-30T12:00:00.123456Z",
}

hosts = st.one_of(
    st.from_regex(r"[a-z0-9]{1,8}(\.[a-z]{2,5}){1,2}", fullmatch=True),
    st.sampled_from(["::1", "192.0.2.7", "xn--bcher-kva.example"]),
)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda m: timezone(timedelta(minutes=m)))
# Hypothesis wants the bounds without a zone and adds one.
instants = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=offsets)  # noqa: DTZ001


def cite(url: str = URL, host: str = "docs.example.org", **changes: object) -> KnowledgeCitation:
    values: dict[str, object] = {
        "source_id": host,
        "document_id": document_id(url),
        "path": url,
        "revision_id": revision_id("text"),
        "retrieved_at": WHEN,
    }
    build: Callable[..., KnowledgeCitation] = KnowledgeCitation
    return build(**(values | changes))


def shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def test_wire_form_has_the_keys_of_the_seed() -> None:
    """The wire form is the knowledge pack's, in its order, with the time in UTC."""
    assert list(cite().to_wire().items()) == list(WIRE.items())


def test_wire_form_reads_back() -> None:
    """What was written is read as an equal record."""
    assert KnowledgeCitation.from_wire(WIRE) == cite()


@given(hosts, st.sampled_from(["", ":81", "/", "/x?q=1", "?q"]), st.text(), instants)
def test_round_trip(host: str, rest: str, text: str, when: datetime) -> None:
    """Any valid record survives JSON unchanged."""
    citation = cite(
        f"http://{shown(host)}{rest}", host, revision_id=revision_id(text), retrieved_at=when
    )

    wire = json.loads(json.dumps(citation.to_wire()))
    assert citation == KnowledgeCitation.from_wire(wire)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sourceId", 7),
        ("sourceId", None),
        ("sourceId", ""),
        ("sourceId", "Docs.example.org"),
        ("sourceId", "evil.example"),
        ("sourceId", "docs.example.or"),
        ("sourceId", "docs.example.org\n"),
        ("documentId", document_id(URL + "x")),
        ("documentId", "sha256:"),
        ("documentId", True),
        ("path", "ftp://docs.example.org/"),
        ("path", "javascript:alert(1)//docs.example.org"),
        ("path", URL + "#part"),
        ("path", URL + " "),
        ("path", URL + "\n"),
        ("path", URL + "é"),
        ("revisionId", "sha256:" + "A" * 64),
        ("revisionId", "sha256:" + "a" * 63),
        ("revisionId", "md5:" + "a" * 64),
        ("revisionId", "sha256:" + "a" * 64 + "\n"),
        ("retrievedAt", 1764504000),
        ("retrievedAt", "2026-11-30T12:00:00"),
        ("retrievedAt", "2026-11-30T12:00:00+00:00"),
        ("retrievedAt", "2026-11-30T12:00:00z"),
        ("retrievedAt", "2026-11-30 12:00:00Z"),
        ("retrievedAt", "2026-02-30T12:00:00Z"),
        ("retrievedAt", "2026-11-30T24:00:00Z"),
        ("retrievedAt", "2026-11-30T12:00:00.1234567Z"),
        ("retrievedAt", "\uff12026-11-30T12:00:00Z"),
        ("retrievedAt", "2026-11-30T12:00:00Z\n"),
    ],
)
def test_wrong_values_are_refused(field: str, value: object) -> None:
    """A value of another type or form is refused; nothing is coerced."""
    wire: dict[str, object] = {**WIRE, field: value}
    # A changed path has a matching digest, so that only the path itself can be at fault.
    if field == "path" and isinstance(value, str):
        wire["documentId"] = document_id(value)

    with pytest.raises(InvalidCitation) as caught:
        KnowledgeCitation.from_wire(wire)
    assert field == caught.value.field


@pytest.mark.parametrize(
    ("text", "microsecond"), [("", 0), (".1", 100_000), (".120", 120_000), (".000001", 1)]
)
def test_fractions_of_a_second(text: str, microsecond: int) -> None:
    """One to six digits are decimals, as RFC 3339 means them."""
    wire = WIRE | {"retrievedAt": f"2026-11-30T12:00:00{text}Z"}

    assert KnowledgeCitation.from_wire(wire).retrieved_at.microsecond == microsecond


@pytest.mark.parametrize("missing", sorted(WIRE))
def test_every_key_is_required(missing: str) -> None:
    """A missing key is refused by name."""
    with pytest.raises(InvalidCitation) as caught:
        KnowledgeCitation.from_wire({k: v for k, v in WIRE.items() if k != missing})
    assert missing == caught.value.field


@pytest.mark.parametrize("raw", [None, [], "x", 3, WIRE | {"extra": ""}, {1: ""}, {}])
def test_other_shapes_are_refused(raw: object) -> None:
    """Only an object with exactly the five keys is a citation."""
    with pytest.raises(InvalidCitation):
        KnowledgeCitation.from_wire(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@example({**WIRE, "retrievedAt": "0000-01-01T00:00:00Z"})
@example({**WIRE, "sourceId": "\ud800"})
@given(
    json_values
    | st.fixed_dictionaries({key: json_values | st.just(value) for key, value in WIRE.items()})
)
def test_reading_is_total(raw: object) -> None:
    """Any value is a citation or an `InvalidCitation`, nothing else."""
    try:
        citation = KnowledgeCitation.from_wire(raw)
    except InvalidCitation:
        return
    assert WIRE["path"] == citation.path


def test_a_naive_time_is_refused() -> None:
    """A time without zone names no instant."""
    with pytest.raises(InvalidCitation) as caught:
        cite(retrieved_at=WHEN.replace(tzinfo=None))
    assert caught.value.field == "retrievedAt"


def test_another_zone_is_the_same_instant() -> None:
    """An aware time of another zone is stored in UTC."""
    there = WHEN.astimezone(timezone(timedelta(hours=2)))

    assert cite(retrieved_at=there).retrieved_at.tzinfo == UTC
    assert cite() == cite(retrieved_at=there)


@pytest.mark.parametrize(("year", "hours"), [(1, 5), (9999, -5)])
def test_a_time_that_leaves_the_calendar_is_refused(year: int, hours: int) -> None:
    """A zone shift across year 1 or 9999 is an error of ours, not an OverflowError."""
    zone = timezone(timedelta(hours=hours))
    edge = (
        datetime(year, 1, 1, tzinfo=zone) if hours > 0 else datetime(year, 12, 31, 23, tzinfo=zone)
    )

    with pytest.raises(InvalidCitation):
        cite(retrieved_at=edge)


def test_invariants_hold_with_validators_switched_off() -> None:
    """The process-wide switch of attrs does not open the record."""
    attrs.validators.set_disabled(True)
    try:
        with pytest.raises(InvalidCitation):
            cite(document_id="sha256:" + "0" * 64)
    finally:
        attrs.validators.set_disabled(False)


def test_errors_do_not_repeat_the_value() -> None:
    """The message names the field and never the text that was refused."""
    with pytest.raises(InvalidCitation) as caught:
        KnowledgeCitation.from_wire({**WIRE, "path": "ftp://sentinel.example/"})
    assert "sentinel" not in str(caught.value)
