"""Drive a real Chromium over the DevTools protocol through a pipe: no open port, no driver to install."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import threading
from concurrent.futures import Future

from backstay.testing.waiting import eventually

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: Disables background features of the browser; no host name resolves off this machine.
OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--window-size=1400,900",
)

#: Returns the centre of an element that has not moved for two frames and is not covered, else null. Afterwards
#: `clicked_` is whether a click hit the element or its replacement.
AIM = """(async () => {
    const find = () => %s, frame = () => new Promise(requestAnimationFrame);
    const box = () => { const at = find()?.getBoundingClientRect(); return at && [at.x, at.y, at.width, at.height]; };
    find()?.scrollIntoView({block: "nearest"});
    const before = box();
    await frame();
    await frame();
    const now = box();
    if (!before || String(now) !== String(before)) return null;
    const [x, y] = [now[0] + now[2] / 2, now[1] + now[3] / 2];
    if (!find().contains(document.elementFromPoint(x, y))) return null;
    window.clicked_ = false;
    const aimed = find();
    const onClick = event => { window.clicked_ = [aimed, find()].some(one => one?.contains(event.target)); };
    window.addEventListener("click", onClick, {capture: true, once: true});
    return [x, y];
})()"""


def chromium():
    """Return the path of Chromium, or None."""
    return os.environ.get("BACKSTAY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser process, until `close`."""

    def __init__(self, program, folder):
        to_read, self._to_write = os.pipe()
        self._to_hear, to_say = os.pipe()
        # High numbers, so that they do not collide with the shell's 3 and 4.
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (to_read, to_say)]
        words = [program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{passed[0]} 4>&{passed[1]} {passed[0]}<&- {passed[1]}>&-', *words],
            pass_fds=passed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (to_read, to_say, *passed):
            os.close(fd)
        self._ids = itertools.count(1)
        self._answers: dict[int, Future] = {}
        self._pages: dict[str, Page] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        with os.fdopen(self._to_hear, "rb") as source:
            rest = b""
            while piece := source.raw.read(1 << 16):
                *messages, rest = (rest + piece).split(b"\0")
                for message in map(json.loads, messages):
                    self._sort(message)
        for answer in self._answers.values():
            answer.cancel()

    def _sort(self, message):
        if "id" in message:
            self._answers.pop(message["id"]).set_result(message)
        elif (page := self._pages.get(message.get("sessionId"))) is not None:
            page.happened(message["method"], message["params"])

    def call(self, method, session=None, /, **params):
        number = next(self._ids)
        answer = self._answers[number] = Future()
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._to_write, json.dumps(message).encode() + b"\0")
        found = answer.result(60)
        assert "error" not in found, found
        return found["result"]

    def page(self, *, scheme="light", width=1400, height=900):
        """Open a new page in a browser context of its own."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session, target)
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.set_color_scheme(scheme)
        return page

    def close(self):
        if self.process.poll() is None:
            number = next(self._ids)
            self._answers[number] = Future()
            os.write(self._to_write, json.dumps({"id": number, "method": "Browser.close"}).encode() + b"\0")
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._to_write)
        self._reader.join(10)


class Page:
    """One page, with its requests, its console errors, and mouse and keyboard input."""

    def __init__(self, browser, session, target):
        self._browser = browser
        self._session = session
        self._target = target
        self.requests = []
        self.errors = []

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def happened(self, method, params):
        match method:
            case "Network.requestWillBeSent":
                self.requests.append(params["request"])
            case "Runtime.exceptionThrown":
                self.errors.append(params["exceptionDetails"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(params["args"])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"])
            case "Audits.issueAdded" if "contentSecurityPolicy" in str(params["issue"]["details"]):
                self.errors.append(params["issue"])

    def set_color_scheme(self, scheme):
        """Emulate the colour scheme "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    @property
    def text(self):
        return self.evaluate("document.body.innerText")

    def waits_for(self, expression, within=60):
        """Wait until a JavaScript expression is true."""
        found = eventually(lambda: self.evaluate(f"Boolean({expression})"), within)
        assert found, f"{expression}\n{self.text}\n{self.errors}"

    def shows(self, selector, text="", within=60):
        self.waits_for(f"{find(selector, text)}", within)

    def click(self, selector, text=""):
        """Click an element with the mouse once it is at rest and not covered. The layout may still change, so the page
        checks which element received the click, and a miss is repeated.
        """
        self.shows(selector, text)
        assert eventually(lambda: self._hit(find(selector, text)), 60), f"{selector} {text}: could not be clicked"

    def _hit(self, found):
        place = self.evaluate(AIM % found)
        if place is None:
            return False
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)
        return self.evaluate("window.clicked_")

    def press(self, key, code=0, text=""):
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def write(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)


def find(selector, text=""):
    """Return JavaScript for the first element of a selector that contains a text."""
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})]"
        f".find(one => one.textContent.includes({json.dumps(text)}))"
    )
