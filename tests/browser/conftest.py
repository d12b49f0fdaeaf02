"""Headless Chromium for the tests, driven by the Chrome DevTools Protocol over a WebSocket.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
FLAGS += ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
_SECONDS = 600


class Page:
    """One tab. `errors` are console errors and uncaught exceptions, `requests` addresses that the page asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._last = socket, 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result. Raises RuntimeError for what the browser refuses, TimeoutError after ten minutes."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while (message := json.loads(self._socket.recv(timeout=_SECONDS))).get("id") != self._last:
            told = message.get("params", {})
            match message.get("method"):
                case "Runtime.exceptionThrown":
                    self.errors.append(json.dumps(told["exceptionDetails"]))
                case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                    self.errors.append(json.dumps(told["args"]))
                case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                    self.errors.append(told["entry"]["text"])
                case "Network.requestWillBeSent":
                    self.requests.append(told["request"]["url"])
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def look(self, width: int, dark: bool = False, media: str = "screen") -> None:
        """Be a window of that width, for a reader who prefers that colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, file: Path, width: int, scripts: bool = True) -> None:
        """Load the file in a light window, and wait until its charts are drawn."""
        self.look(width)
        self.errors.clear()
        self.requests.clear()
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call("Page.navigate", url=file.resolve().as_uri())
        if scripts:
            self.wait("document.body?.dataset.state === 'drawn'")

    def wait(self, condition: str) -> None:
        """Until the JavaScript `condition` holds. Raises TimeoutError with what the console said."""
        end = time.monotonic() + _SECONDS
        while not self.evaluate(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise TimeoutError(f"{condition} never held; errors: {self.errors}")
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise's included."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def choose(self, **picks: str) -> None:
        """Pick an option of each filter and wait until the charts are drawn again."""
        self.evaluate(
            f"""(() => {{
              let select;
              for (const [key, text] of Object.entries({json.dumps(picks)})) {{
                select = document.querySelector(`select[data-key="${{key}}"]`);
                select.value = [...select.options].find(option => option.text === text).value;
              }}
              document.body.dataset.state = "";
              select.dispatchEvent(new Event("change"));
            }})()"""
        )
        self.wait("document.body.dataset.state === 'drawn'")


@pytest.fixture(scope="session")
def tab() -> Iterator[Page]:
    """One tab, for all tests, of a browser that is started for it, and ended: $CHROMIUM, or one that is installed."""
    program = os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium is installed (apt-get install chromium), and $CHROMIUM names none")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [program, *FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            told, end = Path(profile) / "DevToolsActivePort", time.monotonic() + _SECONDS
            while not (told.exists() and told.read_text()):
                assert process.poll() is None and time.monotonic() < end, "the browser did not say its port"
                time.sleep(0.05)
            with urlopen(f"http://127.0.0.1:{told.read_text().split()[0]}/json/list", timeout=_SECONDS) as answer:
                address = next(tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page")
            # A browser that is busy need not answer pings.
            with connect(address, max_size=None, ping_interval=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(timeout=_SECONDS)
