"""Database servers of our own, each in a scratch folder on a unix socket that nobody else sees."""

import contextlib
import glob
import os
import pathlib
import pwd
import shutil
import subprocess
import tempfile
import time


def program(name):
    """Its path, also where Debian keeps PostgreSQL's; None: not installed."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else shutil.which(name)


@contextlib.contextmanager
def running(command, folder, is_up, **how):
    """The server while the block runs; killed at its end."""
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, **how)
    try:
        until = time.monotonic() + 30
        while not is_up():
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{command[0]} does not start: {(folder / 'log').read_text()[-500:]}")
            time.sleep(0.05)
        yield
    finally:
        server.kill()
        server.wait()


@contextlib.contextmanager
def scratch():
    with tempfile.TemporaryDirectory(prefix="tarn-server-", ignore_cleanup_errors=True) as folder:
        yield pathlib.Path(folder)


@contextlib.contextmanager
def postgres():
    """The URL of a store on a fresh PostgreSQL; None: it is not installed."""
    initdb, server, ask = program("initdb"), program("postgres"), program("pg_isready")
    if None in (initdb, server, ask):
        yield None
        return
    with scratch() as folder:
        how = {}
        if os.getuid() == 0:  # PostgreSQL does not run as root
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            user = names.get("postgres") or names["nobody"]
            os.chown(folder, user.pw_uid, user.pw_gid)
            how = {"user": user.pw_uid, "group": user.pw_gid}
        subprocess.run([initdb, "-D", folder / "data", "-U", "tarn", "-A", "trust", "-N", "--locale=C"],
                       check=True, cwd=folder, stdout=subprocess.DEVNULL, **how)
        with running([server, "-D", folder / "data", "-k", folder, "-c", "listen_addresses="], folder,
                     lambda: subprocess.run([ask, "-q", "-h", folder], check=False).returncode == 0, **how):
            yield f"postgresql:///postgres?user=tarn&host={folder}"


@contextlib.contextmanager
def redis():
    """The URL of a store on a fresh Redis that flushes every command; None: it is not installed."""
    server, ask = program("redis-server"), program("redis-cli")
    if None in (server, ask):
        yield None
        return
    with scratch() as folder:
        socket = folder / "socket"
        with running([server, "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "",
                      "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction"], folder,
                     lambda: subprocess.run([ask, "-s", socket, "ping"], check=False, stderr=subprocess.DEVNULL,
                                            stdout=subprocess.DEVNULL).returncode == 0):
            yield f"redis+unix://{socket}"
