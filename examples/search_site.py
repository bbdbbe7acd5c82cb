"""Search a published site in a headless Chromium, and print the passages that the page shows.

    python examples/search_site.py CHROMIUM URL QUERY

It speaks the DevTools protocol over pipes, so nothing has to be installed but Chromium.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.parse
from typing import Any, BinaryIO

SHOWN = """new Promise((resolve) => {
  const look = () => {
    const hits = [...document.querySelectorAll("#hits li")].map((hit) =>
      `${Number(hit.dataset.score).toFixed(3)}  ${hit.dataset.id}`);
    const problem = document.querySelector("#problem:not([hidden])");
    const notes = [...document.querySelectorAll("#notes p")].map((note) => `(${note.textContent})`);
    if (hits.length || problem) resolve([...notes, ...hits, problem?.textContent ?? ""].join("\\n").trim());
    else setTimeout(look, 50);
  };
  look();
})"""


class DevTools:
    """The two pipes of a browser: commands in, answers out, each ended by a zero byte."""

    def __init__(self, commands: BinaryIO, answers: BinaryIO) -> None:
        self._commands, self._answers = commands, answers
        self._number = 0

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Return the answer of a command, and skip events before it."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        self._commands.write(json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        self._commands.flush()
        while True:
            content = bytearray()
            while (byte := self._answers.read(1)) != b"\0":
                if not byte:
                    raise SystemExit("Chromium ended early.")
                content += byte
            answer: dict[str, Any] = json.loads(content)
            if answer.get("id") == self._number:
                return answer.get("result", {})  # type: ignore[no-any-return]


def search(chromium: str, address: str) -> str:
    """Return what the page at this address shows as soon as it has results or a problem."""
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []

    def connect() -> None:
        # Chromium reads descriptor 3 and writes descriptor 4. The copies avoid a clash with the pipes themselves.
        reader, writer = os.dup(from_us), os.dup(to_us)
        os.dup2(reader, 3)
        os.dup2(writer, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}", *sandbox]
        browser = subprocess.Popen(  # noqa: S603 - the caller names the program
            [chromium, *options, "about:blank"],
            preexec_fn=connect,  # noqa: PLW1509 - there are no threads
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(to_us)
        try:
            with os.fdopen(to_browser, "wb") as commands, os.fdopen(from_browser, "rb") as answers:
                tools = DevTools(commands, answers)
                target = tools.call("Target.createTarget", url=address)["targetId"]
                session = tools.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
                options_of_call = {"awaitPromise": True, "returnByValue": True}
                while True:  # until the page is there: before, the promise ends with the empty page
                    done = tools.call("Runtime.evaluate", session, expression=SHOWN, **options_of_call)
                    if "value" in done.get("result", {}):
                        return str(done["result"]["value"])
        finally:
            browser.kill()
            browser.wait()


if __name__ == "__main__":
    chromium_path, site_url, query = sys.argv[1:]
    shown = search(chromium_path, f"{site_url}#{urllib.parse.urlencode({'q': query})}")
    print(shown)
    sys.exit(0 if shown else 1)
