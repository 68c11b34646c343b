"""Which addresses a run knows and from where, and how much its choices of links have told. Pure.

An address is known or it is not: no prefix, no host, nothing but the whole canonical text is equal to
another one. Following one of k links tells whoever serves it log2(k) bits; they are counted for each
registrable domain, in thousandths, and never go down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

from runtime_pack.inner import frozen
from runtime_pack.label_table import AddressOrigin

__all__ = (
    "LINK_MILLIBITS",
    "Address",
    "AddressBook",
    "AddressFault",
    "AddressReader",
    "millibits_of",
    "worse_origin",
)

LINK_MILLIBITS: Final = 16_000
"""What a run may tell one registrable domain by its choice of links while it knows nothing private."""


@frozen(kw_only=True)
class Address:
    """An address in canonical form, and its host."""

    url: str
    host: str


@frozen(kw_only=True)
class AddressFault:
    """Why a text is no address: `credentials_in_url`, `scheme` or `malformed`; the host if it has one."""

    reason: str
    host: str = ""


class AddressReader(Protocol):
    """Reads addresses: `runtime_pack.addresses` has the one for http and https."""

    def read(self, text: str) -> Address | AddressFault:
        """The address that a text is, in canonical form."""
        ...

    def find(self, text: str, *, bare: bool = False) -> tuple[Address, ...]:
        """Every address in a text, each once; with *bare*, those that name no scheme too."""
        ...

    def site(self, host: str) -> str:
        """The registrable domain of a host: what its owner can see is counted together."""
        ...


_BEST_FIRST: Final = tuple(AddressOrigin)


def worse_origin(first: AddressOrigin, second: AddressOrigin) -> AddressOrigin:
    """Of two origins, the one that says less for an address."""
    return max(first, second, key=_BEST_FIRST.index)


def millibits_of(choices: int) -> int:
    """What the choice of one of so many tells, in thousandths of a bit, rounded up."""
    return 0 if choices < 2 else math.ceil(math.log2(choices) * 1000)


class AddressBook:
    """The addresses of one run. What is added stays, and an origin only gets better."""

    __slots__ = ("_charged", "_composed", "_known", "_spent", "kept")

    def __init__(self) -> None:
        self._known: dict[str, tuple[AddressOrigin, int]] = {}
        # What a model wrote before anybody else did: a page that shows it repeats the model.
        self._composed: dict[str, None] = {}
        self._spent: dict[str, int] = {}
        # As an ordered set, which is small while it is empty.
        self._charged: dict[str, None] = {}
        # Those that cannot be found in the messages of a saved run again, in order.
        self.kept: list[tuple[str, AddressOrigin, int]] = []

    def add(self, urls: Iterable[str], origin: AddressOrigin, *, keep: bool = False) -> None:
        """Know canonical addresses; links are known together, for each is one choice of them all.

        What is known from a better place already is no choice that the page gave, and what a model
        composed before is no link. With *keep*, a saved run cannot find them in its messages again.
        """
        together = dict.fromkeys(urls)
        tells = 0
        if origin is AddressOrigin.PAGE_LINK:
            together = {url: None for url in together if url not in self._composed}
            tells = millibits_of(sum(self.origin(url) not in _BETTER for url in together))
        for url in together:
            self._add(url, origin, tells, keep=keep or origin in _KEPT)

    def compose(self, urls: Iterable[str], *, keep: bool = False) -> None:
        """A model wrote these: of those that are not known by now, no page makes one known."""
        for url in urls:
            if url in self._known or url in self._composed:
                continue
            self._composed[url] = None
            if keep:
                self.kept.append((url, AddressOrigin.COMPOSED, 0))

    def _add(self, url: str, origin: AddressOrigin, tells: int, *, keep: bool) -> None:
        known = self._known.get(url)
        if known is not None:
            if _BEST_FIRST.index(origin) > _BEST_FIRST.index(known[0]):
                return
            if origin is known[0] and tells <= known[1]:
                return
        self._known[url] = (origin, tells)
        if keep:
            self.kept.append((url, origin, tells))

    def origin(self, url: str) -> AddressOrigin:
        """Where an address is known from; composed when it is not known."""
        known = self._known.get(url)
        return AddressOrigin.COMPOSED if known is None else known[0]

    def affords(self, url: str, site: str) -> bool:
        """Whether following an address stays within what its site may be told."""
        return self.spent(site) + self._tells(url) <= LINK_MILLIBITS

    def spent(self, site: str) -> int:
        """What a site was told so far, in thousandths of a bit."""
        return self._spent.get(site, 0)

    def charge(self, step: str, url: str, site: str) -> None:
        """A call that follows it was admitted. It is charged once, however often it is judged."""
        tells, mark = self._tells(url), f"{step} {url}"
        if tells and mark not in self._charged:
            self._charged[mark] = None
            self._spent[site] = self.spent(site) + tells

    def _tells(self, url: str) -> int:
        known = self._known.get(url)
        return 0 if known is None else known[1]

    def __bool__(self) -> bool:
        """Whether something was told, which a saved run keeps."""
        return bool(self._spent)

    # ── saved runs ────────────────────────────────────────────────────────────────────────────

    def spent_json(self) -> dict[str, Any]:
        """What was told to whom, and for which calls."""
        return {"spent": dict(self._spent), "charged": sorted(self._charged)}

    def restore(self, value: Mapping[str, Any]) -> None:
        """Take in what `spent_json` wrote; of what is known twice, the higher.

        Raises:
            KeyError, TypeError, ValueError: not of that form.
        """
        for site, told in value["spent"].items():
            if type(told) is not int or told < 0:
                raise ValueError("what was told is a count")
            self._spent[str(site)] = max(told, self._spent.get(str(site), 0))
        self._charged.update(dict.fromkeys(map(str, value["charged"])))

    def restore_known(self, rows: Iterable[Any]) -> None:
        """Take in what stood in `kept`.

        Raises:
            TypeError, ValueError: not of that form.
        """
        for url, origin, tells in rows:
            if type(tells) is not int or tells < 0:
                raise ValueError("what a choice tells is a count")
            if AddressOrigin(origin) is AddressOrigin.COMPOSED:
                self.compose([str(url)], keep=True)
            else:
                self._add(str(url), AddressOrigin(origin), tells, keep=True)


# The others are found again in the messages of a saved run.
_BETTER: Final = frozenset({AddressOrigin.USER, AddressOrigin.OPERATOR, AddressOrigin.SEARCH})
_KEPT: Final = frozenset({AddressOrigin.SEARCH, AddressOrigin.OPERATOR})
