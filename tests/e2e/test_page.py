#!/usr/bin/env python3
"""The page of `tarn serve` in a real Chromium: drawing, completing, writing, chatting, sessions, keys,
keyboard alone, a screen reader's view. With --screenshots FOLDER it also takes the documents' pictures."""

import json
import pathlib
import sys

import e2e
from browser import Visit, axe_violations, need_browser, screenshot, unnamed
from serving import Server

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
HTML = "<img src=x onerror=\"document.title='owned'\"><b>bold</b>"


def check_files(suite, server):
    folder = suite.source / "src/serve/page/static"
    for path in sorted(folder.iterdir()):
        url = "/" if path.name == "index.html" else f"/page/{path.name}"
        answer = server.get(url)
        suite.expect(answer.status == 200 and answer.bytes == path.read_bytes(), f"{url}: {answer}")
        headers = answer.headers
        suite.expect(headers["content-type"].startswith(TYPES[path.suffix]), f"{url}: {headers}")
        suite.expect(headers["content-security-policy"].startswith("default-src 'self'; "),
                     f"{url}: {headers}")
        suite.expect(headers["x-content-type-options"] == "nosniff", f"{url}: {headers}")
        suite.expect(headers["cache-control"] == "no-cache", f"{url}: {headers}")
        tag = headers["etag"]
        for known, status in ((tag, 304), (f'"x", W/{tag}', 304), ('"x"', 200)):
            again = server.get(url, if_none_match=known)
            suite.expect(again.status == status and again.headers["etag"] == tag
                         and (again.bytes == b"") == (status == 304), f"{url} if {known}: {again}")
    head = server.request("HEAD", "/")
    suite.expect(head.status == 200 and head.bytes == b"", f"HEAD: {head}")
    posted = server.post("/", {})
    suite.expect(posted.status == 405 and posted.headers["allow"] == "GET", f"POST: {posted}")
    suite.expect(server.get("/page/../etc").status == 404, "a path that is no file's")


def check_drawing(suite, visit):
    """The pixels on the page are the API's."""
    page = visit.open()
    page.fill("#seed", "7")
    page.fill("#digits-count", "3")
    page.select_option("#pace", "0")
    page.click("#digits-form .main")
    visit.said("3 pictures are drawn")
    canvases = page.locator("#digits-gallery canvas")
    wanted = visit.server.post("/v1/images/generations", {"n": 3, "seed": 7}).json()["data"]
    for i in range(3):
        suite.expect(visit.levels(canvases.nth(i)) == visit.png_levels(wanted[i]["b64_json"]),
                     f"picture {i} is not what the API draws")
    suite.expect(canvases.first.get_attribute("aria-label") == "1: all rows", "the picture's name")

    page.select_option("#pace", "400")
    page.click("#digits-form .main")
    canvas = page.locator("#digits-gallery canvas").first
    counts = []
    while len(counts) < 400 and (not counts or counts[-1] < 784):
        counts.append(visit.alpha(canvas))
        page.wait_for_timeout(10)
    suite.expect(counts == sorted(counts) and any(count % 28 for count in counts)
                 and len(set(counts)) > 5, f"not drawn pixel by pixel: {counts}")


def check_pad(suite, visit):
    page = visit.page
    page.select_option("#pace", "0")
    page.fill("#pad-count", "2")
    pad = page.locator("#pad-canvas")
    pad.scroll_into_view_if_needed()
    box = pad.bounding_box()

    def at(x, y):
        return box["x"] + box["width"] * x, box["y"] + box["height"] * y
    page.mouse.move(*at(0.35, 0.28))
    page.mouse.down()
    page.mouse.move(*at(0.62, 0.28), steps=4)
    page.mouse.move(*at(0.55, 0.70), steps=4)  # below the line nothing is inked
    page.mouse.up()
    bodies = []
    page.on("request", lambda request: bodies.append(request.post_data)
            if request.url.endswith("/generations") else None)
    page.click("#pad-form .main")
    visit.said("2 pictures are drawn")
    body = json.loads(bodies[-1])
    wanted = visit.server.post("/v1/images/generations", body | {"stream": False}).json()["data"]
    ink = visit.page.evaluate("text => [...atob(text)].map(c => c.charCodeAt(0))",
                              body["prompt_pixels"])
    suite.expect(len(ink) == 14 * 28 and max(ink) == 255 and ink[8 * 28 + 13] > 200,
                 "the stroke is not in the prompt")
    for i in range(2):
        shown = visit.levels(page.locator("#pad-gallery canvas").nth(i))
        suite.expect(shown[:14 * 28] == ink, f"completion {i} does not begin with the drawing")
        suite.expect(shown == visit.png_levels(wanted[i]["b64_json"]), f"completion {i}")
    page.click("#pad-clear")
    visit.said("The drawing area is empty")
    pad.focus()
    for key in ("Space", "Shift+ArrowRight", "Shift+ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    visit.said("column 17, row 9")
    page.fill("#pad-count", "1")
    page.click("#pad-form .main")
    visit.said("1 picture is drawn")
    ink = visit.levels(page.locator("#pad-gallery canvas").first)
    suite.expect(min(ink[7 * 28 + 14:7 * 28 + 17]) > 200 and ink[7 * 28 + 20] == 0,
                 "the keys did not draw")


def check_picture_session(suite, visit):
    """Half a digit, paused, resumed, completed, rolled back, forked, deleted."""
    page, server = visit.page, visit.server
    page.fill("#seed", "")
    visit.new_session("half")
    page.fill("#digits-rows", "14")
    page.click("#digits-form .main")
    visit.said("1 picture is drawn")
    page.wait_for_function("() => document.querySelector('#digits-gallery .caption').textContent === 'half: 14 of 28 rows'")
    top = visit.levels(page.locator("#digits-gallery canvas"))[:14 * 28]
    half_seq = server.get("/v1/sessions/half").json()["seq"]
    visit.press("half", "Pause")
    visit.said("Session half is paused")
    suite.expect(not server.get("/v1/sessions/half").json()["resident"], "not paused")
    suite.expect("paused" in visit.fact("half", "Where"), "the card does not say that it is paused")
    visit.press("half", "Resume")
    visit.said("Session half is resumed: in memory, with 0 tokens computed again")
    suite.expect(server.get("/v1/sessions/half").json()["resident"], "not resumed")
    page.click("#digits-form .main")
    visit.said("1 picture is drawn")
    suite.expect(server.get("/v1/sessions/half").json()["token_count"] == 784, "not completed")
    whole = visit.levels(page.locator("#digits-gallery canvas"))
    suite.expect(whole[:14 * 28] == top, "the second half changed the first")
    page.click("#digits-form .main")
    page.wait_for_selector("#digits .error:has-text('is complete')")

    visit.card("half").get_by_label("Version of half").select_option(str(half_seq))
    visit.press("half", "Fork")
    visit.said("Forked version")
    page.wait_for_function("() => document.querySelectorAll('li.session').length === 2")
    fork = page.locator("li.session").first.get_attribute("data-id")
    suite.expect(visit.fact(fork, "Tokens") == "392", f"the fork has {visit.fact(fork, 'Tokens')}")
    visit.press("half", "Roll back")
    visit.said("Session half is what it was")
    suite.expect(server.get("/v1/sessions/half").json()["token_count"] == 392, "not rolled back")
    suite.expect(visit.levels(page.locator("#digits-gallery canvas"))[:14 * 28] == top
                 and visit.alpha(page.locator("#digits-gallery canvas")) == 392,
                 "the picture was not rolled back")
    visit.press(fork, "Use")
    suite.expect(visit.alpha(page.locator("#digits-gallery canvas")) == 392, "the fork's picture")
    visit.press(fork, "Delete")
    page.get_by_role("button", name="Keep it").click()
    suite.expect(server.get(f"/v1/sessions/{fork}").status == 200, "deleted without consent")
    visit.press(fork, "Delete")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    visit.said(f"Session {fork} is deleted")
    suite.expect(server.get(f"/v1/sessions/{fork}").status == 404, "not deleted")
    suite.expect(page.locator("li.session").count() == 1, "the card of a deleted session")
    # 2 · 4 layers · 128 channels · 4 bytes · 392 tokens.
    page.wait_for_selector("#charts .summary:has-text('67.8 kB, at any length')"
                           ":has-text('392 tokens'):has-text('1.61 MB')")


def transcript(page):
    return page.evaluate("() => [...document.querySelectorAll('#transcript .piece')]"
                         ".map(piece => piece.lastChild.textContent)")


def complete(visit, prompt):
    """One turn through the page; returns the transcript's pieces."""
    visit.page.fill("#prompt", prompt)
    visit.page.click("#write-form .main")
    visit.said("The model wrote")
    visit.page.wait_for_selector("#write-form .stop:disabled")
    return transcript(visit.page)


def check_writing(suite, visit):
    page, server = visit.open(), visit.server
    page.fill("#seed", "1")
    page.fill("#max_tokens", "12")
    wanted = server.complete("Hello", 12, seed=1).json()["choices"][0]["text"]
    suite.expect(complete(visit, "Hello") == ["Hello", wanted], f"completion: {transcript(page)}")
    page.fill("#max_tokens", "1000000")
    page.click("#write-form .main")
    suite.expect(server.wait_for("tarn_turns_running", 1) is not None, "no turn runs")
    page.click("#write-form .stop")
    visit.said("Stopped.")
    suite.expect(server.wait_for("tarn_turns_running", 0) is not None, "the turn was not stopped")
    page.fill("#max_tokens", "12")

    page.check("input[value=chat]")
    bodies = []
    page.on("request", lambda request: bodies.append(json.loads(request.post_data))
            if request.url.endswith("/chat/completions") else None)
    said = complete(visit, "Who are you?")
    suite.expect(len(said) == 2 and said[0] == "Who are you?", f"chat: {said}")
    said = complete(visit, "And I?")
    roles = [message["role"] for message in bodies[-1]["messages"]]
    suite.expect(roles in (["user", "assistant", "user"], ["user", "user"]), f"messages: {roles}")
    suite.expect([m["content"] for m in bodies[-1]["messages"] if m["role"] == "user"]
                 == ["Who are you?", "And I?"] and len(said) == 4, f"chat: {said}")


def check_text_session(suite, visit):
    page, server = visit.page, visit.server
    page.check("input[value=complete]")
    visit.new_session("story")
    first = complete(visit, "Once upon a time")
    suite.expect(page.input_value("#prompt") == "", "the prompt stays")
    seq = server.get("/v1/sessions/story").json()["seq"]
    second = complete(visit, "")
    suite.expect(second[:2] == first and len(second) == 3, f"the session's text: {second}")
    tokens = server.get("/v1/sessions/story").json()["token_count"]
    visit.press("story", "Pause")
    visit.said("Session story is paused")
    third = complete(visit, " and")
    suite.expect(third[:3] == second and len(third) == 5, f"after the pause: {third}")
    visit.card("story").get_by_label("Version of story").select_option(str(seq))
    visit.press("story", "Roll back")
    visit.said("Session story is what it was")
    suite.expect(transcript(page) == first, f"rolled back: {transcript(page)}")
    count = server.get("/v1/sessions/story").json()["token_count"]
    suite.expect(0 < count < tokens, f"rolled back to {count} tokens")

    # An answer that was cut off is ended before the next message.
    bodies = []
    page.on("request", lambda request: bodies.append(json.loads(request.post_data))
            if request.url.endswith("/chat/completions") else None)
    page.check("input[value=chat]")
    said = complete(visit, "Hi")
    suite.expect(said[:2] == first and said[2] == "Hi", f"chat in the session: {said}")
    suite.expect(bodies[0]["messages"] == [{"role": "assistant", "content": ""},
                                           {"role": "user", "content": "Hi"}], f"{bodies}")
    page.check("input[value=complete]")
    shown, count = transcript(page), server.get("/v1/sessions/story").json()["token_count"]
    page.fill("#max_tokens", "1000000")
    page.click("#write-form .main")
    suite.expect(server.wait_for("tarn_turns_running", 1) is not None, "no turn runs")
    page.click("#write-form .stop")
    visit.said("Stopped: the session is what it was")
    page.wait_for_selector("#write-form .stop:disabled")
    suite.expect(transcript(page) == shown, "the stopped turn is still shown")
    page.reload()
    page.wait_for_selector("li.session")
    page.fill("#max_tokens", "12")
    page.select_option("#session", "story")
    page.wait_for_selector(f"#transcript:has-text('This session held {count} tokens')")
    said = complete(visit, " more")
    suite.expect(len(said) == 2 and said[0] == " more", f"after the reload: {said}")
    page.wait_for_selector(f"#transcript:has-text('This session held {count} tokens')")


def check_inert(suite, visit):
    """What a model writes is text, and errors are words."""
    page = visit.open()
    visit.allowed += ["status of 429", "status of 503", "ERR_FAILED"]
    chunk = {"choices": [{"index": 0, "text": HTML, "finish_reason": "length"}],
             "usage": {"completion_tokens": 3}}
    page.route("**/v1/completions", lambda route: route.fulfill(
        content_type="text/event-stream", body=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"))
    suite.expect(complete(visit, HTML) == [HTML, HTML], f"markup: {transcript(page)}")
    suite.expect(page.locator("#transcript").locator("img, b").count() == 0
                 and page.title() != "owned", "markup became elements")
    answer = {}
    page.route("**/v1/completions", lambda route: route.fulfill(
        status=answer["status"], headers=answer["headers"], content_type="application/json",
        body=json.dumps({"error": {"message": HTML, "code": answer["code"]}})))
    cases = [
        (429, {"Retry-After": "3"}, "overloaded", ["The server is full.", "Try again in 3 s."]),
        (503, {"X-Request-Id": "abc"}, "store_failed", ["cannot reach its sessions", "abc"]),
    ]
    for status, headers, code, words in cases:
        answer |= {"status": status, "headers": headers, "code": code}
        page.click("#write-form .main")
        for word in words + [HTML]:
            page.wait_for_function("word => document.querySelector('#write .error').textContent"
                                   ".includes(word)", arg=word)
    page.route("**/v1/completions", lambda route: route.abort())
    page.click("#write-form .main")
    page.wait_for_selector("#write .error:has-text('The server cannot be reached.')")


def check_growing(suite, visit):
    """The page does not call a cache that grows a state of fixed size."""
    page = visit.open()
    visit.new_session("s")
    page.fill("#digits-rows", "14")
    page.click("#digits-form .main")
    visit.said("1 picture is drawn")
    page.wait_for_selector("#charts .summary:has-text('The longest session takes 1.61 MB.')")
    words = page.inner_text("#sessions") + page.inner_text("#live")
    suite.expect("grows with every token" in words and "fixed size" not in words
                 and "at any length" not in words, f"a cache is called a state of fixed size: {words}")


def check_key(suite, visit):
    page = visit.page
    visit.allowed.append("status of 401")
    page.goto(visit.origin)
    page.wait_for_selector("#access .error:has-text('wants an API key')")
    for key, selector in (("wrong", "#access .error:has-text('does not take this one')"),
                          ("secret", "#digits:visible")):
        page.fill("#key", key)
        page.keyboard.press("Enter")
        page.wait_for_selector(selector)
    page.wait_for_selector("#server-line:has-text('ready')")
    stored = page.evaluate("() => [sessionStorage.length, localStorage.length, document.cookie]")
    suite.expect(stored == [1, 0, ""], f"the key is kept in {stored}")
    page.reload()
    page.wait_for_selector("#digits:visible")
    page.click("#forget-key")
    page.wait_for_selector("#digits", state="hidden")
    page.wait_for_selector("#access .error:has-text('wants an API key')")


def check_keyboard(suite, visit):
    page, server = visit.open(), visit.server
    page.keyboard.press("Tab")
    suite.expect(page.evaluate("() => document.activeElement.className") == "skip", "no skip link")
    page.keyboard.press("Enter")
    visit.tab_to("#digits-form .main")
    page.keyboard.press("Enter")
    visit.said("8 pictures are drawn")
    visit.tab_to("#pad-canvas")
    page.keyboard.press("Space")
    visit.said("ink")
    visit.tab_to("#pad-form .main")
    page.keyboard.press("Enter")
    visit.said("4 pictures are drawn")
    visit.tab_to("#new-id")
    page.keyboard.type("keys")
    page.keyboard.press("Enter")
    visit.said("The session keys is new")
    visit.tab_to("#digits-form .main", back=True)
    page.keyboard.press("Enter")
    visit.said("1 picture is drawn")

    def button(label):
        return f"li[data-id=keys] button[data-action='{label}']"
    for label, words in (("Pause", "Session keys is paused"), ("Pause", "Session keys is resumed"),
                         ("Fork", "Forked version"), ("Roll back", "Session keys is what it was")):
        if words != "Session keys is resumed":  # the focus stays where it was
            visit.tab_to(button(label))
        page.keyboard.press("Enter")
        visit.said(words)
    visit.tab_to(button("Delete"), back=True)
    page.keyboard.press("Enter")
    visit.tab_to("dialog button[value=yes]")
    page.keyboard.press("Enter")
    visit.said("Session keys is deleted")
    suite.expect(server.get("/v1/sessions/keys").status == 404, "not deleted")
    focused = page.evaluate("() => document.activeElement.id")
    suite.expect(focused == "sessions-title", f"after deleting the focus is at {focused!r}")


def check_access(suite, visit, what):
    page = visit.page
    missing, found = unnamed(page)
    suite.expect(not missing, f"{what}: without a name: {missing}")
    suite.expect({"banner", "main", "navigation", "contentinfo", "status", "alert"} <= set(found),
                 f"{what}: landmarks and live regions: {sorted(set(found))}")
    violations = axe_violations(page)
    if violations is None:
        print("axe NOT RUN: axe-playwright-python is not installed")
    for violation in violations or []:
        suite.expect(False, f"{what}: {violation}")
    wide = page.evaluate("() => document.documentElement.scrollWidth - innerWidth")
    suite.expect(wide <= 0, f"{what}: {wide} pixels wider than the window")


def check_phone(suite, visit):
    """Touch, and pictures without motion."""
    page = visit.open()
    page.locator("#pad-canvas").scroll_into_view_if_needed()
    box = page.locator("#pad-canvas").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 4)
    page.fill("#pad-count", "1")
    page.select_option("#pace", "100")
    page.click("#pad-form .main")
    visit.said("1 picture is drawn")
    canvas = page.locator("#pad-gallery canvas")
    suite.expect(visit.alpha(canvas) == 784, "with reduced motion the picture still moves")
    suite.expect(visit.levels(canvas)[7 * 28 + 14] > 200, "touching did not draw")


def show(visit, kind):
    """Something to see on the page."""
    page = visit.open()
    page.select_option("#pace", "0") if kind == "image" else page.fill("#temperature", "0.6")
    if kind == "image":
        page.fill("#seed", "3")
        page.click("#digits-form .main")
        visit.said("8 pictures are drawn")
        page.click("[data-stroke=three]")
        page.click("#pad-form .main")
        visit.said("4 pictures are drawn")
    else:
        page.fill("#max_tokens", "300")
        visit.new_session(f"tale-{visit.server.metric('tarn_generated_tokens_total'):.0f}")
        page.fill("#prompt", "Once upon a time")
        page.click("#write-form .main")
        visit.said("The model wrote")
    page.wait_for_timeout(2500)
    return page


def look(suite, browser, server, kind, folder):
    """Widths, colours and what a screen reader gets; pictures for the documents into `folder`."""
    for width, viewport in (("desktop", DESKTOP), ("phone", PHONE)):
        for scheme in ("light", "dark"):
            with Visit(suite, browser, server, viewport=viewport, color_scheme=scheme) as visit:
                page = show(visit, kind)
                check_access(suite, visit, f"{kind}, {width}, {scheme}")
                if folder:
                    screenshot(page, folder / f"page-{kind}-{width}-{scheme}.png",
                               width == "desktop")


def main():
    folder = None
    if "--screenshots" in sys.argv:
        at = sys.argv.index("--screenshots")
        folder = pathlib.Path(sys.argv[at + 1]).resolve()
    arguments = list(sys.argv)
    if folder:
        del sys.argv[at:at + 2]
    suite = e2e.Suite(__doc__)
    sys.argv = arguments
    chromium = need_browser(suite.tarn.parent)
    from playwright.sync_api import sync_playwright  # pylint: disable=import-outside-toplevel
    digits, text = suite.source / "models/mnist-linear", suite.source / "models/text-bytes"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with Server(suite, digits, "--store", f"dir:{suite.folder}/digits") as server:
            check_files(suite, server)
            with Visit(suite, browser, server) as visit:
                check_drawing(suite, visit)
                check_pad(suite, visit)
                check_picture_session(suite, visit)
            with Visit(suite, browser, server) as visit:
                check_keyboard(suite, visit)
            with Visit(suite, browser, server, viewport=PHONE, has_touch=True,
                       reduced_motion="reduce") as visit:
                check_phone(suite, visit)
            look(suite, browser, server, "image", folder)
        with Server(suite, text, "--store", f"sqlite:{suite.folder}/text.db",
                    "--max-tokens", "1000000") as server:
            with Visit(suite, browser, server) as visit:
                check_writing(suite, visit)
                check_text_session(suite, visit)
            with Visit(suite, browser, server) as visit:
                check_inert(suite, visit)
            look(suite, browser, server, "text", folder)
        with Server(suite, suite.source / "models/mnist-softmax") as server:
            with Visit(suite, browser, server) as visit:
                check_growing(suite, visit)
        with Server(suite, digits, TARN_API_KEY="secret") as server:
            with Visit(suite, browser, server) as visit:
                check_key(suite, visit)
        browser.close()
    suite.finish()


if __name__ == "__main__":
    main()
