"""The review page in headless Chromium: hostile words stay words, and a run is approved by keyboard."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import runtime_pack
from runtime_pack.audit import AuditLog

WHERE = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
LACKS = [name for name, path in WHERE.items() if path is None]
LACKS += [] if importlib.util.find_spec("selenium") else ["selenium"]
pytestmark = [
    pytest.mark.loopback,
    pytest.mark.browser,
    pytest.mark.skipif(
        settings.get_current_profile_name() == "quick",
        reason="the page is the same under every interpreter, and was driven under another one",
    ),
    pytest.mark.skipif(
        bool(LACKS), reason=f"no browser to drive: {', '.join(LACKS)} not installed"
    ),
]
ROOT = Path(runtime_pack.__file__).parents[1]
COMMAND = (sys.executable, "-m", "runtime_pack.cli")
FLAGS = (
    "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
    "disable-background-networking", "disable-component-update", "disable-dev-shm-usage",
    "window-size=1280,900",
)  # fmt: skip
SECONDS = 120


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, hostile: Any) -> Path:
    """A state folder of `ask`, whose run waits for a person, and a log of hostile words."""
    folder = tmp_path_factory.mktemp("browser") / "state"
    words = ("ask", "what is a coroutine", "--approve", "ask", "--state-dir", str(folder))
    done = subprocess.run(
        (*COMMAND, *words),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        check=False,
    )
    assert 3 == done.returncode
    with AuditLog(folder / "logs" / "b.jsonl") as log:
        log.append(hostile)
    return folder


@pytest.fixture(scope="module")
def url(state: Path) -> Iterator[str]:
    """The address that `runtime-pack review` prints."""
    words = ("review", "--json", "--by", "ann", "--state-dir", str(state))
    with subprocess.Popen(
        (*COMMAND, *words), stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"])
        process.terminate()
    assert 0 == process.returncode


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, url: str) -> Iterator[Any]:
    """The browser, at the page."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(WHERE["chromium"])
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=str(WHERE["chromedriver"]))
    driven = webdriver.Chrome(options=options, service=service)
    driven.get(url)
    yield driven
    driven.quit()


def until(driver: Any, script: str, *given: Any) -> Any:
    """What the script answers, once that is something."""
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(driver, SECONDS, poll_frequency=0.05)
    return wait.until(lambda d: d.execute_script(script, *given))


def go(driver: Any, view: str) -> str:
    """Another view, once it is drawn; its text."""
    driver.execute_script(
        "document.getElementById('main').setAttribute('aria-busy', 'true');"
        "location.hash = arguments[0] === location.hash ? '#logs' : arguments[0];"
        "location.hash = arguments[0]",
        view,
    )
    idle = "const m = document.getElementById('main'); return m.getAttribute('aria-busy') === 'false' && m"
    return str(until(driver, idle).text)


def press(driver: Any, *keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(driver).send_keys(*keys).perform()


def test_hostile_words_stay_words_in_every_view(driver: Any, words: str) -> None:
    """Nothing of them becomes an element, a script or a turn of direction; what is unseen is spelled."""
    from urllib.parse import urlencode

    (row,) = driver.execute_async_script(
        "const done = arguments[1];"
        "fetch('/api/events?host=*img*', {headers: {Authorization: 'Bearer ' + sessionStorage.getItem('runtime-pack-token')}})"
        ".then((a) => a.json()).then((b) => done(b.rows))",
        None,
    )
    spelled = words
    for sign in "\u202e\u200b\x1b\x00\x07\x85\u2028":
        spelled = spelled.replace(sign, f"U+{ord(sign):04X}")
    views = {
        "#runs": spelled,
        f"#run?{urlencode({'id': words})}": spelled,
        "#denials": spelled,
        "#events": spelled,
        f"#event?id={row['id']}": "<img src=x onerror=",
    }
    for view, wanted in views.items():
        assert wanted in go(driver, view), view
        assert [] == driver.execute_script(
            "return [...document.querySelectorAll('img, iframe, object, embed, svg, base, link:not([rel=stylesheet], [rel=icon]), body script')].map((e) => e.outerHTML)"
        )
        assert "owned" != driver.title
        assert None is driver.execute_script(
            r"return /[\u202a-\u202e\u2066-\u2069\u200b\u0000\u001b]/u.exec(document.documentElement.outerHTML)"
        )


def test_the_token_is_not_kept_in_the_address(driver: Any) -> None:
    """It is taken out at once, and no request but ours carried it: none went anywhere else."""
    address, entries, referrer = driver.execute_script(
        "return [location.href, performance.getEntriesByType('resource').map((e) => e.name), document.referrer]"
    )

    origin = driver.execute_script("return location.origin")
    assert ("token" not in address, "") == (True, referrer)
    assert all(name.startswith(f"{origin}/") and "token" not in name for name in entries)
    assert [] == [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]


def test_what_is_written_is_followed(
    driver: Any, state: Path, more_events: Callable[..., Any]
) -> None:
    """A denial that comes while the page is open stands there without being asked for."""
    go(driver, "#denials")
    with AuditLog(state / "logs" / "c.jsonl") as log:
        log.append(more_events("just-now.example"))

    until(driver, "return document.getElementById('main').textContent.includes('just-now.example')")
    assert "live" == driver.find_element("id", "live").text
    until(
        driver,
        "return /^log: (verified|open end|chained)/.test(document.getElementById('verify').textContent)",
    )


def test_a_waiting_call_is_approved_by_keyboard_and_the_run_goes_on(driver: Any) -> None:
    """Tab to the button, read the dialog, Enter: the run is taken up by a process of its own."""
    from selenium.webdriver.common.keys import Keys

    assert "web:read" in go(driver, "#approvals")
    label = None
    for _ in range(60):
        press(driver, Keys.TAB)
        label = driver.execute_script("return document.activeElement.getAttribute('aria-label')")
        if label == "Approve web:read":
            break
    assert "Approve web:read" == label
    press(driver, Keys.ENTER)
    until(driver, "return document.getElementById('ask').open")
    assert "url" in driver.find_element("css selector", "#ask pre").text
    focused = "return document.activeElement.getAttribute('id')"
    assert "reason" == driver.execute_script(focused)
    press(driver, "it is the manual", Keys.ENTER)
    told = until(
        driver,
        "const j = document.getElementById('job'); return j && j.textContent.startsWith('taken up') && j.textContent",
    )
    assert told in {"taken up: completed", "taken up: waits again"}
