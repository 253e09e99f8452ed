"""Cases and the server they are for.

A case is a function whose name is a sentence. Cases run side by side, as users do; each says how it
went in one line, and the last line says it of all. Some need a newer SDK than the one at hand: they
are counted apart, never as passed.

Settings, all from the environment, as the SDK's own users set them: E2B_API_KEY, and either
E2B_API_URL with E2B_SANDBOX_URL, or E2B_DOMAIN with SSL_CERT_FILE. OTHER_API_KEY is a key of another
team. OUTSIDE is the address of a web server that sandboxes reach through their network, ELSEWHERE of
a second one.
"""

import concurrent.futures
import functools
import importlib.metadata
import os
import pathlib
import re
import sys
import threading
import time
import traceback
import uuid

import httpx
from e2b import Sandbox

VERSION = importlib.metadata.version("e2b")
RUN = uuid.uuid4().hex
SERVER = pathlib.Path(__file__).with_name("inside.py")
if not SERVER.exists():
    SERVER = pathlib.Path(__file__).parent.parent / "e2b-inside" / "server.py"
CASES = []
# A busy machine may take longer than the five seconds that are usual.
get, post, put, request, stream = (
    functools.partial(one, timeout=60) for one in (httpx.get, httpx.post, httpx.put, httpx.request, httpx.stream)
)


def number(version):
    return tuple(int(part) for part in re.findall(r"\d+", version))


def case(function=None, *, since=None, before=None):
    """Registers a case, for SDKs from one version on, or up to one."""

    def register(function):
        CASES.append((function, since, before))
        return function

    return register if function is None else register(function)


def raises(kind, function, *saying):
    try:
        function()
    except kind as why:
        for part in saying:
            assert part in str(why), f"no {part!r} in {why}"
        return why
    raise AssertionError(f"nothing was raised, expected {kind.__name__}")


def told(why):
    """What failed, by the lines of the cases and of the SDK's edge only."""
    here = str(pathlib.Path(__file__).parent)
    lines = [
        f"  {frame.filename.rsplit('/', 1)[-1]}:{frame.lineno}: {frame.line}"
        for frame in traceback.extract_tb(why.__traceback__)
        if frame.filename.startswith(here) and frame.name != "attempt"
    ]
    return "\n".join([*lines, *(f"  {part.rstrip()}" for part in traceback.format_exception_only(why))])


def eventually(check, seconds=30.0):
    until = time.monotonic() + seconds
    while True:
        found = check()
        if found or time.monotonic() > until:
            return found
        time.sleep(0.05)


class World:
    """What cases share."""

    def __init__(self):
        self._lock = threading.Lock()
        self._made = []
        self._shared = None
        self._directories = 0

    def create(self, **options):
        """A sandbox of a case's own; what it leaves is killed at the end."""
        options.setdefault("timeout", 120)
        options["metadata"] = {"run": RUN, **options.get("metadata", {})}
        box = Sandbox.create(**options)
        self.keep(box.sandbox_id)
        return box

    def keep(self, sandbox_id):
        with self._lock:
            self._made.append(sandbox_id)

    def shared(self):
        """One that no case puts to sleep, ends or fills."""
        with self._lock:
            if self._shared is None:
                self._shared = Sandbox.create(timeout=600, metadata={"run": RUN, "shared": "yes"})
                self._made.append(self._shared.sandbox_id)
            return self._shared

    def directory(self):
        with self._lock:
            self._directories += 1
            return f"/home/user/case-{self._directories}"

    def serve_inside(self, box, port, host="0.0.0.0"):
        box.files.write("/tmp/server.py", SERVER.read_text())
        box.commands.run(f"python3 /tmp/server.py {port} {host}", background=True, timeout=0)
        url, headers = self.door(box, port)
        answers = eventually(lambda: get(url, headers=headers).status_code == 200)
        assert answers, "the server inside does not answer"
        return url, headers

    def door(self, box, port):
        """How a port is reached from outside: by its name, or by headers where there are no names."""
        if "E2B_SANDBOX_URL" in os.environ:
            return os.environ["E2B_SANDBOX_URL"], {
                "E2b-Sandbox-Id": box.sandbox_id,
                "E2b-Sandbox-Port": str(port),
            }
        return f"https://{box.get_host(port)}", {}

    def end(self):
        for sandbox_id in self._made:
            Sandbox.kill(sandbox_id)


def run(only=None, workers=6):
    world = World()
    here = [c for c in CASES if only is None or only in c[0].__name__]
    failed, absent = [], 0
    print(f"e2b {VERSION}, {'plain HTTP' if 'E2B_SANDBOX_URL' in os.environ else 'TLS'}")

    def attempt(function):
        started = time.monotonic()
        try:
            function(world)
            return function.__name__, None, time.monotonic() - started
        except Exception as why:
            return function.__name__, told(why), time.monotonic() - started

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        futures = []
        for function, since, before in here:
            known = since is None or number(VERSION) >= number(since)
            if not known or (before is not None and number(VERSION) >= number(before)):
                absent += 1
                continue
            futures.append(pool.submit(attempt, function))
        for future in concurrent.futures.as_completed(futures):
            name, why, seconds = future.result()
            print(f"{'ok  ' if why is None else 'FAIL'} {name} ({seconds:.1f} s)", flush=True)
            if why is not None:
                print(why, flush=True)
                failed.append(name)
    world.end()
    passed = len(here) - absent - len(failed)
    if failed:
        print(f"{len(failed)} failed: {', '.join(failed)}; {passed} did not")
        sys.exit(1)
    print(f"{passed} passed, {absent} are not for this version of the SDK")
