#!/usr/bin/env python3
"""The example of docs/operations.md as it stands there: nginx ends TLS before two servers that share one
PostgreSQL. Only its paths, ports and the name of the certificate are replaced.

Without nginx, openssl or PostgreSQL this is skipped (status 77)."""

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import time

import databases
import e2e
from serving import Answer, Server, events

SKIPPED = 77


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


def replaced(text, old, new):
    if old not in text:
        sys.exit(f"docs/operations.md: the nginx example has no {old!r}")
    return text.replace(old, new)


def make_config(suite, folder, port, servers):
    example = re.search(r"```nginx\n(.*?)```", (suite.source / "docs/operations.md").read_text(), re.S).group(1)
    for documented, server in zip((8081, 8082), servers):
        example = replaced(example, f"127.0.0.1:{documented}", f"127.0.0.1:{server.port}")
    example = replaced(example, "listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
    for name in ("tarn.crt", "tarn.key"):
        example = replaced(example, f"/etc/ssl/{name}", str(folder / name))
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                    "/CN=tarn.example", "-keyout", folder / "tarn.key", "-out", folder / "tarn.crt"],
                   check=True, capture_output=True)
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in
                        ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    path = folder / "nginx.conf"
    path.write_text(f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\n"
                    "events {}\n"
                    f"http {{ access_log off; {temporary}\n{example}}}\n")
    return path


class Proxy:
    """Requests over TLS."""

    def __init__(self, port, key):
        self.port, self.key = port, key
        self.context = ssl.create_default_context()
        self.context.check_hostname = False
        self.context.verify_mode = ssl.CERT_NONE

    def open(self, method, path, body=None, **headers):
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        headers |= {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection, connection.getresponse()

    def ask(self, method, path, body=None, **headers):
        connection, response = self.open(method, path, body, **headers)
        with contextlib.closing(connection):
            return Answer(response)

    def turn(self, prompt, if_seq, **headers):
        return self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 8, "session": "s",
                                                    "if_seq": if_seq}, **headers)


def says(answer):
    return answer.json()["choices"][0]["text"] if answer.status == 200 else repr(answer)


def check(suite, proxy, servers, control):
    """Requests are spread, a session moves or stays, events come one by one, metrics are not for all."""
    for _ in range(20):
        answer = proxy.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})
        suite.expect(answer.status == 200, f"through the proxy: {answer}")
    counts = [server.metric("tarn_generated_tokens_total") for server in servers]
    suite.expect(min(counts) > 0 and sum(counts) == 40, f"spread: {counts}")

    suite.expect(proxy.ask("POST", "/v1/sessions", {"id": "s", "seed": 5}).status == 201, "a session")
    said = [says(proxy.turn(prompt, seq)) for seq, prompt in enumerate("abcdef", 1)]
    suite.expect(said == control[:6], f"a session over both servers: {said}, wanted {control[:6]}")
    before = [server.metric("tarn_prompt_tokens_total") for server in servers]
    said = [says(proxy.turn(prompt, seq, X_Session="s")) for seq, prompt in enumerate("gh", 7)]
    after = [server.metric("tarn_prompt_tokens_total") for server in servers]
    suite.expect(said == control[6:], f"with X-Session: {said}, wanted {control[6:]}")
    suite.expect(sum(a != b for a, b in zip(after, before)) == 1, f"X-Session does not stay: {before}, {after}")

    connection, response = proxy.open("POST", "/v1/completions", {"prompt": "", "max_tokens": 3000, "stream": True})
    with contextlib.closing(connection):
        first = response.readline()
        running = [server.metric("tarn_turns_running") for server in servers]
        suite.expect(first.startswith(b"data: ") and sum(running) == 1, f"not one by one: {first} {running}")
        suite.expect(events(response)[-1] == "[DONE]", "a stream through the proxy has no end")
    connection, response = proxy.open("POST", "/v1/completions", {"prompt": "", "max_tokens": 1_000_000, "stream": True})
    response.readline()
    response.close()
    connection.close()
    gone = [server.wait_for("tarn_turns_running", 0) for server in servers]
    suite.expect(None not in gone, "a client that left the proxy still has a turn")

    suite.expect(proxy.ask("GET", "/metrics").status == 403, "everybody may read /metrics")
    suite.expect(proxy.ask("POST", "/v1/completions", {"prompt": "a" * (3 << 20)}).status == 413, "a huge body")

    servers[0].process.kill()
    servers[0].process.wait()
    time.sleep(1)
    answers = [proxy.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2}).status for _ in range(20)]
    suite.expect(answers.count(200) >= 18 and set(answers) <= {200, 502}, f"one server died: {answers}")


def main():
    suite = e2e.Suite(__doc__)
    nginx, openssl = databases.program("nginx") or databases.program("/usr/sbin/nginx"), databases.program("openssl")
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(databases.postgres())
        if None in (nginx, openssl, url):
            print("nginx, openssl or PostgreSQL is not installed: the proxy is NOT TESTED")
            sys.exit(SKIPPED)
        model = suite.source / "models/tiny-rwkv7"
        keys = suite.write("keys", "test:sesame\n")
        options = ("--api-key-file", keys, "--max-tokens", "1000000", "--per-client", "0")
        with Server(suite, model, *options, "--store", "memory:") as alone:
            alone.key = "sesame"
            alone.post("/v1/sessions", {"id": "s", "seed": 5})
            control = [says(alone.complete(prompt, session="s")) for prompt in "abcdefgh"]
        servers = [stack.enter_context(Server(suite, model, *options, "--owner", owner, "--store", url))
                   for owner in ("one", "two")]
        for server in servers:
            server.key = "sesame"
        folder, port = stack.enter_context(databases.scratch()), free_port()
        command = [nginx, "-c", make_config(suite, folder, port, servers), "-p", folder]
        up = lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0
        stack.enter_context(databases.running(command, folder, up, env=os.environ | {"TZ": "UTC"}))
        check(suite, Proxy(port, "sesame"), servers, control)
    suite.finish()


if __name__ == "__main__":
    main()
