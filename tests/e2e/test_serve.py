#!/usr/bin/env python3
"""`tarn serve` as its clients see it: raw requests, streams, pictures, sessions over restarts and kills and
between servers, keys, limits, lost clients, signals."""

import base64
import contextlib
import resource
import signal
import socket
import threading
import time

import e2e
from serving import Server, events

SLOW = 20  # seconds that a busy machine may take; what would go on without the signal takes minutes


def check_requests(suite, server):
    answer = server.complete("Hello", 12, seed=1)
    suite.expect(answer.status == 200, f"completion: {answer}")
    control = answer.json()["choices"]
    suite.expect(answer.json()["usage"]["total_tokens"] == 17, f"usage: {answer}")
    suite.expect(len(answer.headers["x-request-id"]) > 0, "no X-Request-Id")
    suite.expect(server.get("/v1/models").json()["data"][0]["id"] == "tiny-rwkv7", "models")
    suite.expect(server.get("/readyz").status == 200, "readyz")
    bad = [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
         b"Content-Length: 2\r\nConnection: close\r\n\r\n{:", b"400"),
        (b"DELETE /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"405"),
        (b"GET /nowhere HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b"404"),
    ]
    for origin, status in (("https://evil.example", 403), ("null", 403), ("https://127.0.0.1:3000", 200)):
        answer = server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 2}, origin=origin)
        suite.expect(answer.status == status, f"from a page of {origin}: {answer}")
    suite.expect(server.request("POST", "/v1/sessions", origin="https://evil.example").status == 403, "foreign POST")
    suite.expect(server.get("/v1/models", origin="https://evil.example").status == 200, "foreign GET")
    for data, status in bad:
        received = server.raw(data)
        suite.expect(received.startswith(b"HTTP/1.1 " + status), f"{data[:60]!r}: {received[:80]!r}")
        suite.expect(b'{"error":{"message":' in received, f"{data[:60]!r}: no error body")
        again = server.complete("Hello", 12, seed=1).json()["choices"]
        suite.expect(again == control, f"{data[:60]!r} changed what comes next")
    suite.expect(server.post("/v1/completions", '{"prompt":"a"}', content_type="text/plain").status
                 == 415, "a form is taken")

    connection, response = server.stream("/v1/completions", {
        "prompt": "Hello", "max_tokens": 12, "seed": 1, "stream_options": {"include_usage": True}})
    suite.expect(response.getheader("content-type").startswith("text/event-stream"), "no SSE")
    told = events(response)
    connection.close()
    suite.expect(told[-1] == "[DONE]", f"the stream ends in {told[-1]}")
    text = "".join(chunk["choices"][0]["text"] for chunk in told[:-2])
    suite.expect(text == control[0]["text"], f"streamed {text!r}, wanted {control[0]['text']!r}")
    suite.expect(told[-2]["usage"]["completion_tokens"] == 12, f"usage: {told[-2]}")

    # Pipelined requests come back in order on one connection.
    two = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n" \
          b"Connection: close\r\n\r\n"
    received = server.raw(two)
    suite.expect(received.find(b'"status"') < received.find(b'"list"') != -1, f"{received!r}")


def check_lost_clients(suite, server):
    """A client that goes gives its place to the next one."""
    cancelled = 'tarn_turns_ended_total{reason="cancelled"}'
    before = server.metric(cancelled)
    endless = {"prompt": "x", "max_tokens": 1_000_000}
    connection, response = server.stream("/v1/completions", endless)
    suite.expect(response.readline().startswith(b"data: "), "no first event")
    begin = time.monotonic()
    response.close()
    connection.close()
    answer = server.complete("Hello", 2)  # waits for the only place
    seconds = time.monotonic() - begin
    suite.expect(answer.status == 200, f"after a lost client: {answer}")
    suite.expect(seconds < SLOW, f"the place was free after {seconds:.1f} s")
    suite.expect(server.metric(cancelled) == before + 1, "the turn was not cancelled")

    # Without a stream too, and while it waits in the queue.
    busy, response = server.stream("/v1/completions", endless)
    response.readline()
    waiting = socket.create_connection(("127.0.0.1", server.port))
    waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
                    b"Content-Length: 19\r\n\r\n" + b'{"max_tokens":9999}')
    suite.expect(server.wait_for("tarn_turns_waiting", 1) is not None, "nothing waits")
    full = server.complete("Hello")
    suite.expect(full.status == 429 and int(full.headers["retry-after"]) >= 1, f"full: {full}")
    suite.expect(server.get("/livez").status == 200, "a full queue is not alive")
    waiting.close()
    suite.expect(server.wait_for("tarn_turns_waiting", 0) is not None, "it still waits")
    response.close()
    busy.close()
    suite.expect(server.wait_for("tarn_turns_running", 0) is not None, "it still runs")


def turn(server, session, prompt, **fields):
    return server.complete(prompt, 8, session=session, **fields)


def text_of(answer):
    return answer.json()["choices"][0]["text"]


PROMPTS = ("Once upon", "", "", " a time", "")


def conversation(suite, model):
    """What a session says that was never interrupted."""
    with Server(suite, model) as server:
        server.post("/v1/sessions", {"id": "s", "seed": 5})
        return [text_of(turn(server, "s", prompt)) for prompt in PROMPTS]


def check_restarts(suite, model, wanted):
    """A session goes on over a stop and a kill, with the same words and nothing computed again."""
    store = f"dir:{suite.folder}/restarts"
    said = []
    owner = ("--store", store, "--owner", "one", "--max-tokens", "1000000")
    with Server(suite, model, *owner) as server:
        made = server.post("/v1/sessions", {"id": "s", "seed": 5})
        suite.expect(made.status == 201, f"create: {made}")
        said.append(text_of(turn(server, "s", PROMPTS[0])))
        suite.expect(server.stop() == 0, "SIGTERM: exit status")
    for prompt in PROMPTS[1:3]:
        with Server(suite, model, *owner) as server:
            answer = turn(server, "s", prompt)
            suite.expect(answer.status == 200, f"after a restart: {answer}")
            said.append(text_of(answer))
            tarn = answer.json()["tarn"]
            suite.expect(tarn["tokens_evaluated"] == 1, f"evaluated again: {tarn}")
            suite.expect(tarn["durability"] == "power" and tarn["saved"], f"saved: {tarn}")
            # Killed in a turn, which then never was.
            connection, response = server.stream("/v1/completions", {
                "prompt": "lost", "max_tokens": 1_000_000, "session": "s"})
            suite.expect(response.readline().startswith(b"data: "), "no first event")
            server.stop(signal.SIGKILL)
            connection.close()
    with Server(suite, model, *owner) as server:
        said += [text_of(turn(server, "s", prompt)) for prompt in PROMPTS[3:]]
        listed = server.get("/v1/sessions").json()["data"]
        suite.expect([s["seq"] for s in listed] == [6], f"list: {listed}")
    suite.expect(said == wanted, f"said {said}, wanted {wanted}")


def check_two_servers(suite, model, wanted):
    """One session on two servers of one store, in turns and at once."""
    store = ("--store", f"sqlite:{suite.folder}/two.db", "--lease-seconds", "5")
    with Server(suite, model, *store) as one, Server(suite, model, *store) as two:
        one.post("/v1/sessions", {"id": "s", "seed": 5})
        said = []
        for number, prompt in enumerate(PROMPTS):
            answer = turn((one, two)[number % 2], "s", prompt)
            said.append(text_of(answer) if answer.status == 200 else repr(answer))
        suite.expect(said == wanted, f"over two servers: {said}, wanted {wanted}")

        first = one.post("/v1/completions", {"prompt": "k", "session": "s", "if_seq": 6},
                         idempotency_key="once")
        again = two.post("/v1/completions", {"prompt": "k", "session": "s", "if_seq": 6},
                         idempotency_key="once")
        suite.expect(again.status == 200 and text_of(again) == text_of(first)
                     and again.json()["tarn"]["replayed"], f"a retry elsewhere: {again}")
        suite.expect(two.get("/v1/sessions/s").json()["seq"] == 7, "a retry acted twice")

        answers = []
        threads = [threading.Thread(target=lambda s=s: answers.append(turn(s, "s", "z", if_seq=7)))
                   for s in (one, two, one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = sorted(answer.status for answer in answers)
        suite.expect(statuses[0] == 200 and set(statuses[1:]) <= {409, 412}, f"a race: {statuses}")
        suite.expect(one.get("/v1/sessions/s").json()["seq"] == 8, "a race was won twice")


def check_sessions(suite, server):
    """Rollback, fork, pause and their refusals over HTTP."""
    server.post("/v1/sessions", {"id": "s", "seed": 5})
    first, second = turn(server, "s", "a"), turn(server, "s", "b")
    suite.expect(server.post("/v1/sessions/s/fork", {"seq": 2, "id": "t"}).status == 201, "fork")
    suite.expect(text_of(turn(server, "t", "b")) == text_of(second), "the fork says other words")
    suite.expect(server.post("/v1/sessions/s/rollback", {"seq": 2}).status == 200, "rollback")
    suite.expect(text_of(turn(server, "s", "b")) == text_of(second), "the rollback says other words")
    paused = server.post("/v1/sessions/s/pause").json()
    suite.expect(paused["resident"] is False, f"pause: {paused}")
    resumed = server.post("/v1/sessions/s/resume").json()
    suite.expect(resumed["resident"] is True and resumed["tokens_recomputed"] == 0,
                 f"resume: {resumed}")
    stale = turn(server, "s", "c", if_seq=first.json()["tarn"]["seq"])
    suite.expect(stale.status == 412 and stale.headers["x-should-retry"] == "false", f"{stale}")
    suite.expect(server.request("DELETE", "/v1/sessions/s").json()["deleted"], "delete")
    suite.expect(turn(server, "s", "").status == 404, "a deleted session answers")
    for _ in range(2):  # what was never saved holds nothing back
        server.post("/v1/sessions", {"id": "m", "save": "manual"})
        suite.expect(turn(server, "m", "a").json()["tarn"]["saved"] is False, "a manual turn was saved")
        suite.expect(server.request("DELETE", "/v1/sessions/m").status == 200, "delete unsaved")
    server.post("/v1/sessions", {"id": "m", "save": "manual", "ttl_seconds": 100})
    turn(server, "m", "a")
    shown = server.get("/v1/sessions/m").json()
    suite.expect((shown["unsaved"], shown["durability"], shown["ttl_seconds"]) == (True, "memory", 100),
                 f"an unsaved session: {shown}")
    twice = server.post("/v1/sessions", {"id": "m"})
    suite.expect(twice.status == 409 and twice.json()["error"]["code"] == "session_exists"
                 and twice.headers["x-should-retry"] == "false", f"a session that exists: {twice}")
    empty = server.post("/v1/completions", {"prompt": "k", "session": "t"}, idempotency_key="")
    suite.expect(empty.status == 400 and "idempotency_key" in empty.json()["error"]["message"],
                 f"an empty key: {empty}")


def check_lost_turns(suite, model):
    """A server that was stopped for longer than its lease lasts: what it alone knew is gone, and tells so."""
    store = ("--store", f"sqlite:{suite.folder}/lost.db", "--lease-seconds", "3")
    with Server(suite, model, *store) as one, Server(suite, model, *store) as two:
        for change in (lambda: two.post("/v1/sessions/s/rollback", {"seq": 1}),
                       lambda: two.request("DELETE", "/v1/sessions/s")):
            one.post("/v1/sessions", {"id": "s", "save": "manual"})
            turn(one, "s", "a")
            held = two.post("/v1/sessions", {"id": "s"})
            suite.expect(held.status == 409 and held.json()["error"]["code"] == "session_exists", f"{held}")
            one.process.send_signal(signal.SIGSTOP)
            time.sleep(4)
            changed = change()
            one.process.send_signal(signal.SIGCONT)
            suite.expect(changed.status == 200, f"after the lease: {changed}")
            time.sleep(2)  # time in which the first one would renew its lease
            again = (two.get("/v1/sessions/s").status == 200 or
                     two.post("/v1/sessions", {"id": "s"}).status == 201)
            suite.expect(again, "the session cannot be made anew")
            suite.expect(turn(two, "s", "b").status == 200, "the other server does not get the session")
            late = turn(one, "s", "c")
            suite.expect(late.status == 409 and late.json()["error"]["code"] == "session_changed"
                         and late.headers["x-should-retry"] == "false", f"lost turns: {late}")
            two.request("DELETE", "/v1/sessions/s")


def check_full_store(suite, model):
    """No room for a version: 507, and everything that needs none goes on."""
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    with Server(suite, model, "--store", f"dir:{suite.folder}/full", before=small_files) as server:
        control = server.complete("Hello", 8, seed=1).json()["choices"]
        made = server.post("/v1/sessions", {"id": "s"})
        suite.expect(made.status == 507, f"a full store: {made}")
        suite.expect(server.complete("Hello", 8, seed=1).json()["choices"] == control, "control")
        suite.expect(server.get("/readyz").status == 200, "a full store is not ready")


def check_keys(suite, model):
    keys = suite.write("keys", "alice:sesame\n# more\nopen-2\n")
    with Server(suite, model, "--api-key-file", keys, "--per-client", "3") as server:
        for path in ("/v1/models", "/metrics", "/v1/sessions"):
            suite.expect(server.get(path).status == 401, f"{path} needs no key")
        body = server.get("/v1/models").json()["error"]
        suite.expect(body["code"] == "invalid_api_key", f"401: {body}")
        suite.expect(server.get("/livez").status == 200, "livez needs a key")
        suite.expect(server.get("/v1/models", authorization="Bearer sesame").status == 200, "a key")
        suite.expect(server.get("/v1/models", authorization="Bearer Sesame").status == 401, "case")
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                held = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
                held.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
                held.recv(4096)
            refused = server.raw(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
            suite.expect(b" 503 " in refused[:20], f"a fourth connection: {refused[:100]!r}")
    with Server(suite, model, TARN_API_KEY="from-outside") as server:
        suite.expect(server.get("/v1/models").status == 401, "TARN_API_KEY is not read")


def check_pictures(suite):
    with Server(suite, suite.source / "models/mnist-linear") as server:
        body = {"prompt": "", "seed": 3, "prompt_pixels": [0] * 28 * 14}
        whole = server.post("/v1/images/generations", body)
        suite.expect(whole.status == 200, f"a picture: {whole}")
        connection, response = server.stream("/v1/images/generations", body)
        told = events(response)
        connection.close()
        rows = [event for event in told[:-2] if event["type"] == "image_generation.row"]
        suite.expect([row["row"] for row in rows] == list(range(14, 28)), f"{len(rows)} rows")
        suite.expect(all(len(base64.b64decode(row["b64_pixels"])) == 28 for row in rows), "width")
        suite.expect(told[-1] == "[DONE]", "no end")
        png = told[-2]["b64_json"]
        suite.expect(base64.b64decode(png).startswith(b"\x89PNG"), "no PNG")
        suite.expect(png == whole.json()["data"][0]["b64_json"], "stream and whole differ")
        # The same picture in two turns of a session.
        server.post("/v1/sessions", {"id": "p"})
        first = server.post("/v1/images/generations", body | {"session": "p", "rows": 7}).json()
        suite.expect(first["data"][0]["rows"] == 21 and not first["data"][0]["complete"], "7 rows")
        rest = server.post("/v1/images/generations", {"session": "p", "prompt": ""}).json()
        suite.expect(rest["data"][0]["complete"] and rest["data"][0]["first_row"] == 21,
                     f"the rest: {rest['data'][0].keys()}")
        suite.expect(rest["tarn"]["tokens_evaluated"] == 1, f"{rest['tarn']}")
        refused = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
        suite.expect(refused.status == 400, f"a chat with pixels: {refused}")


def check_drain(suite, model):
    """SIGTERM: what runs may end, what comes is told to go elsewhere."""
    endless = {"prompt": "x", "max_tokens": 1_000_000}
    limits = ("--max-tokens", "1000000", "--queue-tokens", "100000000", "--body-kib", "65536")
    with Server(suite, model, *limits, "--drain-seconds", "2") as server:
        server.post("/v1/sessions", {"id": "s", "seed": 5})
        connection, response = server.stream("/v1/completions", endless | {"session": "s"})
        suite.expect(response.readline().startswith(b"data: "), "no first event")
        begin = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        late = ready = None
        while time.monotonic() < begin + 1.5 and (ready is None or ready.status == 200):
            ready = server.get("/readyz")
            late = server.complete("Hello")
        suite.expect(late.status == 503 and "retry-after" in late.headers, f"late: {late}")
        suite.expect(b"shutting down" in ready.bytes, f"readyz in a drain: {ready}")
        told = events(response)
        connection.close()
        suite.expect("error" in told[-1], f"a cut stream ends in {told[-1]}")
        status = server.process.wait(20)
        seconds = time.monotonic() - begin
        suite.expect(status == 0, f"drained: exit status {status}")
        said = server.process.stderr.read()
        suite.expect("turns that were cut: 1, sessions that were saved: 0" in said, f"at the end: {said!r}")
        suite.expect(2 <= seconds < 2 + SLOW, f"a drain of 2 s took {seconds:.1f} s")

    # In the middle of a long prompt.
    with Server(suite, model, *limits, "--drain-seconds", "0") as server:
        client = threading.Thread(target=lambda: server.complete("x" * 18_000_000))
        client.start()
        suite.expect(server.wait_for("tarn_turns_running", 1, 20) is not None, "nothing runs")
        begin = time.monotonic()
        status = server.stop()
        seconds = time.monotonic() - begin
        suite.expect(status == 0 and seconds < SLOW, f"in a prompt: {status} after {seconds:.1f} s")
        client.join()

    with Server(suite, model, *limits, "--drain-seconds", "60") as server:
        connection, response = server.stream("/v1/completions", endless)
        response.readline()
        server.process.send_signal(signal.SIGTERM)
        while server.get("/readyz").status == 200:
            time.sleep(0.01)
        begin = time.monotonic()
        status = server.stop(signal.SIGINT)
        seconds = time.monotonic() - begin
        suite.expect(status == -signal.SIGINT and seconds < SLOW,
                     f"a second signal: {status} after {seconds:.1f} s")
        response.close()
        connection.close()


def check_default_store(suite, model):
    """Without --store sessions outlive the process in a database of the user's."""
    home = suite.folder / "state"
    for environment, file in (({"XDG_STATE_HOME": str(home / "xdg")}, "xdg/tarn/tiny-rwkv7.db"),
                              ({"STATE_DIRECTORY": str(home / "unit")}, "unit/tiny-rwkv7.db")):
        with Server(suite, model, **environment) as server:
            suite.expect(server.start["durability"] == "power", f"default store: {server.start}")
            made = server.post("/v1/sessions", {"id": "kept"})
            suite.expect(made.status in (200, 201), f"default store: {made}")
            suite.expect(server.stop() == 0, "default store: exit status")
        suite.expect((home / file).exists(), f"default store: no {file}")
        with Server(suite, model, **environment) as server:
            suite.expect(server.get("/v1/sessions/kept").status == 200, "default store: lost")
            suite.expect(server.start["store"] == f"sqlite:{home / file}", f"where: {server.start}")
    with Server(suite, model, "--name", "../owner/model", XDG_STATE_HOME=str(home)) as server:
        suite.expect(server.get("/v1/models/../owner/model").status == 200, "a name with slashes")
        suite.expect((home / "tarn/_._owner_model.db").exists(), f"its store: {server.start}")


def check_own_model(suite):
    """Without MODEL the program serves the one it carries, as it would serve the folder."""
    folder = suite.source / "models/text-bytes"
    with Server(suite, None) as server, Server(suite, folder, "--store", "memory:") as other:
        suite.expect(server.start["model"] == "text-bytes", f"own model: {server.start}")
        suite.expect(server.get("/v1/models").json()["data"][0]["id"] == "text-bytes", "own model: list")
        said = [one.complete("It was", 20, temperature=0) for one in (server, other)]
        suite.expect(text_of(said[0]) == text_of(said[1]) and len(text_of(said[0])) == 20
                     and said[0].json()["system_fingerprint"] == said[1].json()["system_fingerprint"],
                     f"own model: {said}")


def check_cors(suite, model):
    """Pages of the one origin may read every answer, also to requests that are refused unread."""
    origin = "https://pages.example"
    with Server(suite, model, "--cors", origin) as server:
        for status, answer in ((200, server.get("/livez")), (404, server.get("/nothing")),
                               (400, server.post("/v1/completions", "{", content_type="application/json"))):
            suite.expect(answer.status == status and answer.headers.get("access-control-allow-origin") == origin
                         and "Retry-After" in answer.headers.get("access-control-expose-headers", ""),
                         f"--cors: {answer} {answer.headers}")
        large = server.raw(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n").decode()
        suite.expect(large.startswith("HTTP/1.1 413 ") and f"\r\nAccess-Control-Allow-Origin: {origin}\r\n" in large,
                     f"--cors: {large}")
    with Server(suite, model) as server:
        suite.expect("access-control-allow-origin" not in server.get("/livez").headers, "no --cors")


def check_usage(suite, model):
    suite.refuse("no model", "serve", "nowhere", says=["nowhere"])
    suite.refuse("no model folder", "serve", model.parent, says=["no model folder", "models/"])
    suite.refuse("bad store", "serve", model, "--store", "ftp://u:secret@x", says=["memory:", '"ftp:'])
    suite.refuse("bad host", "serve", model, "--store", "memory:", "--host", "example.com",
                 says=["--host", "example.com"])
    for origin in ("not a url", "https://", "https://example.org/", "https://Example.org", "*",
                   "https://example.org:99999", "https://example.org:", "https://:80", "https://a:b:1",
                   "https://[::1"):
        suite.refuse("no origin", "serve", model, "--cors", origin, says=["--cors", origin, "https://"])
    suite.refuse("no keys", "serve", model, "--api-key-file", suite.write("none", "# none\n"),
                 says=["no key"])
    with Server(suite, model) as server:
        taken = suite.run("serve", model, "--store", "memory:", "--port", server.port)
        suite.expect(taken.returncode == 1 and str(server.port) in taken.stderr,
                     f"a port in use: {taken.returncode} {taken.stderr!r}")


def main():
    suite = e2e.Suite(__doc__)
    model = suite.source / "models/tiny-rwkv7"
    with Server(suite, model, "--max-running", "1", "--queue", "1", "--max-tokens",
                "1000000") as server:
        check_requests(suite, server)
        check_lost_clients(suite, server)
        check_sessions(suite, server)
        suite.expect(server.stop() == 0, "SIGTERM without work: exit status")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # servers that start under nohup ignore it
    with Server(suite, model) as server:
        suite.expect(server.stop(signal.SIGHUP) == 0, "SIGHUP: exit status")
    wanted = conversation(suite, model)
    check_restarts(suite, model, wanted)
    check_two_servers(suite, model, wanted)
    check_lost_turns(suite, model)
    check_full_store(suite, model)
    check_default_store(suite, model)
    check_keys(suite, model)
    check_pictures(suite)
    check_drain(suite, model)
    check_own_model(suite)
    check_cors(suite, model)
    check_usage(suite, model)
    suite.finish()


if __name__ == "__main__":
    main()
