"""A running `tarn serve`, and requests to it."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time


class Answer:
    """A whole answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.bytes = response.read()

    def json(self):
        return json.loads(self.bytes.decode("utf-8"))

    def __repr__(self):
        return f"{self.status} {self.bytes[:300]!r}"


class Server:
    """A server process on a port of its own choice."""

    def __init__(self, suite, model, *options, before=None, **environment):
        # Without a model: the program's own.
        command = [suite.tarn, "serve", *([model] if model else []), "--port", "0", "--threads", "1", "--json", *options]
        clean = {k: v for k, v in os.environ.items() if k not in ("TARN_API_KEY", "STATE_DIRECTORY")}
        # Without --store, sessions of its own.
        clean["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-", dir=suite.folder)
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, cwd=suite.folder,
                                        env=clean | environment, preexec_fn=before)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"no server: {self.process.communicate()[1]}")
        self.start = json.loads(line)
        self.port = self.start["port"]
        self.key = None  # of requests

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(self, method, path, body=None, **headers):
        headers = {name.replace("_", "-").lower(): value for name, value in headers.items()}
        if self.key:
            headers.setdefault("authorization", f"Bearer {self.key}")
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("content-type", "application/json")
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, headers)
            return Answer(connection.getresponse())

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, body=None, **headers):
        return self.request("POST", path, body, **headers)

    def complete(self, prompt="", max_tokens=8, **fields):
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **fields})

    def raw(self, data, timeout=20):
        """Everything that comes back for these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            received = b""
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(65536):
                    received += piece
            return received

    def stream(self, path, body):
        """A stream that has begun: (connection, response)."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body | {"stream": True}),
                           {"content-type": "application/json"})
        return connection, connection.getresponse()

    def metric(self, name):
        for line in self.get("/metrics").bytes.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def wait_for(self, name, value, seconds=10):
        """Seconds until the metric had the value, or None."""
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            if self.metric(name) == value:
                return time.monotonic() - begin
            time.sleep(0.005)
        return None

    def stop(self, how=signal.SIGTERM, timeout=30):
        """Exit status after a signal."""
        self.process.send_signal(how)
        return self.process.wait(timeout)


def events(response):
    """The events of a stream: decoded data, the last one the text "[DONE]" if it came."""
    found = []
    for event in response.read().decode("utf-8").split("\n\n"):
        lines = [line for line in event.split("\n") if line and not line.startswith(":")]
        if lines:
            data = "\n".join(line.removeprefix("data: ") for line in lines)
            found.append(data if data == "[DONE]" else json.loads(data))
    return found
