"""A real Chromium that opens the page and records every unexpected event."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Dialog, Page, sync_playwright

EXECUTABLE = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DESKTOP = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

_WATCH = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""

_LATENCY = """
() => {
  const waiting = (window.waitingKeystrokes = []);
  const samples = (window.keystrokes = []);
  const [field, list] = [document.getElementById("q"), document.getElementById("hits")];
  let pressedAt = 0;
  field.addEventListener("beforeinput", (event) => { pressedAt = event.timeStamp; }, true);
  field.addEventListener("input", () => {
    const query = field.value.trim();
    // A blank at the end asks for nothing new: what is painted is the result.
    if (query && (waiting.length || query !== list.dataset.for)) waiting.push({ at: pressedAt, query });
  }, true);
  new MutationObserver(() => {
    const answered = waiting.slice(0, waiting.findLastIndex((each) => each.query === list.dataset.for) + 1);
    // The frame that this change is part of, and then: when it is on the screen.
    requestAnimationFrame(() => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => {
        for (const each of answered) {
          if (!waiting.includes(each)) continue;
          waiting.splice(waiting.indexOf(each), 1);
          samples.push(performance.now() - each.at);
        }
      };
      port2.postMessage(0);
    });
  }).observe(list, { attributes: true, attributeFilter: ["data-for"] });
}
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, chromium_sandbox=os.geteuid() != 0)
        yield browser
        browser.close()


class Viewer:
    """A viewer that opens pages of one server, each in a separate browser context."""

    def __init__(self, browser: Browser, address: str) -> None:
        self._browser = browser
        self.address = address

    @contextlib.contextmanager
    def page(self, hash_: str = "", *, allowed: tuple[str, ...] = (), **context: Any) -> Iterator[Page]:
        """Yield an open page.

        Fail if it logs anything not allowed, sends a request to another host, or opens a dialog.
        """
        faults: list[str] = []
        options = {"viewport": DESKTOP, "reduced_motion": "reduce", **context}
        with contextlib.closing(self._browser.new_context(**options)) as own:
            own.set_default_timeout(15_000)
            own.add_init_script(_WATCH)
            page = own.new_page()
            page.on("console", lambda message: _note(faults, message, allowed))
            page.on("pageerror", lambda error: faults.append(f"error: {error}"))
            page.on("dialog", lambda dialog: _dismiss(faults, dialog))
            page.on("popup", lambda popup: faults.append(f"popup: {popup.url}"))
            page.on("request", lambda request: self._check(faults, request.url))
            page.goto(f"{self.address}/{hash_}")
            page.locator("#main h1").first.wait_for(state="attached")
            yield page
            assert faults == []

    def _check(self, faults: list[str], url: str) -> None:
        if not url.startswith(f"{self.address}/"):
            faults.append(f"asked for {url}")


def _dismiss(faults: list[str], dialog: Dialog) -> None:
    faults.append(f"dialog: {dialog.message}")
    dialog.dismiss()


def _note(faults: list[str], message: Any, allowed: tuple[str, ...]) -> None:
    if message.type in {"error", "warning"} and not any(each in message.text for each in allowed):
        faults.append(f"{message.type}: {message.text}")


def keep_screenshot(page: Page, name: str) -> None:
    """Save a screenshot in the folder PAIR_ARTEFACTS, if it is set."""
    folder = os.environ.get("PAIR_ARTEFACTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")


def keystroke_latencies(page: Page, texts: list[str], *, pause_ms: int = 120) -> list[float]:
    """Return the milliseconds from each keystroke until the results for it, or for a later one, are painted."""
    page.evaluate(_LATENCY)
    for text in texts:
        page.fill("#q", "")
        page.wait_for_function("() => document.getElementById('hits').dataset.for === ''")
        page.focus("#q")
        page.keyboard.type(text, delay=pause_ms)
        page.wait_for_function("text => document.getElementById('hits').dataset.for === text", arg=text.strip())
        page.wait_for_function("() => window.waitingKeystrokes.length === 0")
    found: list[float] = page.evaluate("window.keystrokes")
    return found
