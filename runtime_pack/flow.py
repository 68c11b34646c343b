"""What the label of a run, the addresses that it knows and what it keeps private say of one call. Pure.

Every rule that a call breaks is found, not the first one: a person who is asked is shown them all.
A rule asks or denies; what none of them minds is left to the tool policy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final, TypeAlias
from urllib.parse import unquote

from runtime_pack.address_book import (
    Address,
    AddressBook,
    AddressFault,
    AddressReader,
    worse_origin,
)
from runtime_pack.inner import frozen
from runtime_pack.label_table import (
    AddressOrigin,
    LabelPreset,
    LabelRow,
    LabelVerdict,
    SideEffect,
    Standing,
    decide_by_label,
    rows_of,
    standing_of,
    strictest,
)
from runtime_pack.labels import Label
from runtime_pack.messages import Json
from runtime_pack.private_text import Leak, PrivateText, joins_of

__all__ = (
    "AddressVerdict",
    "BrokenRule",
    "FlowVerdict",
    "RuleCode",
    "destinations_of",
    "judge_address",
    "judge_flow",
    "texts_of",
)


class RuleCode(StrEnum):
    """A rule about what leaves. The stored words are public; those of the table are its rows."""

    READ_LOCAL = "read_local"
    READ_NET_KNOWN = "read_net_known"
    PAGE_LINK = "page_link"
    MODEL_COMPOSED = "model_composed"
    SEARCH = "search"
    WRITE_LOCAL = "write_local"
    EXEC = "exec"
    MESSAGE = "message"
    EGRESS = "egress"
    SPEND = "spend"
    MEMORY_WRITE = "memory_write"
    ADMIN = "admin"
    UNDECLARED = "undeclared"
    LINK_BUDGET = "link_budget"
    OTHER_HOST = "other_host"
    SCHEME = "scheme"
    CREDENTIALS_IN_URL = "credentials_in_url"
    PRIVATE_DATA_IN_URL = "private_data_in_url"
    NONCE_IN_URL = "nonce_in_url"
    PRIVATE_DATA = "private_data"
    NONCE = "nonce"
    SIGNAL = "signal"


_ROWS_OF_ORIGINS: Final = {
    LabelRow.READ_NET_LINK: RuleCode.PAGE_LINK,
    LabelRow.READ_NET_COMPOSED: RuleCode.MODEL_COMPOSED,
}
_CODES: Final[Mapping[LabelRow, RuleCode]] = {
    row: _ROWS_OF_ORIGINS.get(row) or RuleCode(str(row)) for row in LabelRow
}

# One sentence a rule, for the model and for people: what it minds.
_SAID: Final[Mapping[RuleCode, str]] = {
    RuleCode.READ_LOCAL: "reads a local file",
    RuleCode.READ_NET_KNOWN: "reads an address of the user or of a search",
    RuleCode.PAGE_LINK: "follows a link of a page",
    RuleCode.MODEL_COMPOSED: "reads an address that neither the user, a search nor a page named",
    RuleCode.SEARCH: "sends a search query",
    RuleCode.WRITE_LOCAL: "writes a local file",
    RuleCode.EXEC: "runs a program",
    RuleCode.MESSAGE: "sends a message",
    RuleCode.EGRESS: "sends data out",
    RuleCode.SPEND: "spends money",
    RuleCode.MEMORY_WRITE: "writes to memory",
    RuleCode.ADMIN: "changes rules, tools or approvals",
    RuleCode.UNDECLARED: "comes from a tool that does not declare what it does",
    RuleCode.LINK_BUDGET: "would tell this site more by the choice of links than it may learn",
    RuleCode.OTHER_HOST: "is led to another host",
    RuleCode.SCHEME: "names an address that is not http or https",
    RuleCode.CREDENTIALS_IN_URL: "has credentials in an address",
    RuleCode.PRIVATE_DATA_IN_URL: "has private data in an address",
    RuleCode.NONCE_IN_URL: "has the nonce of a fence in an address",
    RuleCode.PRIVATE_DATA: "has private data in what it sends or runs",
    RuleCode.NONCE: "has the nonce of a fence in what it sends or runs",
    RuleCode.SIGNAL: "may send something out after what was noticed in the run",
}

_STANDINGS: Final[Mapping[Standing, str]] = {
    Standing.CLEAN: "nothing from outside and nothing private",
    Standing.EXTERNAL: "text from outside",
    Standing.WORKSPACE: "data of the workspace",
    Standing.SECRET: "secret data",
}

# Whose arguments leave: they are looked through.
_SENDS: Final = frozenset(
    {SideEffect.READ_NET, SideEffect.MESSAGE, SideEffect.EGRESS, SideEffect.SPEND}
)
# A program may send what it is given: what nobody may send is denied to it, and the rest is asked
# about, for no cell of its row denies.
_LOOKED_THROUGH: Final = _SENDS | {SideEffect.EXEC}


@frozen(kw_only=True)
class BrokenRule:
    """One rule that a call breaks, and whether it asks or denies.

    `standing` is what was in the context; `host` is where the call goes, never with what it carries;
    `signals` are those that the rule `signal` asks on.
    """

    code: RuleCode
    verdict: LabelVerdict
    standing: Standing
    host: str = ""
    signals: tuple[str, ...] = ()

    def told(self) -> str:
        """The rule in one line: stable for one rule, context and host, so that it can be compared."""
        details = self.host or ", ".join(self.signals)
        where = f" ({details})" if details else ""
        seen = _STANDINGS[self.standing]
        return (
            f"label rule {self.code}: the call {_SAID[self.code]}{where}; the context holds {seen}"
        )

    def to_json(self) -> dict[str, Json]:
        """The rule in events and in what the model is told."""
        body: dict[str, Json] = {
            "rule": str(self.code),
            "verdict": str(self.verdict),
            "context": str(self.standing),
        }
        if self.host:
            body["host"] = self.host
        if self.signals:
            body["signals"] = list(self.signals)
        return body


@frozen(kw_only=True)
class FlowVerdict:
    """The strictest of the rules that a call breaks; `links` are the addresses that it follows."""

    verdict: LabelVerdict = LabelVerdict.ALLOW
    rules: tuple[BrokenRule, ...] = ()
    links: tuple[Address, ...] = ()


Destination: TypeAlias = "Address | AddressFault | None"
"""Where an argument goes: an address, a text that is refused as one, or something else."""


def texts_of(value: object) -> Iterable[str]:
    """Every text in the arguments of a call, names of fields among them; numbers as they are written."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            # Values in their order, names of fields after them: a string may be shared out.
            waiting += [*item.keys(), *reversed(list(item.values()))]
        elif isinstance(item, list | tuple):
            waiting += reversed(item)
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield str(item)


def destinations_of(names: Sequence[str], arguments: Mapping[str, Json]) -> tuple[str, ...]:
    """The texts of the arguments that say where a call goes."""
    return tuple(text for name in names for text in texts_of(arguments.get(name)))


@frozen(kw_only=True)
class _Case:
    """What every rule is asked with."""

    preset: LabelPreset
    label: Label
    book: AddressBook
    reader: AddressReader | None
    private: PrivateText
    nonces: AbstractSet[str]

    @property
    def standing(self) -> Standing:
        return standing_of(self.label)

    def broken(self, code: RuleCode, verdict: LabelVerdict, host: str = "") -> BrokenRule:
        return BrokenRule(code=code, verdict=verdict, standing=self.standing, host=host)

    def row(self, row: LabelRow, host: str = "") -> BrokenRule | None:
        verdict = decide_by_label(self.preset, row, self.label)
        return None if verdict is LabelVerdict.ALLOW else self.broken(_CODES[row], verdict, host)

    def read(self, text: str) -> Destination:
        return None if self.reader is None else self.reader.read(text)

    def place(self, text: str) -> Destination:
        """The address that a tool would read: without a scheme, of both the one that is known less."""
        found = self.read(text)
        if self.reader is None or not isinstance(found, AddressFault) or ":" in text:
            return found
        both = [self.reader.read(f"{scheme}://{text}") for scheme in ("https", "http")]
        known = [each for each in both if isinstance(each, Address)]
        if len(known) < len(both):
            return found
        first, second = known
        origins = [self.book.origin(each.url) for each in known]
        return second if worse_origin(*origins) is not origins[0] else first


def judge_flow(
    *,
    preset: LabelPreset,
    label: Label,
    side_effects: Sequence[SideEffect] | None,
    destination_args: Sequence[str],
    arguments: Mapping[str, Json],
    book: AddressBook,
    reader: AddressReader | None,
    private: PrivateText,
    nonces: AbstractSet[str] = frozenset(),
) -> FlowVerdict:
    """Every rule that a call breaks.

    Args:
        preset: which table.
        label: of the context, siblings that were dispatched before included.
        side_effects: what the tool declares.
        destination_args: which arguments say where it goes.
        arguments: of the call.
        book: the addresses that the run knows.
        reader: reads addresses; without one every destination is composed.
        private: what must not leave.
        nonces: those that the run's fences have used.
    """
    case = _Case(
        preset=preset, label=label, book=book, reader=reader, private=private, nonces=nonces
    )
    effects = () if side_effects is None else tuple(side_effects)
    places = destinations_of(destination_args, arguments)
    reads = places if SideEffect.READ_NET in effects else ()
    rules: list[BrokenRule | None] = []
    links: list[Address] = []
    for text in reads:
        place = case.place(text)
        rules += _of_address(case, text, place)
        known = place if isinstance(place, Address) else None
        if known is not None and book.origin(known.url) is AddressOrigin.PAGE_LINK:
            links.append(known)
    sent = _of_arguments(case, side_effects, arguments, reads, places)
    host = _host_of(case, places, hidden=sent is not None)
    others = [effect for effect in effects if effect is not SideEffect.READ_NET or not reads]
    rules += [case.row(row, host) for row in rows_of(None if side_effects is None else others)]
    rules.append(sent)
    broken = tuple(dict.fromkeys(rule for rule in rules if rule is not None))
    verdict = LabelVerdict.ALLOW
    for rule in broken:
        verdict = strictest(verdict, rule.verdict)
    return FlowVerdict(verdict=verdict, rules=broken, links=tuple(links))


def _is_looked_through(side_effects: Sequence[SideEffect] | None) -> bool:
    """Whether what the call is given may leave."""
    return side_effects is None or not _LOOKED_THROUGH.isdisjoint(side_effects)


def _said_of(case: _Case, side_effects: Sequence[SideEffect] | None, leak: Leak) -> LabelVerdict:
    """The word on something private in the arguments of a call."""
    if side_effects is None and case.preset is LabelPreset.STANDARD:
        # It may send or not; its host has said neither. What nobody declared is left to the policy.
        return LabelVerdict.ALLOW if leak < Leak.DECLARED else LabelVerdict.ASK
    if side_effects is not None and _SENDS.isdisjoint(side_effects):
        return LabelVerdict.ASK if leak < Leak.DECLARED else LabelVerdict.DENY
    # What the workspace shares is asked about, where a person can see it; what is secret stays here.
    return LabelVerdict.ASK if leak is Leak.WORKSPACE else LabelVerdict.DENY


def _host_of(case: _Case, places: Sequence[str], *, hidden: bool = False) -> str:
    """The host of the first address among the destinations, as it may be told."""
    for text in places:
        place = case.read(text)
        if isinstance(place, Address):
            return _told(case, place.host, hidden=hidden)
    return ""


def _told(case: _Case, host: str, *, hidden: bool) -> str:
    """A host as it may be told: where something private is sent, the part that somebody registered.

    What is sent may stand in the other labels, in a form that is not that of the private string.
    """
    if not hidden or case.reader is None:
        return host
    site = case.reader.site(host)
    return "" if case.private.find(site, case.nonces) is not None else site


_FAULTS: Final[Mapping[str, RuleCode]] = {
    "scheme": RuleCode.SCHEME,
    "credentials_in_url": RuleCode.CREDENTIALS_IN_URL,
}


def _of_address(case: _Case, text: str, place: Destination) -> Iterable[BrokenRule | None]:
    """The rules about one address that is to be read."""
    if isinstance(place, AddressFault) and place.reason in _FAULTS and _names_scheme(text, place):
        yield case.broken(_FAULTS[place.reason], LabelVerdict.DENY, place.host)
        return
    if not isinstance(place, Address):
        yield _leak_in_address(case, (text,), "")
        yield case.row(LabelRow.READ_NET_COMPOSED)
        return
    # As it was written too: a name in it is in lower case by now.
    origin = case.book.origin(place.url)
    composed = origin is AddressOrigin.COMPOSED
    leak = _leak_in_address(case, (text, place.url), place.host, runs=composed)
    yield leak
    host = place.host if leak is None else leak.host
    if origin is AddressOrigin.PAGE_LINK:
        yield _of_link(case, place, host)
    else:
        (row,) = rows_of([SideEffect.READ_NET], [origin])
        yield case.row(row, host)


def _names_scheme(text: str, place: AddressFault) -> bool:
    """Whether the text is an address of another kind, and not the name of something else."""
    return place.reason != "scheme" or ":" in text


def _of_link(case: _Case, place: Address, host: str) -> BrokenRule | None:
    """A link within what its site may learn; beyond that it is asked about, or is as a composed one."""
    rule = case.row(LabelRow.READ_NET_LINK, host)
    if rule is not None or case.reader is None:
        return rule
    if case.book.affords(place.url, case.reader.site(place.host)):
        return None
    if case.row(LabelRow.READ_NET_COMPOSED) is None:
        # This preset lets any listed address be read in this context.
        return None
    return case.broken(RuleCode.LINK_BUDGET, LabelVerdict.ASK, host)


def _leak_in_address(
    case: _Case, texts: Iterable[str], host: str, *, runs: bool = True
) -> BrokenRule | None:
    """The rule about something private in an address.

    Without *runs*, words do not count: an address that somebody else named says what its page is about.
    """
    texts = tuple(texts)
    spread = [join for text in texts for join in _joins_in(text)]
    leak = _worst(case, dict.fromkeys([*texts, *spread]), runs=runs)
    leak = _worse(leak, *(case.private.find_shared_out(_parts_of(text)) for text in texts))
    if leak is None:
        return None
    code = RuleCode.NONCE_IN_URL if leak is Leak.NONCE else RuleCode.PRIVATE_DATA_IN_URL
    told = _told(case, host, hidden=True) if host else ""
    return case.broken(code, LabelVerdict.DENY, told)


def _of_arguments(
    case: _Case,
    side_effects: Sequence[SideEffect] | None,
    arguments: Mapping[str, Json],
    reads: Sequence[str],
    places: Sequence[str],
) -> BrokenRule | None:
    """The rule about what the call sends beside the addresses that it reads."""
    if not case.private and not case.nonces:
        return None
    if not _is_looked_through(side_effects):
        return None
    texts = [text for text in texts_of(arguments) if text not in reads]
    # Joined as well: a string may be shared out between arguments, or the parts of an address.
    spread = [join for text in texts for join in _joins_in(text)]
    # Names of fields are left out of the orders that are tried: they are few, and so are parts.
    values = [text for each in arguments.values() for text in texts_of(each) if text not in reads]
    # With spaces as well: numbers of a list are no longer a list when they are joined.
    joined = ("".join(texts), " ".join(texts), *joins_of(values))
    leak = _worst(case, dict.fromkeys([*texts, *joined, *spread]))
    parts = [part for text in texts for part in (_parts_of(text) if "://" in text else (text,))]
    leak = _worse(leak, case.private.find_shared_out(parts))
    if leak is None:
        return None
    code = RuleCode.NONCE if leak is Leak.NONCE else RuleCode.PRIVATE_DATA
    verdict = _said_of(case, side_effects, leak)
    if verdict is LabelVerdict.ALLOW:
        return None
    return case.broken(code, verdict, _host_of(case, places, hidden=True))


_VALUE: Final = re.compile(r"[?&;]([^=&;#]*)(?:=([^&;#]*))?")


def _joins_in(text: str) -> Iterable[str]:
    """The values of the query of an address, as one text each way."""
    _, mark, query = text.partition("?")
    if not mark or "://" not in text:
        return ()
    pairs = [unquote(value or name) for name, value in _VALUE.findall(mark + query)]
    # With dots as well: each may be in a writing of its own.
    return (*joins_of(pairs), ".".join(pairs))


_PARTS: Final = re.compile(r"[/?#&;=.@,+]+")


def _parts_of(address: str) -> list[str]:
    """What of an address somebody can put in any order: labels, segments, names and values."""
    return [unquote(part) for part in _PARTS.split(address.partition("://")[2] or address)]


def _worst(case: _Case, texts: Iterable[str], *, runs: bool = True) -> Leak | None:
    if not case.private and not case.nonces:
        return None
    return _worse(*(case.private.find(text, case.nonces, runs=runs) for text in texts))


def _worse(*leaks: Leak | None) -> Leak | None:
    return max((leak for leak in leaks if leak is not None), default=None)


# ── one address by itself ─────────────────────────────────────────────────────────────────────


@frozen(kw_only=True)
class AddressVerdict:
    """The word on one address: `allow`, `ask` or `deny`, and the code of the rule or of its origin."""

    verdict: LabelVerdict
    reason: str
    rules: tuple[BrokenRule, ...] = ()


def judge_address(
    text: str,
    *,
    preset: LabelPreset,
    label: Label,
    book: AddressBook,
    reader: AddressReader,
    private: PrivateText,
    nonces: AbstractSet[str] = frozenset(),
) -> AddressVerdict:
    """What the rules say of reading one address, before any name is looked up."""
    found = judge_flow(
        preset=preset,
        label=label,
        side_effects=(SideEffect.READ_NET,),
        destination_args=("url",),
        arguments={"url": text},
        book=book,
        reader=reader,
        private=private,
        nonces=nonces,
    )
    place = reader.read(text)
    origin = book.origin(place.url) if isinstance(place, Address) else AddressOrigin.COMPOSED
    # The first of the strictest: the rules stand in the order in which they matter.
    reasons = [str(rule.code) for rule in found.rules if rule.verdict is found.verdict]
    return AddressVerdict(
        verdict=found.verdict, reason=reasons[0] if reasons else str(origin), rules=found.rules
    )
