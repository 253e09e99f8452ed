"""Commands and terminals, through the gateway."""

import contextlib
import threading

import e2b
from e2b import CommandExitException, InvalidArgumentException, SandboxException, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize

from harness import case, eventually, raises


@case
def a_command_says_what_it_printed_and_how_it_ended(world):
    box = world.shared()
    done = box.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0) and not done.error, done
    why = raises(CommandExitException, lambda: box.commands.run("echo x; echo y >&2; exit 7"))
    assert (why.exit_code, why.stdout, why.stderr) == (7, "x\n", "y\n"), why


@case
def output_is_heard_while_it_is_made(world):
    box = world.shared()
    out, err, first = [], [], threading.Event()

    def hear(text):
        out.append(text)
        first.set()

    runner = threading.Thread(
        target=lambda: box.commands.run(
            "echo a; while [ ! -e /tmp/heard ]; do sleep 0.02; done; echo e >&2; echo b",
            on_stdout=hear,
            on_stderr=err.append,
        )
    )
    runner.start()
    assert first.wait(20), "the first line comes before the end"
    box.files.write("/tmp/heard", "")
    runner.join(20)
    assert ("".join(out), "".join(err)) == ("a\nb\n", "e\n"), (out, err)


@case
def large_output_is_whole(world):
    done = world.shared().commands.run("yes 0123456789abcde | head -c 4194304; seq 1 20000 >&2")
    assert done.stdout == "0123456789abcde\n" * 262144, len(done.stdout)
    assert done.stderr == "".join(f"{i}\n" for i in range(1, 20001))


@case
def text_of_many_bytes_is_not_torn(world):
    done = world.shared().commands.run("python3 -c 'print(\"ä€😀\" * 50000, end=\"\")'")
    assert done.stdout == "ä€😀" * 50000


@case
def directory_environment_and_user_are_as_asked(world):
    box = world.shared()
    run = box.commands.run
    assert run("pwd; id -un; echo $HOME").stdout == "/home/user\nuser\n/home/user\n"
    assert run("pwd", cwd="/usr").stdout == "/usr\n"
    assert run("echo $A", envs={"A": "b c"}).stdout == "b c\n"
    assert run("id -un; pwd; echo $HOME", user="root").stdout == "root\n/root\n/root\n"
    assert run("id -un", user="user").stdout == "user\n"
    raises(InvalidArgumentException, lambda: run("true", cwd="/nowhere"), "/nowhere")
    raises(e2b.AuthenticationException, lambda: run("true", user="nobody-of-that-name"), "nobody-of-that-name")
    assert run("sudo id -un").stdout == "root\n"


@case
def what_runs_in_the_background_is_listed_connected_to_and_killed(world):
    box = world.shared()
    handle = box.commands.run("sleep 61", background=True, envs={"SEEN": "1"}, cwd="/tmp")
    listed = [p for p in box.commands.list() if p.pid == handle.pid]
    assert len(listed) == 1 and listed[0].cwd == "/tmp" and listed[0].envs == {"SEEN": "1"}, listed
    assert (listed[0].cmd, listed[0].args) == ("/bin/bash", ["-l", "-c", "sleep 61"]), listed
    assert box.commands.run(f"kill -0 {handle.pid}").exit_code == 0
    other = box.commands.connect(handle.pid)
    assert box.commands.kill(handle.pid) is True
    why = raises(CommandExitException, handle.wait)
    assert (why.exit_code, why.error) == (-1, "signal: killed"), why
    raises(CommandExitException, other.wait)
    assert eventually(lambda: all(p.pid != handle.pid for p in box.commands.list()))
    assert box.commands.kill(handle.pid) is False
    assert box.commands.run("sleep 62", background=True).kill() is True


@case
def what_runs_in_the_background_outlives_its_client(world):
    box = world.shared()
    handle = box.commands.run("sleep 0.3; echo done > /tmp/outlived; exit 3", background=True)
    handle.disconnect()
    assert eventually(lambda: box.files.exists("/tmp/outlived"))
    assert raises(CommandExitException, lambda: box.commands.connect(handle.pid).wait()).exit_code == 3
    raises(e2b.NotFoundException, lambda: box.commands.connect(4_000_000))


@case
def a_command_is_read_as_it_goes(world):
    handle = world.shared().commands.run("echo one; echo two >&2; echo three", background=True)
    out, err = "", ""
    for stdout, stderr, _ in handle:
        out, err = out + (stdout or ""), err + (stderr or "")
    assert (out, err) == ("one\nthree\n", "two\n"), (out, err)


@case
def a_command_that_takes_too_long_is_killed(world):
    box = world.shared()
    raises(TimeoutException, lambda: box.commands.run("echo $$ > /tmp/late; exec sleep 63", timeout=10))
    pid = box.files.read("/tmp/late").strip()
    assert eventually(lambda: not box.files.exists(f"/proc/{pid}"))
    assert box.commands.run("sleep 0.1; echo done", timeout=0).stdout == "done\n"


@case
def input_is_sent_and_closed(world):
    box = world.shared()
    handle = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "one\n")
    box.commands.send_stdin(handle.pid, "zwei ä\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\nzwei ä\n"
    assert box.commands.run("cat; echo end").stdout == "end\n"
    quiet = box.commands.run("sleep 64", background=True)
    raises(SandboxException, lambda: box.commands.send_stdin(quiet.pid, "x"))
    quiet.kill()


@case(since="2.60")
def input_is_streamed_and_output_forgotten(world):
    box = world.shared()
    handle = box.commands.run("wc -c", background=True, stdin=True)
    box.commands.stream_input(handle.pid, (b"x" * 65536 for _ in range(16)))
    handle.close_stdin()
    assert handle.wait().stdout.strip() == str(16 * 65536)
    heard = []
    done = box.commands.run("echo only heard", on_stdout=heard.append, retain_output=False)
    assert "".join(heard) == "only heard\n" and done.exit_code == 0


# Terminals


def listen(term):
    seen = bytearray()

    def read():
        with contextlib.suppress(CommandExitException):
            term.wait(on_pty=seen.extend)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return seen, reader


@case
def a_terminal_echoes_resizes_and_ends(world):
    box = world.shared()
    term = box.pty.create(PtySize(rows=30, cols=100), envs={"MINE": "yes"}, cwd="/usr")
    seen, reader = listen(term)
    box.pty.send_stdin(term.pid, b"stty size; echo T=$TERM $MINE; pwd; id -un\n")
    parts = [b"30 100", b"T=xterm-256color yes", b"\r\n/usr\r\n", b"\r\nuser\r\n"]
    assert eventually(lambda: all(part in seen for part in parts)), bytes(seen)
    box.pty.resize(term.pid, PtySize(rows=50, cols=120))
    box.pty.send_stdin(term.pid, b"stty size\n")
    assert eventually(lambda: b"50 120" in seen), bytes(seen)
    box.pty.send_stdin(term.pid, b"sleep 65\n")
    assert eventually(lambda: box.commands.run("pgrep -fx 'sleep 65' || true").stdout), "it does not sleep"
    box.pty.send_stdin(term.pid, b"\x03echo code $?; exit 0\n")
    assert eventually(lambda: b"code 130" in seen), bytes(seen)
    reader.join(20)
    assert not reader.is_alive()


@case
def a_terminal_is_connected_to_again_and_killed(world):
    box = world.shared()
    first = box.pty.create(PtySize(rows=24, cols=80), user="root")
    first.disconnect()
    again = box.pty.connect(first.pid)
    seen, reader = listen(again)
    box.pty.send_stdin(first.pid, b"echo I am $(id -un)\n")
    assert eventually(lambda: b"I am root" in seen), bytes(seen)
    assert box.pty.kill(first.pid) is True
    reader.join(20)
    assert eventually(lambda: box.pty.kill(first.pid) is False)
