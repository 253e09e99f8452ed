"""What users do with the CLI and a key. One line of result for each step; the last says all."""

import json
import os
import pty
import re
import select
import subprocess
import tempfile
import time

CLI = os.environ["E2B_CLI"]
# No configuration of whoever runs this is to be found.
HOME = tempfile.mkdtemp()
ENV = {**os.environ, "HOME": HOME, "NO_COLOR": "1"}
done = 0


def step(name):
    global done
    print(f"ok   {name}", flush=True)
    done += 1


def e2b(*words, stdin="", code=0):
    ran = subprocess.run([CLI, *words], input=stdin, capture_output=True, text=True, env=ENV, timeout=60)
    said = ran.stdout + ran.stderr
    assert ran.returncode == code, f"e2b {' '.join(words)}: {ran.returncode}\n{said}"
    return said


def listed(*words):
    return [one["sandboxId"] for one in json.loads(e2b("sandbox", "list", "--format", "json", *words))]


def made(*words):
    said = e2b("sandbox", "create", "--detach", *words)
    found = re.search(r"\bi[a-z0-9]{20}\b", said)
    assert found, said
    return found[0]


def terminal(*words, typed):
    """What a terminal shows, having typed this and left."""
    pid, master = pty.fork()
    if pid == 0:
        os.execve(CLI, [CLI, *words], ENV)
    seen, sent, until = b"", False, time.monotonic() + 40
    while time.monotonic() < until:
        if not sent and re.search(rb"[$#] ?\S*$", seen):
            os.write(master, typed.encode())
            sent = True
        ready, _, _ = select.select([master], [], [], 0.2)
        if ready:
            try:
                part = os.read(master, 65536)
            except OSError:
                break
            if not part:
                break
            seen += part
    _, status = os.waitpid(pid, 0)
    return seen.decode(errors="replace"), os.waitstatus_to_exitcode(status)


box = made("--timeout", "300")
step("a sandbox is created")

assert box in listed(), listed()
assert box in listed("--state", "running", "--template", "base", "--order", "asc")
assert box not in listed("--state", "paused")
assert box in e2b("sandbox", "list")
step("sandboxes are listed")

info = json.loads(e2b("sandbox", "info", "--format", "json", box))
assert (info["sandboxId"], info["state"]) == (box, "running"), info
step("a sandbox is described")

assert e2b("sandbox", "exec", box, "echo", "from", "inside") == "from inside\n"
assert e2b("sandbox", "exec", "-u", "root", "-c", "/tmp", "-e", "A=b", box, "id -un; pwd; echo $A") == "root\n/tmp\nb\n"
assert "to stderr" in e2b("sandbox", "exec", box, "echo to stderr >&2; exit 7", code=7)
assert e2b("sandbox", "exec", box, "cat", stdin="piped\n") == "piped\n"
e2b("sandbox", "exec", "-b", box, "sleep 300")
step("commands are executed")

seen, code = terminal("sandbox", "connect", box, typed="echo T$((40+2)); tty; exit\n")
assert "T42" in seen and "/dev/pts/" in seen and code == 0, (code, seen)
assert box in listed(), "leaving a terminal that was connected to ends nothing"
step("a terminal is connected to a sandbox")

seen, code = terminal("sandbox", "create", "-e", "MINE=yes", typed="echo got-$MINE; exit\n")
assert "got-yes" in seen and code == 0, (code, seen)
until = time.monotonic() + 20
while listed() != [box] and time.monotonic() < until:
    time.sleep(0.2)
assert listed() == [box], "a sandbox that was made for a terminal ends with it"
step("a terminal gets a sandbox of its own")

logs = e2b("sandbox", "logs", "--format", "json", box)
assert logs.strip(), "there are no logs"
e2b("sandbox", "logs", box)
step("logs are shown")

e2b("sandbox", "pause", box)
assert listed("--state", "paused") == [box] and listed() == []
e2b("sandbox", "resume", box)
assert listed() == [box]
step("a sandbox is paused and resumed")

until = time.monotonic() + 30
while "CPU" not in (shown := e2b("sandbox", "metrics", box)) and time.monotonic() < until:
    time.sleep(1)
assert "CPU" in shown, shown
step("metrics are shown")

asleep = made("--timeout", "60", "--lifecycle.ontimeout", "pause", "--lifecycle.autoresume")
e2b("sandbox", "pause", asleep)
assert e2b("sandbox", "exec", asleep, "echo", "awake") == "awake\n"
step("a sleeping sandbox is used")

e2b("sandbox", "kill", asleep)
assert listed() == [box]
e2b("sandbox", "kill", "--all")
assert listed() == []
assert "not found" in e2b("sandbox", "exec", box, "true", code=1).lower()
step("sandboxes are killed")

print(f"{done} passed")
