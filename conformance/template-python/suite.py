"""Builds templates and uses them: suite.py [PART_OF_A_NAME]

OPEN is an image in a registry, CLOSED the same in one that wants a user.
"""

import os
import pathlib
import sys
import tempfile
import time
import uuid

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "e2b-python"))

from e2b import Sandbox, Template, wait_for_port  # noqa: E402
from e2b.exceptions import BuildException  # noqa: E402
from harness import case, eventually, put, raises, request, run  # noqa: E402

OPEN, CLOSED = os.environ["OPEN"], os.environ["CLOSED"]


def name():
    return f"built-{uuid.uuid4().hex[:12]}"


def said(template, called, **options):
    """Builds, and answers what was said."""
    lines = []
    Template.build(template, called, on_build_logs=lambda entry: lines.append(entry.message), **options)
    return lines


def inside(world, called, *commands, **options):
    box = world.create(template=called, **options)
    return [box.commands.run(command).stdout.strip() for command in commands]


def api(method, path, key="E2B_API_KEY", **options):
    """A request of no SDK's."""
    base = os.environ.get("E2B_API_URL") or f"https://api.{os.environ['E2B_DOMAIN']}"
    verify = os.environ.get("SSL_CERT_FILE", True)
    headers = {"X-API-KEY": os.environ[key]}
    return request(method, f"{base}{path}", headers=headers, verify=verify, **options)


@case
def steps_of_an_image_become_a_template(world):
    called = name()
    template = (
        Template()
        .from_image(OPEN)
        .set_envs({"GREETING": "hello world", "TWICE": "$GREETING, $GREETING"})
        .run_cmd("echo $GREETING > greeting; id -un > who")
        .set_workdir("project/deep")
        .run_cmd("pwd > where")
        .run_cmd("id -un > /root/root", user="root")
        .set_user("root")
        .run_cmd(["echo one > /etc/one", "echo two > /etc/two"])
    )
    lines = said(template, called)
    assert any("RUN pwd > where" in line for line in lines), lines
    found = inside(
        world,
        called,
        "cat /home/user/greeting /home/user/who /home/user/project/deep/where",
        "cat /etc/one /etc/two /root/root; pwd; id -un; stat -c %U /home/user/project /home/user/project/deep",
        "echo $TWICE",
    )
    assert found[0].split("\n") == ["hello world", "user", "/home/user/project/deep"], found
    expected = ["one", "two", "root", "/home/user/project/deep", "root", "user", "user"]
    assert found[1].split("\n") == expected, found
    assert found[2] == ",", found


@case
def what_was_built_is_used_again(world):
    mark = uuid.uuid4().hex
    template = lambda last: (  # noqa: E731
        Template().from_image(OPEN).run_cmd(f"echo {mark}; date +%s%N > first").run_cmd(f"echo {last} > last")
    )
    first, second = name(), name()
    lines = said(template("one"), first)
    assert not any(line.startswith("CACHED") for line in lines), lines
    lines = said(template("two"), second)
    assert any(line.startswith("CACHED RUN echo " + mark) for line in lines), lines
    assert mark not in lines, "what is kept says nothing again"
    [one], [two] = inside(world, first, "cat first last"), inside(world, second, "cat first last")
    assert one.split("\n")[0] == two.split("\n")[0], (one, two)
    assert (one.split("\n")[1], two.split("\n")[1]) == ("one", "two"), (one, two)
    lines = said(template("two"), second, skip_cache=True)
    assert mark in lines, lines
    [anew] = inside(world, second, "cat first")
    assert anew != two.split("\n")[0]


@case
def files_are_copied(world):
    called = name()
    with tempfile.TemporaryDirectory() as context:
        root = pathlib.Path(context)
        (root / "app" / "lib").mkdir(parents=True)
        (root / "app" / "main.py").write_text("print('main')")
        (root / "app" / "lib" / "x y.txt").write_text("spaced")
        (root / "app" / ".hidden").write_text("hidden")
        (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
        (root / "link").symlink_to("run.sh")
        (root / "a.txt").write_text("a")
        (root / "b.txt").write_text("b")
        (root / "big").write_bytes(os.urandom(3 << 20))
        template = (
            Template(file_context_path=context)
            .from_image(OPEN)
            .copy("app", "app")
            .copy("run.sh", "/usr/local/bin/run", user="root", mode=0o755)
            .copy("a.txt", "/opt/new/directory/")
            .copy("*.txt", "/srv/texts")
            .copy(["run.sh", "link"], "/opt/both/")
            .copy("big", "/tmp/../opt/big")
            .copy("app", "/usr", user="root")
            .run_cmd("python3 app/main.py > said && run >> said")
        )
        lines = said(template, called)
        again = said(template, name())
        assert any("CACHED COPY app app" in line for line in again), again
        sums = [str((root / "big").stat().st_size)]
    assert any("Uploaded" in line for line in lines), lines
    found = inside(
        world,
        called,
        "cat said 'app/lib/x y.txt' app/.hidden; echo; cat /opt/new/directory/a.txt /srv/texts/*; readlink /opt/both/link",
        "stat -c '%U %a' app app/main.py /usr/local/bin/run /opt/both/run.sh /usr /usr/lib; stat -c %s /opt/big",
        "cat /usr/main.py; ls -a /tmp",
    )
    assert found[0].split("\n") == ["main", "ran", "spacedhidden", "aabrun.sh"], found
    owners = found[1].split("\n")
    assert owners[2] == "root 755" and owners[4].startswith("root 755") and owners[5].startswith("root"), owners
    assert [owners[0].split()[0], owners[1].split()[0], owners[3].split()[0]] == ["user"] * 3, owners
    assert owners[6:] == sums, owners
    assert "dormouse" not in found[2] and "print('main')" in found[2], found


@case
def a_template_is_built_on_another(world):
    below, above = name(), name()
    said(Template().from_template("base").set_envs({"A": "below"}).run_cmd("echo below > layer"), below)
    said(Template().from_template(below).run_cmd("echo $A above >> layer"), above)
    assert inside(world, above, "cat layer; echo $A") == ["below\nbelow above\nbelow"]
    assert inside(world, below, "cat layer") == ["below"]
    said(Template().from_base_image().run_cmd("true"), name())


@case
def start_and_ready_commands_bring_every_sandbox_up(world):
    called = name()
    template = (
        Template()
        .from_template("base")
        .set_envs({"PAGE": "served"})
        .run_cmd("mkdir -p site && echo $PAGE > site/index.html")
        .set_workdir("site")
        .set_start_cmd("python3 -m http.server 8000", wait_for_port(8000))
    )
    said(template, called)
    box = world.create(template=called)
    answer = lambda: box.commands.run("curl -s localhost:8000 || true").stdout.strip()  # noqa: E731
    assert eventually(lambda: answer() == "served")


@case
def a_start_that_never_gets_ready_fails_the_build(world):
    template = Template().from_template("base").set_start_cmd("echo going down; exit 9", "false")
    why = raises(BuildException, lambda: said(template, name()))
    assert "start command failed" in str(why), why


@case
def a_failure_says_which_step_and_why_and_changes_nothing(world):
    called = name()
    said(Template().from_image(OPEN).run_cmd("echo good > state"), called)
    failing = Template().from_image(OPEN).run_cmd("true").run_cmd("echo last words; exit 3")
    why = raises(BuildException, lambda: said(failing, called), "exit status 3", "last words")
    assert "failed to run command 'echo last words; exit 3'" in str(why), why
    assert inside(world, called, "cat state") == ["good"]
    nobody = Template().from_image(OPEN).skip_cache().run_cmd("whoami", user="root123")
    expected = "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'"
    raises(BuildException, lambda: said(nobody, name()), expected)
    missing = Template().from_image(OPEN.replace("made/base:1", "made/none:1")).run_cmd("true")
    raises(BuildException, lambda: said(missing, name()), "made/none")
    unknown = Template().from_template("no-such-template").run_cmd("true")
    raises(Exception, lambda: said(unknown, name()), "no-such-template")


@case
def builds_go_on_in_the_background_and_are_followed(world):
    called = name()
    template = Template().from_image(OPEN).run_cmd("for i in $(seq 250); do echo line $i; done; sleep 1")
    build = Template.build_in_background(template, called)
    seen, offset = [], 0
    until = time.monotonic() + 120
    while time.monotonic() < until:
        status = Template.get_build_status(build, logs_offset=offset)
        assert len(status.log_entries) <= 100
        offset += len(status.log_entries)
        seen += [entry.message for entry in status.log_entries]
        if status.status.value in ("ready", "error") and not status.log_entries:
            break
        assert status.status.value in ("waiting", "building", "ready"), status
        time.sleep(0.05)
    assert status.status.value == "ready", status
    assert [line for line in seen if line.startswith("line ")] == [f"line {i}" for i in range(1, 251)]
    assert Template.alias_exists(called) and not Template.alias_exists(name())


@case
def a_private_image_needs_its_credentials(world):
    template = Template().from_image(CLOSED, username="testuser", password="testpassword").run_cmd("echo in > file")
    called = name()
    lines = said(template, called)
    assert not any("testpassword" in line for line in lines), lines
    assert inside(world, called, "cat file") == ["in"]
    wrong = Template().from_image(CLOSED, username="testuser", password="hunter22").run_cmd("true")
    why = raises(BuildException, lambda: said(wrong, name()))
    assert "hunter22" not in str(why)
    raises(BuildException, lambda: said(Template().from_image(CLOSED).run_cmd("true"), name()))


@case(since="2.55.0")
def tags_say_which_build_is_meant(world):
    called = name()
    build = lambda text: Template().from_image(OPEN).run_cmd(f"echo {text} > version")  # noqa: E731
    first = Template.build(build("one"), f"{called}:v1", tags=["stable"])
    second = Template.build(build("two"), f"{called}:v2")
    assert first.template_id == second.template_id
    assert Template.alias_exists(called), "a name alone is also that of a template without the default tag"
    raises(Exception, lambda: world.create(template=called), "not found")
    assert inside(world, f"{called}:v1", "cat version") == ["one"]
    assert inside(world, f"{called}:v2", "cat version") == ["two"]
    assert inside(world, f"{called}:stable", "cat version") == ["one"]
    assert {tag.tag: tag.build_id for tag in Template.get_tags(called)} == {
        "v1": first.build_id,
        "stable": first.build_id,
        "v2": second.build_id,
    }
    moved = Template.assign_tags(f"{called}:v2", ["stable", "default"])
    assert moved.build_id == second.build_id and set(moved.tags) == {"stable", "default"}
    assert inside(world, called, "cat version") == ["two"]
    assert inside(world, f"{called}:stable", "cat version") == ["two"]
    Template.remove_tags(called, "v1")
    raises(Exception, lambda: Template.remove_tags(called, "v1"), "v1")
    raises(Exception, lambda: world.create(template=f"{called}:v1"), "not found")
    raises(Exception, lambda: Template.assign_tags(f"{called}:none", "x"), "not found")


@case
def what_a_team_builds_is_its_own(world):
    called = name()
    build = Template.build(Template().from_image(OPEN).run_cmd("true"), called)
    other = lambda method, path, **more: api(method, path, key="OTHER_API_KEY", **more)  # noqa: E731
    for path in (called, build.template_id):
        assert other("GET", f"/templates/{path}").status_code == 404
        assert other("GET", f"/templates/{path}/tags").status_code == 404
        assert other("DELETE", f"/templates/{path}").status_code == 404
        status = f"/templates/{path}/builds/{build.build_id}/status"
        assert other("GET", status).status_code == 404
        assert api("GET", status).status_code == 200
    assert other("POST", "/v2/sandboxes", json={"templateID": called}).status_code == 404
    assert other("POST", "/templates/tags", json={"target": called, "tags": ["x"]}).status_code == 404
    shown = [template for template in api("GET", "/templates").json() if called in template["names"]]
    assert [template["templateID"] for template in shown] == [build.template_id]
    assert not shown[0]["public"]
    assert api("DELETE", f"/templates/{build.template_id}").status_code == 204
    assert not Template.alias_exists(called)
    assert api("DELETE", f"/templates/{called}").status_code == 404
    assert api("DELETE", "/templates/base").status_code == 403


@case
def bad_requests_are_refused_by_name(world):
    ask = lambda body: api("POST", "/v3/templates", json=body)  # noqa: E731
    for body, part in (
        ({"name": "Upper"}, "name"),
        ({"name": "a:b c"}, "tags"),
        ({"name": "base"}, "base"),
        ({"name": "a", "cpuCount": 0}, "cpuCount"),
        ({"name": "a", "teamID": "another"}, "teamID"),
        ({"name": "a", "bogus": 1}, "bogus"),
    ):
        answer = ask(body)
        assert answer.status_code in (400, 409) and part in answer.json()["message"], (body, answer.text)
    made = ask({"name": name()}).json()
    path = f"/v2/templates/{made['templateID']}/builds/{made['buildID']}"
    files = "0" * 64
    for body, part in (
        ({}, "fromImage"),
        ({"fromImage": OPEN, "fromTemplate": "base"}, "fromImage"),
        ({"fromImage": OPEN, "steps": [{"type": "HEALTHCHECK", "args": []}]}, "steps[0]"),
        ({"fromImage": OPEN, "steps": [{"type": "COPY", "args": ["a", "b"]}]}, "filesHash"),
        ({"fromImage": OPEN, "steps": [{"type": "COPY", "args": ["../a", "b"], "filesHash": files}]}, "leaves"),
        ({"fromImage": OPEN, "steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": files}]}, "uploaded"),
        ({"fromImage": OPEN, "fromImageRegistry": {"type": "aws"}}, "aws"),
        ({"fromTemplate": "none-such"}, "none-such"),
    ):
        answer = api("POST", path, json=body)
        assert answer.status_code == 400 and part in answer.json()["message"], (body, answer.text)
    link = api("GET", f"/templates/{made['templateID']}/files/{files}").json()
    assert link["present"] is False
    forged = link["url"].replace(files, "1" * 64)
    verify = os.environ.get("SSL_CERT_FILE", True)
    assert put(forged, content=b"x", verify=verify).status_code == 401
    assert put(link["url"], content=b"no archive", verify=verify).status_code == 204
    copy = [{"type": "COPY", "args": ["a", "b"], "filesHash": files}]
    assert api("POST", path, json={"fromImage": OPEN, "steps": copy}).status_code == 202
    assert api("POST", path, json={"fromImage": OPEN, "steps": copy}).status_code == 409
    status = lambda: api("GET", f"{path[3:]}/status").json()  # noqa: E731
    assert eventually(lambda: status()["status"] == "error", 60)
    assert status()["reason"]["step"] == "1" and "cannot be read" in status()["reason"]["message"], status()


@case
def nothing_of_a_build_is_seen_or_left(world):
    called = name()
    build = Template.build_in_background(Template().from_image(OPEN).run_cmd("sleep 30"), called)
    assert eventually(lambda: Template.get_build_status(build).status.value == "building", 30)
    says = lambda: [line.message for line in Template.get_build_status(build).log_entries]
    assert eventually(lambda: any("sleep 30" in line for line in says()), 30)
    # Its room runs by now. Whatever it is called, its template's id would be part of what is shown.
    seen = [box for box in api("GET", "/v2/sandboxes").json() if build.template_id in str(box)]
    assert seen == [], seen
    assert not [s for s in api("GET", "/snapshots").json() if "build-" in str(s)]
    assert api("DELETE", f"/templates/{build.template_id}").status_code == 204
    path = f"/templates/{build.template_id}/builds/{build.build_id}/status"
    assert eventually(lambda: api("GET", path).status_code == 404, 30)


run(sys.argv[1] if len(sys.argv) > 1 else None, workers=3)
