#!/usr/bin/env python3
"""`tarn serve` as the official Python client of OpenAI sees it: answers, streams, usage, exceptions, and
that its own retries apply no turn twice.

The client is installed once, into build/openai; without a package index this is skipped (status 77)."""

import base64
import http.server
import importlib.util
import math
import os
import subprocess
import sys
import threading

import e2e
from serving import Server

SKIPPED = 77
KEY = "sesame"


def run_with_client(source):
    """Starts this script again with a Python that has the client."""
    if importlib.util.find_spec("openai"):
        return
    folder = source / "build" / "openai"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    has_client = [python, "-c", "import openai"]
    if subprocess.run(has_client, capture_output=True, check=False).returncode != 0:
        install = [python, "-m", "pip", "install", "-q", "openai"]
        with_index = subprocess.run(install, capture_output=True, timeout=600, check=False)
        if with_index.returncode != 0:
            print("the openai client cannot be installed here: NOT TESTED")
            sys.exit(SKIPPED)
    os.execv(python, [str(python), *sys.argv])


class Forgetful(http.server.ThreadingHTTPServer):
    """Passes requests on, and keeps the first `drop` answers for itself."""

    def __init__(self, server):
        forgetful = self
        self.drop = 0
        self.seen = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):  # noqa: N802, the library's name
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
                answer = server.request("POST", self.path, body, **headers)
                forgetful.seen += 1
                self.close_connection = True
                if forgetful.drop > 0:
                    forgetful.drop -= 1
                    return
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name not in ("connection", "transfer-encoding", "date"):
                        self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.bytes)

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


def check_answers(suite, client):
    suite.expect([m.id for m in client.models.list()] == ["tiny-rwkv7"], "models")
    ask = {"model": "tiny-rwkv7", "prompt": "Hello", "max_tokens": 12, "seed": 1}
    whole = client.completions.create(**ask)
    suite.expect(whole.object == "text_completion" and whole.choices[0].finish_reason == "length",
                 f"completion: {whole}")
    suite.expect((whole.usage.prompt_tokens, whole.usage.completion_tokens) == (5, 12), "usage")
    chunks = list(client.completions.create(**ask, stream=True))
    suite.expect("".join(c.choices[0].text for c in chunks) == whole.choices[0].text, "stream")
    suite.expect(all(chunk.usage is None for chunk in chunks), "usage that nobody asked for")
    chunks = list(client.completions.create(**ask, stream=True,
                                            stream_options={"include_usage": True}))
    suite.expect(chunks[-1].usage.completion_tokens == 12 and chunks[-1].choices == [], "usage chunk")
    three = client.completions.create(**ask, n=3)
    suite.expect([c.index for c in three.choices] == [0, 1, 2], "n")
    suite.expect(three.choices[0].text == whole.choices[0].text, "the first of n")

    ask = {"model": "tiny-rwkv7", "messages": [{"role": "user", "content": "Hi"}],
           "max_completion_tokens": 12, "seed": 2}
    whole = client.chat.completions.create(**ask)
    suite.expect(whole.choices[0].message.role == "assistant", f"chat: {whole}")
    chunks = list(client.chat.completions.create(**ask, stream=True,
                                                 stream_options={"include_usage": True}))
    suite.expect(chunks[0].choices[0].delta.role == "assistant", "the first delta has no role")
    suite.expect({chunk.id for chunk in chunks} == {chunks[0].id}, "ids differ in a stream")
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    suite.expect(text == whole.choices[0].message.content, f"chat stream: {text!r}")
    suite.expect(chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason, "the end")
    suite.expect(chunks[-1].usage.total_tokens == whole.usage.total_tokens, "chat usage")


def check_log_probs(suite, client):
    ask = {"model": "tiny-rwkv7", "prompt": "Hello", "max_tokens": 40, "seed": 1, "logprobs": 3}
    choice = client.completions.create(**ask).choices[0]
    plain = client.completions.create(**ask | {"logprobs": None}).choices[0]
    suite.expect(plain.text == choice.text and plain.logprobs is None, "logprobs change the text")
    told = choice.logprobs
    suite.expect(len(told.tokens) == 40 and told.text_offset[0] == 0, f"logprobs: {told}")
    for token, own, top in zip(told.tokens, told.token_logprobs, told.top_logprobs):
        suite.expect(top[token] == own <= 0 and len(top) == 3 + (token not in list(top)[:3]),
                     f"the drawn token {token!r}: {own}, {top}")
        suite.expect(sorted(list(top.values())[:3], reverse=True) == list(top.values())[:3]
                     and sum(map(math.exp, top.values())) < 1 + 1e-9, f"no probabilities: {top}")
    chunks = [c.choices[0].logprobs for c in client.completions.create(**ask, stream=True)]
    chunks = [chunk for chunk in chunks if chunk is not None]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        streamed = [item for chunk in chunks for item in getattr(chunk, name)]
        suite.expect(streamed == getattr(told, name), f"streamed {name}: {streamed}")

    ask = {"model": "tiny-rwkv7", "messages": [{"role": "user", "content": "Hi"}], "seed": 2,
           "max_completion_tokens": 40, "logprobs": True, "top_logprobs": 2}
    choice = client.chat.completions.create(**ask).choices[0]
    content = choice.logprobs.content
    text = bytes(byte for entry in content for byte in entry.bytes).decode(errors="replace")
    suite.expect(content and text == choice.message.content, f"the tokens of a chat: {text!r}")
    suite.expect(all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content),
                 f"top_logprobs: {content}")
    chunks = client.chat.completions.create(**ask, stream=True)
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs
                for entry in chunk.choices[0].logprobs.content]
    suite.expect(streamed == content, f"streamed: {streamed}")


def refusal(kind, call):
    try:
        call()
    except kind as error:
        return error
    return None


def check_exceptions(suite, openai, client, server):
    complete = client.completions.create
    ask = {"model": "tiny-rwkv7", "prompt": "a", "max_tokens": 3}
    error = refusal(openai.BadRequestError, lambda: complete(**ask, logprobs=21))
    suite.expect(error is not None and error.param == "logprobs", f"logprobs: {error}")
    error = refusal(openai.BadRequestError, lambda: complete(**ask, temperature=-1))
    suite.expect(error is not None and "temperature" in error.message, f"temperature: {error}")
    error = refusal(openai.NotFoundError, lambda: complete(**ask | {"model": "gpt-4o"}))
    suite.expect(error is not None and error.code == "model_not_found", f"model: {error}")
    stranger = client.with_options(api_key="wrong")
    error = refusal(openai.AuthenticationError, lambda: stranger.completions.create(**ask))
    suite.expect(error is not None and error.code == "invalid_api_key", f"key: {error}")
    error = refusal(openai.UnprocessableEntityError, lambda: [
        client.post("/sessions", cast_to=object, body={"id": "u"}),
        complete(**ask, extra_body={"session": "u"}, extra_headers={"Idempotency-Key": "k"}),
        complete(**ask | {"prompt": "b"}, extra_body={"session": "u"},
                 extra_headers={"Idempotency-Key": "k"})])
    suite.expect(error is not None, "a key of another request")

    # The only place is taken, and so are the four of the queue.
    endless = ask | {"max_tokens": 1_000_000}
    running = complete(**endless, stream=True)
    next(iter(running))
    waiting = complete(**endless, n=4, stream=True)
    error = refusal(openai.RateLimitError,
                    lambda: client.with_options(max_retries=0).completions.create(**ask))
    suite.expect(error is not None and error.response.headers["retry-after"], f"full: {error}")
    threading.Timer(0.3, lambda: [running.close(), waiting.close()]).start()
    suite.expect(complete(**ask).usage.completion_tokens == 3, "a retry after 429")
    suite.expect(server.wait_for("tarn_turns_running", 0) is not None, "a closed stream runs on")


def check_retries(suite, openai, client, server):
    proxy = Forgetful(server)
    lossy = client.with_options(base_url=f"http://127.0.0.1:{proxy.server_port}/v1")
    ask = {"model": "tiny-rwkv7", "prompt": "a", "max_tokens": 5}

    def seq(session):
        return client.get(f"/sessions/{session}", cast_to=object)["seq"]

    client.post("/sessions", cast_to=object, body={"id": "keyed", "seed": 4})
    client.post("/sessions", cast_to=object, body={"id": "control", "seed": 4})
    control = client.completions.create(**ask, extra_body={"session": "control"})
    proxy.drop = 2
    answer = lossy.completions.create(**ask, extra_body={"session": "keyed"},
                                      extra_headers={"Idempotency-Key": "first"})
    suite.expect(proxy.seen == 3, f"the client asked {proxy.seen} times")
    suite.expect(answer.choices[0].text == control.choices[0].text, "a retry says other words")
    suite.expect(answer.tarn["replayed"] is True, f"{answer.tarn}")
    suite.expect(seq("keyed") == 2, f"a retried turn was applied {seq('keyed') - 1} times")

    proxy.drop, proxy.seen = 1, 0
    error = refusal(openai.APIStatusError, lambda: lossy.completions.create(
        **ask, extra_body={"session": "keyed", "if_seq": 2}))
    suite.expect(error is not None and error.status_code == 412, f"if_seq in a retry: {error}")
    suite.expect(proxy.seen == 2, f"a 412 was tried again: {proxy.seen}")
    suite.expect(seq("keyed") == 3, "if_seq let a turn through twice")
    proxy.shutdown()


def check_pictures(suite, openai):
    with Server(suite, suite.source / "models/mnist-linear") as server:
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none")
        ask = {"model": "mnist-linear", "prompt": "", "extra_body": {"seed": 1}}
        picture = client.images.generate(**ask)
        png = base64.b64decode(picture.data[0].b64_json)
        suite.expect(png.startswith(b"\x89PNG"), "no PNG")
        told = list(client.images.generate(**ask, stream=True))
        suite.expect(len(told) == 29, f"{len(told)} events of a picture of 28 rows")
        suite.expect(told[-1].type == "image_generation.completed"
                     and told[-1].b64_json == picture.data[0].b64_json, "the streamed picture")


def main():
    suite = e2e.Suite(__doc__)
    run_with_client(suite.source)
    import openai

    with Server(suite, suite.source / "models/tiny-rwkv7", "--max-running", "1", "--queue", "4",
                "--max-tokens", "1000000", TARN_API_KEY=KEY) as server:
        server.key = KEY
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=KEY)
        check_answers(suite, client)
        check_log_probs(suite, client)
        check_exceptions(suite, openai, client, server)
        check_retries(suite, openai, client, server)
    check_pictures(suite, openai)
    suite.finish()


if __name__ == "__main__":
    main()
