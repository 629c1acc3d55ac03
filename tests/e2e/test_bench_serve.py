#!/usr/bin/env python3
"""`tarn bench serve` against servers that are right, wrong, full, or not there. No check depends on how
fast the machine is."""

import contextlib
import http.server
import itertools
import json
import resource
import signal
import subprocess
import threading
import time

import e2e
from serving import Server

SHORT = {"--streams": "4", "--prompt-tokens": "5", "--max-tokens": "6"}


def short(*arguments):
    """The arguments, and SHORT's where they say nothing."""
    return [*arguments, *(word for flag, value in SHORT.items() if flag not in arguments
                          for word in (flag, value))]


def bench(suite, url, *arguments, before=None):
    """(exit status, document or None, stderr)"""
    command = [suite.tarn, "bench", "serve", url, *short(*arguments), "--json"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                            timeout=120, check=False, preexec_fn=before)
    document = None
    with contextlib.suppress(json.JSONDecodeError):
        document = json.loads(result.stdout)
    return result.returncode, document, result.stderr


def check_right(suite):
    model = suite.source / "models/tiny-rwkv7"
    with Server(suite, model, "--per-client", "0") as server:
        url = server.start["url"]
        status, told, errors = bench(suite, url, "--requests", "40", "--idle", "100",
                                     "--io-threads", "2")
        suite.expect(status == 0, f"bench serve: exit {status}: {errors}")
        figures = {"model": "tiny-rwkv7", "streams": 4, "idle": 100, "idle_lost": 0, "requests": 40,
                   "wrong": 0, "errors": {}, "distinct_answers": 1, "sessions": 0,
                   "bytes_per_session": None, "inter_token_ms_with_prompts": None}
        for key, value in figures.items():
            suite.expect(told[key] == value, f"{key}: {told[key]}, wanted {value}")
        suite.expect(told["time_to_first_token_ms"]["count"] == 40, f"first tokens: {told}")
        for key in ("time_to_first_token_ms", "inter_token_ms"):
            spread = told[key]
            suite.expect(0 <= spread["p50"] <= spread["p99"] <= spread["max"], f"{key}: {spread}")
        # The server counts the same: one request went ahead of the forty.
        suite.expect(server.metric("tarn_generated_tokens_total") == 41 * 6, "tokens drawn")
        suite.expect(server.metric("tarn_prompt_tokens_total") >= 41 * 5, "tokens read")

        status, told, errors = bench(suite, url, "--seconds", "2", "--sessions", "--long-prompts",
                                     "20", "--long-prompt-tokens", "500")
        suite.expect(status == 0, f"with sessions: exit {status}: {errors}")
        suite.expect(told["sessions"] == 4 and told["distinct_answers"] == 1 and told["wrong"] == 0,
                     f"with sessions: {told}")
        suite.expect(told["bytes_per_session"] > 100_000, f"memory: {told['bytes_per_session']}")
        suite.expect(told["long_prompts"] > 0 and told["long_prompt_first_token_ms"]["count"] ==
                     told["long_prompts"], f"long prompts: {told}")
        suite.expect(server.get("/v1/sessions").json()["data"] == [], "sessions are left behind")

        text = suite.run("bench", "serve", url, *short("--requests", "4"))
        suite.expect(text.returncode == 0 and "to the first token" in text.stdout,
                     f"text: {text.stdout!r} {text.stderr!r}")


def check_pixels(suite):
    """Token numbers are counted one by one, and a session that is full makes room for another one."""
    with Server(suite, suite.source / "models/mnist-linear") as server:
        status, told, errors = bench(suite, server.start["url"] + "/v1", "--requests", "12",
                                     "--streams", "2", "--sessions", "--prompt-tokens", "250",
                                     "--max-tokens", "4")
        suite.expect(status == 0 and told["requests"] == 12 and told["distinct_answers"] == 1,
                     f"pixels: exit {status}: {told} {errors}")
        suite.expect(told["sessions"] >= 4, f"sessions of 3 turns each: {told['sessions']}")
        status, _, errors = bench(suite, server.start["url"], "--max-tokens", "800")
        suite.expect(status == 2 and "784" in errors, f"a sequence too long: {status} {errors}")
        status, _, errors = bench(suite, server.start["url"], "--model", "other")
        suite.expect(status == 2 and "other" in errors, f"another model: {status} {errors}")


def check_waiting(suite):
    """Streams that wait in the server's queue are counted until the last of them is answered."""
    model = suite.source / "models/tiny-rwkv7"
    with Server(suite, model, "--per-client", "0", "--max-running", "2", "--store", "memory:") as server:
        status, told, errors = bench(suite, server.start["url"], "--streams", "40", "--requests", "40")
        suite.expect(status == 0 and told["requests"] == 40 and told["errors"] == {},
                     f"waiting: exit {status}: {told} {errors}")
        suite.expect(told["seconds"] * 1e3 > told["time_to_first_token_ms"]["max"]
                     and abs(told["requests_per_second"] * told["seconds"] - 40) < 0.01,
                     f"waiting: {told}")


def check_limits(suite):
    model = suite.source / "models/tiny-rwkv7"
    keys = suite.write("keys", "one:first-key\ntwo:second-key\n")
    with Server(suite, model, "--connections", "20", "--api-key-file", keys) as server:
        url = server.start["url"]
        status, _, errors = bench(suite, url)
        suite.expect(status == 1 and "401" in errors, f"without a key: {status} {errors}")
        status, told, errors = bench(suite, url, "--requests", "8", "--api-key-file", keys)
        suite.expect(status == 0 and told["requests"] == 8, f"with keys: {status} {errors}")
        status, _, errors = bench(suite, url, "--idle", "50", "--api-key-file", keys)
        suite.expect(status == 2 and "of 50 idle connections" in errors and "503" in errors,
                     f"a full server: {status} {errors}")
        status, _, errors = bench(suite, url, "--idle", "1000", "--api-key-file", keys, before=lambda:
                                  resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)))
        suite.expect(status == 2 and "the limit is 256" in errors, f"descriptors: {status} {errors}")
        port = server.port
    status, _, errors = bench(suite, f"http://127.0.0.1:{port}")
    suite.expect(status == 1 and "refused" in errors, f"no server: {status} {errors}")
    with Server(suite, model, "--max-running", "1", "--queue", "1") as server:
        status, told, errors = bench(suite, server.start["url"], "--requests", "60", "--streams",
                                     "12", "--max-tokens", "200")
        suite.expect(status == 0 and told["errors"].get("429", 0) > 0 and told["wrong"] == 0,
                     f"a full queue: {status} {told and told['errors']} {errors}")
        suite.expect(told["requests"] + told["errors"]["429"] == 60, f"60 requests: {told}")
    suite.refuse("no URL", "bench", "serve", "127.0.0.1:80", says=["http://"])
    suite.refuse("TLS", "bench", "serve", "https://127.0.0.1", says=["TLS"])


class Wrong(http.server.BaseHTTPRequestHandler):
    """Answers right the first time, and afterwards as its server says."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            self.answer(200, b'{"data":[{"id":"m"}]}')
        else:
            self.answer(404, b"{}")

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = next(self.server.count)
        drawn, text, done, status = asked["max_tokens"], "abc", True, 200
        if number > 0:
            fault = self.server.fault
            drawn -= fault == "usage"
            done = fault != "done"
            status = 500 if fault == "status" else 200
            text = f"abc{number}" if fault == "different" else text
        usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": drawn,
                 "total_tokens": len(asked["prompt"]) + drawn}
        events = [{"choices": [{"text": text, "finish_reason": None}]},
                  {"choices": [{"text": "", "finish_reason": "length"}]},
                  {"choices": [], "usage": usage}]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
        self.answer(status, (body + ("data: [DONE]\n\n" if done else "")).encode(),
                    "text/event-stream")


def check_wrong(suite):
    faults = {None: "", "usage": "tokens drawn", "done": "[DONE]", "status": "status 500",
              "different": "different answers"}
    for fault, says in faults.items():
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Wrong) as server:
            server.fault, server.count, server.daemon_threads = fault, itertools.count(), True
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            status, told, errors = bench(suite, f"http://127.0.0.1:{server.server_port}",
                                         "--requests", "8")
            server.shutdown()
            thread.join()
        suite.expect(status == (1 if fault else 0) and says in errors,
                     f"a server with {fault}: exit {status}: {errors!r}")
        suite.expect(told is not None and told["model"] == "m", f"{fault}: no figures: {errors!r}")


def check_stop(suite):
    with Server(suite, suite.source / "models/tiny-rwkv7") as server:
        command = [suite.tarn, "bench", "serve", server.start["url"], "--seconds", "600"]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        suite.expect(server.wait_for("tarn_turns_running", 32, 30) is not None or
                     server.metric("tarn_generated_tokens_total") > 0, "no load")
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        suite.expect(process.returncode == 1 and "stopped" in errors and time.monotonic() - begin < 5,
                     f"Ctrl-C: {process.returncode} {errors!r}")


def main():
    suite = e2e.Suite(__doc__)
    check_right(suite)
    check_pixels(suite)
    check_waiting(suite)
    check_limits(suite)
    check_wrong(suite)
    check_stop(suite)
    suite.finish()


if __name__ == "__main__":
    main()
