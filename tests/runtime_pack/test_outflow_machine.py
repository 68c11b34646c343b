"""What goes out of a run, against a model that tries anything: no order of events loosens a rule."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime_pack.address_book import LINK_MILLIBITS
from runtime_pack.addresses import WEB_ADDRESSES, site_of
from runtime_pack.catalog import ToolSpec
from runtime_pack.guard.outflow import Outflow
from runtime_pack.label_table import LabelPreset, LabelVerdict, SideEffect
from runtime_pack.labels import CLEAN, Confidentiality, Integrity, Label, at_most, join
from runtime_pack.messages import (
    AssistantMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)

SECRET = "sk-live-9f8e7d6c5b4a3928"
URLS = [f"https://h{number % 3}.site{number % 2}.example/{number}" for number in range(40)]
LEAKS = [
    f"https://h0.site0.example/{SECRET}",
    f"https://h0.site0.example/?d={base64.b64encode(SECRET.encode()).decode()}",
    f"https://{SECRET.encode().hex()}.site1.example/",
]
PARAMETERS: Any = {"type": "object", "properties": {"url": {"type": "string"}}}
READ = ToolSpec(
    name="web:read",
    description="d",
    parameters=PARAMETERS,
    side_effects=["read_net"],
    destination_args=["url"],
)
labels = st.builds(
    Label,
    integrity=st.sampled_from(Integrity),
    confidentiality=st.sampled_from(Confidentiality),
)


class OutflowMachine(RuleBasedStateMachine):
    """Messages, calls and restarts in any order."""

    @initialize(preset=st.sampled_from(LabelPreset))
    def begin(self, preset: LabelPreset) -> None:
        self.preset = preset
        self.flow = self._fresh()
        self.label = self.highest = CLEAN
        self.messages: list[Any] = []
        self.told: dict[str, int] = {}
        self.steps = 0
        self.links: set[str] = set()
        self.finds: set[str] = set()
        self.composed: set[str] = set()

    def _fresh(self) -> Outflow:
        return Outflow(self.preset, WEB_ADDRESSES, private_strings=[SECRET])

    def _hear(self, message: Any) -> None:
        self.messages.append(message)
        self.flow.note(message)
        if not isinstance(message, SystemMessage):
            self.label = join(self.label, message.label)

    @rule(urls=st.lists(st.sampled_from(URLS), max_size=30), label=labels)
    def read_a_text(self, urls: list[str], label: Label) -> None:
        self.flow.offer([], urls)
        self.links.update(set(urls) - self.composed)
        self._hear_tool(" ".join(urls), label)

    def _hear_tool(self, text: str, label: Label) -> None:
        self._hear(ToolMessage(call_id="c", name="t", text=text, ok=True, label=label))

    @rule(url=st.sampled_from(URLS), label=labels, shown=st.booleans())
    def compose_and_hear_it_again(self, url: str, label: Label, shown: bool) -> None:
        """The model writes an address, and a tool or a page repeats it."""
        known = str(self.flow.book.origin(url)) != "model_composed"
        call = ToolCall(id="c", name="t", arguments={"body": url})
        self._hear(AssistantMessage(calls=(call,)))
        if not self._is_known(url):
            self.composed.add(url)
        self._hear_tool(f"you said {url}", label)
        if shown:
            self.flow.offer([], [url])
        self.flow.judge(READ, {"url": url}, self.label)
        assert known or self._is_known(url) or str(self.flow.book.origin(url)) == "model_composed"

    def _is_known(self, url: str) -> bool:
        """By what was told here: no text but the user's makes an address known."""
        said = any(
            url in message.text.split()
            for message in self.messages
            if isinstance(message, UserMessage) and message.label.integrity is Integrity.USER
        )
        return said or url in self.links or url in self.finds

    @rule(url=st.sampled_from(URLS), label=labels)
    def hear_the_user(self, url: str, label: Label) -> None:
        self._hear(UserMessage(text=f"look at {url}", label=label))

    @rule(url=st.sampled_from(URLS))
    def search(self, url: str) -> None:
        self.flow.offer([url])
        self.finds.add(url)

    @rule(url=st.sampled_from(URLS + LEAKS))
    def read_an_address(self, url: str) -> None:
        found = self.flow.judge(READ, {"url": url}, self.label)
        verdict = LabelVerdict.ALLOW if found is None else found.verdict
        assert url not in LEAKS or verdict is LabelVerdict.DENY
        if self.label.confidentiality is Confidentiality.SECRET:
            assert verdict is not LabelVerdict.ALLOW
        if self.preset is LabelPreset.STRICT and not self._is_known(url):
            assert verdict is LabelVerdict.DENY
        if found is None or verdict is not LabelVerdict.ALLOW:
            return
        self.steps += 1
        self.flow.charge(f"t{self.steps}c1", found)

    @rule(target_url=st.sampled_from(URLS + LEAKS))
    def be_redirected(self, target_url: str) -> None:
        rules = self.flow.hop(URLS[0], target_url, self.label)
        assert target_url not in LEAKS or rules
        # What a server leads to is known from then on, as one of its links.
        if target_url not in self.composed:
            self.links.add(target_url)

    @rule()
    def restart(self) -> None:
        saved = json.loads(json.dumps([self.flow.to_json(), self.flow.book.kept]))
        self.flow = self._fresh()
        for message in self.messages:
            self.flow.note(message)
        self.flow.restore(saved[0])
        self.flow.book.restore_known(saved[1])

    @invariant()
    def no_site_learns_more_than_it_may_and_nothing_is_forgotten(self) -> None:
        for number in range(2):
            site = site_of(f"site{number}.example")
            told = self.flow.book.spent(site)
            assert told >= self.told.get(site, 0)
            self.told[site] = told
            if self.preset is LabelPreset.STRICT:
                assert told <= LINK_MILLIBITS

    @invariant()
    def the_water_line_never_falls(self) -> None:
        assert at_most(self.highest, self.label)
        self.highest = self.label


TestOutflow = OutflowMachine.TestCase
TestOutflow.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_the_tool_of_the_machine_reads_from_the_network() -> None:
    """Else nothing of it would be judged."""
    assert READ.side_effects == (SideEffect.READ_NET,)


def test_what_another_model_wrote_for_a_sub_run_is_known_from_nobody() -> None:
    """Its words stand where a user's or an operator's do, and make no address known."""
    flow = Outflow(LabelPreset.STANDARD, WEB_ADDRESSES)
    flow.note(UserMessage(text="read https://one.example/a"), own=False)
    flow.note(SystemMessage(text="read https://two.example/a"), own=False)
    flow.note(UserMessage(text="read https://three.example/a"))
    flow.hop("https://three.example/", "https://three.example/b", CLEAN)

    found = [str(flow.book.origin(f"https://{host}.example/a")) for host in ("one", "two", "three")]

    assert found == ["model_composed", "model_composed", "user"]
