"""A real browser at the server's page, and what must hold whatever is done there: no request leaves
the server, nothing goes wrong in the console."""

import contextlib
import os
import pathlib
import shutil
import sys

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
NOT_TESTED = "page NOT TESTED"


def need_browser(build):
    """The browser's path, with playwright importable; else says why not and ends the program. A venv
    page-venv beside or in the build folder is used when playwright is not installed elsewhere."""
    path = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if path is None:
        print(f"{NOT_TESTED}: Chromium is not installed")
        sys.exit(0)
    try:
        import playwright.sync_api  # noqa: F401, pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        for folder in (build, build.parent):
            python = folder / "page-venv" / "bin" / "python"
            if python.exists() and pathlib.Path(sys.prefix) != python.parent.parent:
                os.execv(python, [str(python), *sys.argv])
        print(f"{NOT_TESTED}: playwright is not installed (make test-page installs it)")
        sys.exit(0)
    return path


class Visit:
    """One browser context at one server."""

    def __init__(self, suite, browser, server, **context):
        self.suite = suite
        self.server = server
        self.origin = f"http://127.0.0.1:{server.port}"
        # Console messages that a test brings about; reading canvases back is the tests' doing alone.
        self.allowed = ["willReadFrequently"]
        self.troubles = []
        self.context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | context))
        self.context.on("request", self.on_request)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self.on_console)
        self.page.on("pageerror", lambda error: self.troubles.append(f"exception: {error}"))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            with contextlib.suppress(Exception):
                print("the page said:", self.page.inner_text("body")[-1500:], self.troubles)
        self.context.close()
        for trouble in self.troubles:
            self.suite.expect(any(word in trouble for word in self.allowed), trouble)
        self.suite.expect(True, "")

    def on_request(self, request):
        if not request.url.startswith(self.origin + "/"):
            self.troubles.append(f"a request to {request.url}")

    def on_console(self, message):
        if message.type in ("error", "warning"):
            self.troubles.append(f"console: {message.type}: {message.text}")

    def open(self):
        self.page.goto(self.origin + "/")
        self.page.wait_for_function("() => document.title !== 'Tarn'")
        self.page.wait_for_function("() => document.querySelector('#server-line').textContent !== ''")
        return self.page

    def said(self, words):
        """Waits until a screen reader is told something with these words."""
        self.page.wait_for_function(
            "words => document.querySelector('#announcer').textContent.includes(words)", arg=words)

    def card(self, session):
        return self.page.locator(f"li.session[data-id='{session}']")

    def fact(self, session, name):
        row = self.card(session).locator("dl > div").filter(has=self.page.locator(f"dt:text-is('{name}')"))
        return row.locator("dd").inner_text()

    def press(self, session, button):
        self.card(session).get_by_role("button", name=f"{button} {session}", exact=True).click()

    def new_session(self, name):
        self.page.fill("#new-id", name)
        self.page.get_by_role("button", name="New session").click()
        self.said(f"The session {name} is new")

    def alpha(self, canvas):
        """Pixels that a picture's canvas shows."""
        return canvas.evaluate("""canvas => {
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return data.filter((value, i) => i % 4 === 3 && value > 0).length; }""")

    def levels(self, canvas):
        """Red values of a canvas, row by row."""
        return canvas.evaluate("""canvas => {
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            return [...data.filter((_, i) => i % 4 === 0)]; }""")

    def png_levels(self, text):
        """The same of a PNG file in base64."""
        return self.page.evaluate("""async text => {
            const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
            const image = await createImageBitmap(new Blob([bytes], {type: 'image/png'}));
            const canvas = new OffscreenCanvas(image.width, image.height);
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            const data = context.getImageData(0, 0, image.width, image.height).data;
            return [...data.filter((_, i) => i % 4 === 0)]; }""", text)

    def tab_to(self, selector, back=False):
        """Moves the focus with the Tab key alone; the element must show that it has it."""
        for _ in range(150):
            self.page.keyboard.press("Shift+Tab" if back else "Tab")
            if self.page.evaluate("s => document.activeElement.matches(s)", selector):
                outline = self.page.evaluate(
                    "() => getComputedStyle(document.activeElement).outlineStyle")
                self.suite.expect(outline != "none", f"{selector}: the focus cannot be seen")
                return True
        self.suite.expect(False, f"{selector} cannot be reached with the Tab key")
        return False


def screenshot(page, path, whole):
    """A PNG file of the page; of few colours where Pillow is there to choose them."""
    page.evaluate("""() => {
        document.activeElement.blur();
        scrollTo({top: 0, behavior: 'instant'}); }""")
    page.screenshot(path=path, full_page=whole)
    with contextlib.suppress(ImportError):
        from PIL import Image  # pylint: disable=import-outside-toplevel
        with Image.open(path) as image:
            few = image.convert("RGB").quantize(
                96, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(path, optimize=True)


def unnamed(page):
    """Roles of what the accessibility tree holds for people to use and gives no name."""
    used = {"button", "link", "textbox", "combobox", "spinbutton", "slider", "radio", "checkbox",
            "application", "image", "dialog", "figure", "region", "listbox"}
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    value = lambda node, key: node.get(key, {}).get("value", "")  # noqa: E731
    found = [value(node, "role") for node in nodes if not node.get("ignored")]
    missing = [value(node, "role") for node in nodes
               if not node.get("ignored") and value(node, "role") in used and not value(node, "name")]
    return missing, found


def axe_violations(page):
    """What axe-core finds, or None where it is not installed."""
    try:
        from axe_playwright_python.sync_playwright import Axe  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None
    found = Axe().run(page).response["violations"]
    return [f"{rule['id']}: {rule['help']}: "
            f"{[node['html'][:120] for node in rule['nodes']][:3]}" for rule in found]
