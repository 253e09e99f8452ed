"""Templates by the CLI, without Docker. One line of result for each step; the last says all."""

import json
import os
import pathlib
import re
import subprocess
import tempfile

CLI = os.environ["E2B_CLI"]
# No configuration of whoever runs this is to be found.
HOME = tempfile.mkdtemp()
ENV = {**os.environ, "HOME": HOME, "NO_COLOR": "1"}
done = 0


def step(name):
    global done
    print(f"ok   {name}", flush=True)
    done += 1


def e2b(*words, code=0):
    ran = subprocess.run([CLI, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENV, timeout=180)
    said = ran.stdout + ran.stderr
    assert ran.returncode == code, f"e2b {' '.join(words)}: {ran.returncode}\n{said}"
    return said


def listed():
    found = json.loads(e2b("template", "list", "--format", "json"))
    return [name for template in found for name in template.get("aliases") or template.get("names")]


context = pathlib.Path(tempfile.mkdtemp())
(context / "greeting.txt").write_text("hello from a file\n")
(context / "Dockerfile").write_text(
    f"FROM {os.environ['OPEN']}\n"
    "ENV COLOUR=blue\n"
    "COPY greeting.txt /srv/greeting.txt\n"
    "RUN echo $COLOUR > /srv/colour\n"
    "WORKDIR /srv\n"
)
said = e2b("template", "create", "by-cli", "--path", str(context), "--cmd", "sleep 1000", "--ready-cmd", "true")
assert "by-cli" in said, said
step("a Dockerfile is built")

assert "by-cli" in listed() and "base" in listed(), listed()
step("templates are listed")

said = e2b("sandbox", "create", "by-cli", "--detach")
box = re.search(r"\bi[a-z0-9]{20}\b", said)[0]
assert e2b("sandbox", "exec", box, "cat /srv/greeting.txt /srv/colour") == "hello from a file\nblue\n"
e2b("sandbox", "kill", box)
step("a sandbox is made of it")

(context / "Dockerfile").write_text(f"FROM {os.environ['OPEN']}\nRUN echo bye; exit 4\n")
said = e2b("template", "create", "by-cli", "--path", str(context), code=1)
assert "exit status 4" in said, said
assert "by-cli" in listed()
step("a build that fails says why")

e2b("template", "delete", "by-cli", "--yes")
assert "by-cli" not in listed(), listed()
step("a template is deleted")

print(f"{done} passed")
