"""What a run knows of addresses and of what is private, and its word on each call.

What comes into the context is only noted; it is read when a call first depends on it. A run whose
tools send nothing never reads it. Sub-runs share the object: what one of them tells a site, all did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from runtime_pack.address_book import Address, AddressBook, AddressReader
from runtime_pack.answer_links import DefusedAnswer, defused_answer
from runtime_pack.catalog import ToolSpec
from runtime_pack.errors import ContractError
from runtime_pack.flow import BrokenRule, FlowVerdict, RuleCode, judge_flow, texts_of
from runtime_pack.label_table import (
    AddressOrigin,
    LabelPreset,
    LabelVerdict,
    SideEffect,
    standing_of,
)
from runtime_pack.labels import Confidentiality, Integrity, Label
from runtime_pack.messages import (
    AssistantMessage,
    Json,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from runtime_pack.private_text import MAX_CHECKED, MIN_PRIVATE, Leak, PrivateText
from runtime_pack.signals import NO_SIGNALS, RunSignal, read_signals

__all__ = ("Outflow",)

_KINDS: Final[Mapping[Confidentiality, Leak]] = {
    Confidentiality.WORKSPACE: Leak.WORKSPACE,
    Confidentiality.SECRET: Leak.SECRET,
}
_HOP: Final = "url"
# Parts of a long text overlap, so that no string is cut in two.
_OVERLAP: Final = 4096
# Characters of what a model wrote that are searched for addresses at once: fewer than a search takes.
_WRITTEN: Final = 16_384


_NONE: Final[frozenset[str]] = frozenset()


class Outflow:
    """Judges what the calls of a run send, and keeps what that depends on.

    Raises:
        ContractError: a private string or a canary is shorter than 8 letters and digits.
    """

    __slots__ = (
        "_book",
        "_clean",
        "_declared",
        "_private",
        "_unread",
        "burned",
        "canaries",
        "preset",
        "reader",
        "signals",
        "strings",
    )

    def __init__(
        self,
        preset: LabelPreset,
        reader: AddressReader | None = None,
        *,
        private_strings: Iterable[str] = (),
        canaries: Iterable[str] = (),
    ) -> None:
        self.preset = preset
        # Made when they are asked for: most runs send nothing, and wait by the thousand.
        self._book: AddressBook | None = None
        self._private: PrivateText | None = None
        self.reader = reader
        # The nonces that fences have used: none of them has a reason to go anywhere.
        self.burned: set[str] = set()
        # A message that another model wrote stands alone in a tuple.
        self._unread: list[Message | tuple[Message]] = []
        self._declared = _NONE
        # What was declared private, by itself: a text that holds some of it is secret. The texts
        # that hold none, by digest in an ordered set, so that each is looked through once.
        self.strings: PrivateText | None = None
        self._clean: dict[bytes, None] | None = None
        self.canaries: PrivateText | None = None
        # What was noticed in texts from outside; nothing is ever taken out.
        self.signals: frozenset[RunSignal] = NO_SIGNALS
        self._declare("private_strings", private_strings, Leak.DECLARED)
        self._declare("canaries", canaries, Leak.CANARY)

    @property
    def book(self) -> AddressBook:
        """The addresses that the run knows."""
        if self._book is None:
            self._book = AddressBook()
        return self._book

    @property
    def private(self) -> PrivateText:
        """What must not leave the run."""
        if self._private is None:
            self._private = PrivateText()
        return self._private

    def _declare(self, field: str, strings: Iterable[str], kind: Leak) -> None:
        if isinstance(strings, str):
            raise ContractError(field, "is a list of texts")
        for each in strings:
            if not isinstance(each, str) or sum(map(str.isalnum, each)) < MIN_PRIVATE:
                # Its value is not repeated: it is private.
                raise ContractError(field, f"holds one without {MIN_PRIVATE} letters and digits")
            self.private.add(each, kind)
            if kind is Leak.DECLARED:
                self.strings = self.strings or PrivateText()
                self.strings.add(each, kind)
            else:
                self.canaries = self.canaries or PrivateText()
                self.canaries.add(each, kind)
            digest = hashlib.sha256(each.encode(errors="replace")).hexdigest()
            self._declared |= {f"sha256:{digest}"}

    # ── what came into the context ────────────────────────────────────────────────────────────

    def note(self, message: Message, *, own: bool = True) -> None:
        """A message has become a part of the context; *own* says that a person or the host wrote it."""
        self._unread.append(message if own else (message,))

    def holds_declared(self, texts: Iterable[str]) -> bool:
        """Whether one of the texts says something that was declared private, in any writing.

        One that is too tangled to be read counts as one that does.
        """
        declared = self.strings
        return declared is not None and any(self._says(declared, text) for text in texts)

    def holds_canary(self, text: str) -> bool:
        """Whether a text from outside says a canary, in any writing: it has been out before."""
        return self.canaries is not None and _finds(self.canaries, text)

    def _says(self, declared: PrivateText, text: str) -> bool:
        digest = hashlib.sha256(text.encode(errors="replace")).digest()
        if self._clean is None:
            self._clean = {}
        if digest in self._clean:
            return False
        if _finds(declared, text):
            return True
        self._clean[digest] = None
        return False

    def offer(
        self,
        found: Iterable[str],
        links: Iterable[str] = (),
        *,
        arguments: object = None,
    ) -> None:
        """A search has given addresses, or a page links. Nothing else makes a link known.

        An address that was in the *arguments* of the search is no find, and a link that a model
        composed before is none: both are only its own words repeated.
        """
        self._read_news()
        asked = set(self._written(texts_of(arguments))) if found else _NONE
        finds = [url for url in self._canonical(found) if url not in asked]
        self.book.add(finds, AddressOrigin.SEARCH)
        self.book.add(self._canonical(links), AddressOrigin.PAGE_LINK, keep=True)

    def said_by_person(self, spec: ToolSpec, arguments: Mapping[str, Json]) -> None:
        """A person has written these arguments: what stands in its destinations is from the user."""
        for name in spec.destination_args:
            places = self._canonical(texts_of(arguments.get(name)))
            self.book.add(places, AddressOrigin.USER, keep=True)

    def _canonical(self, texts: Iterable[str]) -> list[str]:
        reader = self.reader
        read = [] if reader is None else [reader.read(text) for text in texts]
        return [each.url for each in read if isinstance(each, Address)]

    def _read_news(self) -> None:
        news, self._unread = self._unread, []
        for each in news:
            own = not isinstance(each, tuple)
            message = each[0] if isinstance(each, tuple) else each
            if not isinstance(message, AssistantMessage):
                self._take(message, own=own)
            elif self.reader is None:
                # Read when there is a reader: what a model composed is never forgotten.
                self._unread.append(each)
            else:
                texts = (
                    message.text,
                    *(t for call in message.calls for t in texts_of(call.arguments)),
                )
                # The messages of a sub-run are not found again where its parent is taken up.
                self.book.compose(self._written(texts), keep=not own)

    def _written(self, texts: Iterable[str]) -> Iterator[str]:
        """Every address in what a model wrote, also without a scheme."""
        reader = self.reader
        if reader is None:
            return
        step = _WRITTEN - _OVERLAP
        for text in texts:
            if "." in text:
                for at in range(0, max(1, len(text) - _OVERLAP), step):
                    part = text[at : at + _WRITTEN]
                    yield from (address.url for address in reader.find(part, bare=True))

    def _take(self, message: SystemMessage | UserMessage | ToolMessage, *, own: bool) -> None:
        if isinstance(message, SystemMessage):
            if own:
                self._know(message.text, AddressOrigin.OPERATOR)
            return
        label, by_user = message.label, isinstance(message, UserMessage)
        # What another model wrote for a sub-run is known from nobody.
        if by_user and own and label.integrity is Integrity.USER:
            self._know(message.text, AddressOrigin.USER)
        kind = _KINDS.get(label.confidentiality)
        if kind is not None:
            self.private.add_text(message.text, kind)
        elif by_user and own and label.integrity is Integrity.USER:
            self.private.add_public(message.text)

    def _know(self, text: str, origin: AddressOrigin) -> None:
        if self.reader is None or "." not in text:
            return
        found = self.reader.find(text, bare=True)
        self.book.add([address.url for address in found], origin)

    # ── judging ───────────────────────────────────────────────────────────────────────────────

    def judge(
        self, spec: ToolSpec, arguments: Mapping[str, Json], label: Label
    ) -> FlowVerdict | None:
        """Every rule that a call breaks; None when there is nothing to be said of it."""
        effects = spec.side_effects
        if not effects and (
            effects is not None
            or (
                self.preset is LabelPreset.STANDARD
                and label.confidentiality is not Confidentiality.SECRET
                and not self._declared
            )
        ):
            return None
        self._read_news()
        verdict = self._judged(effects, spec.destination_args, arguments, label)
        return verdict if verdict.rules or verdict.links else None

    def _judged(
        self,
        effects: tuple[SideEffect, ...] | None,
        destination_args: tuple[str, ...],
        arguments: Mapping[str, Json],
        label: Label,
    ) -> FlowVerdict:
        return judge_flow(
            preset=self.preset,
            label=label,
            side_effects=effects,
            destination_args=destination_args,
            arguments=arguments,
            book=self.book,
            reader=self.reader,
            private=self.private,
            nonces=self.burned,
        )

    def charge(self, step: str, verdict: FlowVerdict) -> None:
        """A call was admitted: the links that it follows are counted."""
        reader = self.reader
        if reader is None:
            return
        for address in verdict.links:
            self.book.charge(step, address.url, reader.site(address.host))

    def hop(self, before: str, url: str, label: Label) -> tuple[BrokenRule, ...]:
        """The rules against following a redirect from one address to another; none: it is followed.

        It is a new link of that page, and the only one: nothing is told by following it. Under the
        strict preset what leads to another host is returned and not followed. Under the standard
        one a listed host is what an address that was composed is.
        """
        reader = self.reader
        if reader is None:
            return ()
        self._read_news()
        source, target = reader.read(before), reader.read(url)
        same = (
            isinstance(source, Address)
            and isinstance(target, Address)
            and source.host == target.host
        )
        self.book.add(self._canonical([url]), AddressOrigin.PAGE_LINK, keep=True)
        found = self._judged((SideEffect.READ_NET,), (_HOP,), {_HOP: url}, label)
        strict = self.preset is LabelPreset.STRICT
        if found.verdict is LabelVerdict.ALLOW and (same or not strict):
            return ()
        return found.rules or (_another_host(target, label),)

    # ── answering ─────────────────────────────────────────────────────────────────────────────

    def answer(self, text: str, label: Label) -> DefusedAnswer | None:
        """A final answer without what would carry data out when it is shown; None: it is as it was."""
        if "<" not in text and "[" not in text and ":" not in text:
            return None
        outside = label.integrity is Integrity.EXTERNAL
        self._read_news()
        if not outside and not self.private:
            return None
        return defused_answer(
            text,
            reader=self.reader,
            book=self.book,
            private=self.private,
            nonces=self.burned,
            outside=outside,
        )

    # ── saved runs ────────────────────────────────────────────────────────────────────────────

    def to_json(self) -> dict[str, Json]:
        """What a saved run keeps; of what was declared private, digests."""
        # Written where there are some only: heads of earlier versions do not know them.
        seen: dict[str, Json] = {"signals": sorted(self.signals)} if self.signals else {}
        return {**self.book.spent_json(), "declared": sorted(self._declared), **seen}

    def restore(self, value: Mapping[str, Any]) -> None:
        """Take in what `to_json` wrote.

        Raises:
            ContractError: something was declared private of the saved run, and was not of this one.
            KeyError, TypeError, ValueError: not of that form.
        """
        missing = set(map(str, value["declared"])) - self._declared
        if missing:
            text = (
                f"{len(missing)} that the saved run was given are missing: it would not keep them"
            )
            raise ContractError("private_strings", text)
        self.signals |= read_signals(value.get("signals", []))
        self.book.restore(value)

    def __bool__(self) -> bool:
        """Whether there is anything for a saved run to keep."""
        return bool(self._declared or self.book or self.signals)


def _finds(private: PrivateText, text: str) -> bool:
    step = MAX_CHECKED - _OVERLAP
    parts = (text[at : at + MAX_CHECKED] for at in range(0, max(1, len(text) - _OVERLAP), step))
    return any(private.find(part) is not None for part in parts)


def _another_host(target: object, label: Label) -> BrokenRule:
    return BrokenRule(
        code=RuleCode.OTHER_HOST,
        verdict=LabelVerdict.ASK,
        standing=standing_of(label),
        host=target.host if isinstance(target, Address) else "",
    )
