"""Headless Chromium for the tests, driven by the Chrome DevTools Protocol over a WebSocket.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome-headless-shell")
_SECONDS = 600
_CHOSEN = "[...document.querySelectorAll('select[data-key]')].filter(one => one.value).map(one => one.dataset.key)"
"""The filters of the page in which something is chosen."""


def find() -> str | None:
    """The browser's path: $CHROMIUM, or the first that is installed."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `errors` are console errors and uncaught exceptions, `requests` addresses that the page asked for."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last = 0
        self._shown: tuple[Path, int] | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """A command's result. Raises RuntimeError for what the browser refuses, TimeoutError after ten minutes."""
        self._last += 1
        self._socket.send(json.dumps({"id": self._last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=_SECONDS))
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def look(self, width: int, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Be a window of that size, for a reader who prefers that colour scheme."""
        if self._shown is not None and self._shown[1] != width:
            self._shown = None
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def show(self, file: Path, width: int, **picks: str) -> None:
        """The file in a light window of that width, with nothing else chosen; loaded only where it is not there yet."""
        self.look(width)
        if self._shown == (file, width):
            self.errors.clear()
            picks = dict.fromkeys(self.evaluate(_CHOSEN), "All") | picks
        else:
            self.open(file)
            self._shown = file, width
        self.choose(**picks)

    def open(self, file: Path, scripts: bool = True) -> None:
        """Load the file and wait until its charts are drawn."""
        self._shown = None
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
        if not picks:
            return
        self.evaluate(
            f"""(() => {{
              let select;
              for (const [key, text] of Object.entries({json.dumps(picks)})) {{
                select = document.querySelector(`select[data-key="${{key}}"]`);
                select.value = [...select.options].find(option => option.text === text).value;
              }}
              document.body.dataset.state = 'chosen';
              select.dispatchEvent(new Event('change'));
            }})()"""
        )
        self.wait("document.body.dataset.state === 'drawn'")

    def picture(self, path: Path, whole: bool = True) -> None:
        """A PNG of the page, all of it or what is in the window."""
        taken = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **(self._whole() if whole else {}))
        path.write_bytes(base64.b64decode(taken["data"]))

    def _whole(self) -> dict[str, Any]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self, path: Path) -> None:
        """The page as it would be printed on A4."""
        made = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(made["data"]))


@contextmanager
def browser(program: str) -> Iterator[Page]:
    """A tab of a browser that is started for it, and ended."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
        process = subprocess.Popen(
            [program, *flags, *quiet, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            # A browser that is busy need not answer pings.
            with connect(_tab(Path(profile), process), max_size=None, ping_interval=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(timeout=_SECONDS)


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the first tab's WebSocket, once the browser has said which port it took."""
    end = time.monotonic() + _SECONDS
    told = profile / "DevToolsActivePort"
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the browser ended at once, with {process.returncode}")
        if told.exists() and (lines := told.read_text().splitlines()):
            with urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=_SECONDS) as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0]["webSocketDebuggerUrl"])
        time.sleep(0.05)
    raise TimeoutError("the browser did not say which port it listens on")


@pytest.fixture(scope="session")
def tab() -> Iterator[Page]:
    """One tab for all tests; what it noted before is forgotten when a page is opened."""
    program = find()
    if program is None:
        pytest.skip("no Chromium is installed (apt-get install chromium), and $CHROMIUM names none")
    with browser(program) as page:
        yield page
