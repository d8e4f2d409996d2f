"""A page in a real browser that is watched: what must not happen is a failure of any test."""

import contextlib
import os
import shutil
from urllib.parse import urlsplit

from playwright.sync_api import expect, sync_playwright

LAPTOP = {"width": 1366, "height": 768}
# Long, for a machine that has other things to do; nothing waits when it is there.
expect.set_options(timeout=30_000)

_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) => violations.push(event.violatedDirective));
"""


@contextlib.contextmanager
def chromium():
    """Debian's browser, as the tests' target installs it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "no chromium: `make test-view` says how to get it"
    # A sandbox inside of a container needs what root there does not have.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


class Visitor:
    """Opens addresses of the viewer, and writes down what a user should never see."""

    def __init__(self, context, port):
        self.root = f"http://127.0.0.1:{port}"
        self.context = context
        self.problems = []
        self.expected = ()
        """Parts of problems that a test provokes."""
        context.add_init_script(_WATCH)
        context.set_default_timeout(30_000)
        self.page = self.new_page()

    def new_page(self):
        page = self.context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("dialog", self._on_dialog)
        page.on("request", self._on_request)
        return page

    def _on_console(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_dialog(self, dialog):
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request):
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob") and f"{url.scheme}://{url.netloc}" != self.root:
            self.problems.append(f"asked elsewhere: {request.url}")
        if request.method != "GET":
            self.problems.append(f"{request.method} {request.url}")

    def open(self, place=""):
        """Go to what stands after `#`; the page is always loaded anew."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.root}/#/{place}")
        return self.page

    def at(self, selector, **more):
        return self.page.locator(selector, **more)

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)

    def check(self):
        """Nothing went wrong on any page."""
        for page in self.context.pages:
            if page.url.startswith(self.root):
                self.problems += [f"policy: {name}" for name in page.evaluate("violations")]
        bad = [p for p in self.problems if not any(part in p for part in self.expected)]
        assert not bad, "\n".join(bad)
