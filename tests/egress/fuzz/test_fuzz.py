"""The fuzz target: over its seeds always, under Hypothesis always, under atheris where it is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

import egress

_TARGET = Path(__file__).with_name("fuzz_egress.py")
_RUNS = 5_000


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_egress", _TARGET)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_FUZZ = _load()
_SEEDS: list[bytes] = _FUZZ.seeds()


def test_the_seeds_reach_every_check() -> None:
    """No check starts from nothing, and no seed breaks one."""
    assert set(range(len(_FUZZ.CHECKS))) == {seed[0] for seed in _SEEDS}
    for seed in _SEEDS:
        _FUZZ.check(seed)


@given(st.sampled_from(_SEEDS), st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3))))
def test_mutated_seeds(seed: bytes, edits: list[tuple[int, bytes]]) -> None:
    """Bytes put over others anywhere, the choice of the check among them."""
    data = seed
    for place, new in edits:
        data = data[:place] + new + data[place + len(new) :]

    _FUZZ.check(data)


@given(st.integers(0, 6), st.binary(max_size=300))
def test_arbitrary_bytes(which: int, data: bytes) -> None:
    """From nothing at all."""
    _FUZZ.check(bytes([which]) + data)


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: its wheels are for Linux on x86-64",
)
def test_a_short_run_of_the_fuzzer(tmp_path: Path) -> None:
    """Coverage-guided, from the seeds; what it finds is printed as the input that does it."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    _FUZZ.write_corpus(corpus)

    root = str(Path(str(egress.__file__)).parents[1])
    done = subprocess.run(
        [sys.executable, str(_TARGET), f"-runs={_RUNS}", "-max_total_time=3", "-seed=1", str(corpus)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root},
        check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    assert "DONE" in done.stderr
