"""What users do with the SDK, against an agent. One line of result for each; the last says all.

No test framework: a case is a function, its name is a sentence, and every case gets a directory.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize

CASES = []


def case(function):
    CASES.append(function)
    return function


def raises(kind, function):
    try:
        function()
    except kind as why:
        return why
    raise AssertionError(f"nothing was raised, expected {kind.__name__}")


def eventually(check, seconds=30.0):
    until = time.monotonic() + seconds
    while True:
        found = check()
        if found or time.monotonic() > until:
            return found
        time.sleep(0.02)


# Commands


@case
def a_command_runs_and_says_what_it_printed(box, _):
    done = box.commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 0), done


@case
def a_failing_command_raises_with_its_code(box, _):
    why = raises(CommandExitException, lambda: box.commands.run("echo x; exit 7"))
    assert (why.exit_code, why.stdout) == (7, "x\n"), why


@case
def output_arrives_in_order_and_whole(box, _):
    lines = []
    done = box.commands.run("for i in $(seq 1 2000); do echo $i; done", on_stdout=lines.append)
    expected = "".join(f"{i}\n" for i in range(1, 2001))
    assert done.stdout == expected and "".join(lines) == expected


@case
def large_output_is_not_cut(box, _):
    done = box.commands.run("yes 0123456789abcde | head -c 8388608")
    assert done.stdout == "0123456789abcde\n" * 524288, len(done.stdout)


@case
def text_split_between_chunks_is_decoded(box, _):
    done = box.commands.run("python3 -c 'print(\"ä€😀\" * 50000, end=\"\")'")
    assert done.stdout == "ä€😀" * 50000


@case
def environment_and_directory_are_as_asked(box, dir):
    done = box.commands.run("echo $A-$E2B_SANDBOX-$USER; pwd", envs={"A": "b c"}, cwd=dir)
    assert done.stdout == f"b c-true-root\n{dir}\n", done.stdout
    why = raises(InvalidArgumentException, lambda: box.commands.run("true", cwd="/nowhere"))
    assert "cwd '/nowhere' does not exist" in str(why), why


@case
def commands_run_as_the_user_that_is_named(box, _):
    done = box.commands.run("id -un; echo $HOME $USER $LOGNAME", user="daemon", cwd="/")
    assert done.stdout.splitlines() == ["daemon", "/usr/sbin daemon daemon"], done.stdout
    why = raises(AuthenticationException, lambda: box.commands.run("true", user="nobody-of-that-name"))
    assert "invalid username: 'nobody-of-that-name'" in str(why), why
    why = raises(AuthenticationException, lambda: box.files.exists("/", user="nobody-of-that-name"))


@case
def a_command_in_the_background_is_listed_connected_and_killed(box, _):
    handle = box.commands.run("echo started; sleep 60", background=True)
    assert any(p.pid == handle.pid for p in box.commands.list())
    assert box.commands.run(f"kill -0 {handle.pid}").exit_code == 0
    other = box.commands.connect(handle.pid)
    assert other.pid == handle.pid
    assert box.commands.kill(handle.pid) is True
    why = raises(CommandExitException, handle.wait)
    assert (why.exit_code, why.error) == (-1, "signal: killed"), (why.exit_code, why.error)
    raises(CommandExitException, other.wait)
    assert eventually(lambda: all(p.pid != handle.pid for p in box.commands.list()))
    assert box.commands.kill(handle.pid) is False


@case
def who_connects_late_hears_the_end(box, _):
    handle = box.commands.run("sleep 0.1; exit 3", background=True)
    handle.disconnect()
    time.sleep(0.5)
    late = box.commands.connect(handle.pid)
    assert raises(CommandExitException, late.wait).exit_code == 3
    raises(NotFoundException, lambda: box.commands.connect(4_000_000))


@case
def a_command_outlives_its_client(box, dir):
    handle = box.commands.run(f"sleep 0.3; echo done > {dir}/mark", background=True)
    handle.disconnect()
    assert eventually(lambda: box.files.exists(f"{dir}/mark"))


@case
def a_timeout_kills_the_command(box, dir):
    started = time.monotonic()
    raises(TimeoutException, lambda: box.commands.run(f"echo $$ > {dir}/pid; exec sleep 60", timeout=10))
    assert time.monotonic() - started < 50
    pid = box.files.read(f"{dir}/pid").strip()
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


@case
def stdin_is_sent_and_closed(box, _):
    handle = box.commands.run("cat", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "one\n")
    handle.send_stdin("zwei ä\n")
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\nzwei ä\n"


@case
def a_signal_sent_by_a_command_reaches_another(box, _):
    script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done"
    handle = box.commands.run(script, background=True)
    pid = handle.pid
    killer = threading.Timer(0, lambda: None)

    def heard(text):
        if "ready" in text:
            killer.function = lambda: box.commands.run(f"kill -TERM {pid}")
            killer.start()

    why = raises(CommandExitException, lambda: handle.wait(on_stdout=heard))
    killer.join()
    assert (why.exit_code, why.stdout) == (9, "ready\ncaught\n"), why


@case
def a_handle_kills_its_own_command(box, _):
    handle = box.commands.run("sleep 60", background=True)
    assert handle.kill() is True
    raises(CommandExitException, handle.wait)


@case
def a_command_without_a_timeout_outlasts_the_usual_one(box, _):
    assert box.commands.run("sleep 0.2; echo done", timeout=0).stdout == "done\n"


@case
def stdin_that_was_not_asked_for_is_at_its_end(box, _):
    assert box.commands.run("cat; echo end").stdout == "end\n"
    handle = box.commands.run("sleep 5", background=True)
    raises(SandboxException, lambda: box.commands.send_stdin(handle.pid, "x"))
    handle.kill()


@case
def stdin_is_streamed(box, _):
    handle = box.commands.run("wc -c", background=True, stdin=True)
    box.commands.stream_input(handle.pid, (b"x" * 65536 for _ in range(64)))
    handle.close_stdin()
    assert handle.wait().stdout.strip() == str(64 * 65536)


@case
def a_process_left_behind_holds_the_end_until_it_closes_its_output(box, _):
    started = time.monotonic()
    done = box.commands.run("(sleep 0.7; echo late) & echo early")
    assert done.stdout == "early\nlate\n" and time.monotonic() - started >= 0.6


# Terminals


@case
def a_terminal_echoes_resizes_and_ends(box, _):
    seen = bytearray()
    term = box.pty.create(PtySize(rows=30, cols=100))
    reader = threading.Thread(target=lambda: term.wait(on_pty=seen.extend), daemon=True)
    reader.start()
    box.pty.send_stdin(term.pid, b"stty size; echo T=$TERM\n")
    assert eventually(lambda: b"30 100" in seen and b"T=xterm-256color" in seen), bytes(seen)
    box.pty.resize(term.pid, PtySize(rows=50, cols=120))
    box.pty.send_stdin(term.pid, b"stty size; tty; test -t 0 && echo is-a-$((1+1))-tty\n")
    assert eventually(lambda: b"50 120" in seen and b"/dev/pts/" in seen and b"is-a-2-tty" in seen), bytes(seen)
    box.pty.send_stdin(term.pid, b"exit\n")
    reader.join(30)
    assert not reader.is_alive()


@case
def a_terminal_passes_ctrl_c(box, _):
    seen = bytearray()
    term = box.pty.create(PtySize(rows=24, cols=80))
    reader = threading.Thread(target=lambda: term.wait(on_pty=seen.extend), daemon=True)
    reader.start()
    box.pty.send_stdin(term.pid, b"echo $((6*7)); sleep 60\n")
    assert eventually(lambda: b"42" in seen), bytes(seen)
    box.pty.send_stdin(term.pid, b"\x03")
    box.pty.send_stdin(term.pid, b"echo code $?; exit 0\n")
    assert eventually(lambda: b"code 130" in seen), bytes(seen)
    reader.join(30)


@case
def a_terminal_is_connected_to_again(box, _):
    first = box.pty.create(PtySize(rows=24, cols=80), envs={"MINE": "yes"}, cwd="/usr")
    first.disconnect()
    seen = bytearray()
    again = box.pty.connect(first.pid)
    reader = threading.Thread(target=lambda: again.wait(on_pty=seen.extend), daemon=True)
    reader.start()
    box.pty.send_stdin(first.pid, b"echo got-$MINE; pwd; exit\n")
    assert eventually(lambda: b"got-yes\r\n/usr" in seen), bytes(seen)
    reader.join(30)
    assert not reader.is_alive()


@case
def a_terminal_is_killed(box, _):
    term = box.pty.create(PtySize(rows=24, cols=80))
    assert box.pty.kill(term.pid) is True
    raises(CommandExitException, term.wait)
    assert eventually(lambda: box.pty.kill(term.pid) is False)


# Files


@case
def files_are_written_and_read(box, dir):
    info = box.files.write(f"{dir}/new/deep/a.txt", "hällo")
    assert (info.name, info.path) == ("a.txt", f"{dir}/new/deep/a.txt"), info
    assert box.files.read(f"{dir}/new/deep/a.txt") == "hällo"
    assert bytes(box.files.read(f"{dir}/new/deep/a.txt", format="bytes")) == "hällo".encode()
    stream = box.files.read(f"{dir}/new/deep/a.txt", format="stream")
    assert b"".join(stream) == "hällo".encode()
    box.files.write(f"{dir}/new/deep/a.txt", b"")
    assert box.files.read(f"{dir}/new/deep/a.txt") == ""
    raises(FileNotFoundException, lambda: box.files.read(f"{dir}/none"))
    raises(InvalidArgumentException, lambda: box.files.read(dir))
    raises(InvalidArgumentException, lambda: box.files.write(dir, "x"))


@case
def several_files_are_written_at_once(box, dir):
    names = [f"{dir}/x/{i}" for i in range(5)] + [f"{dir}/ä b+c&d=e#f%.txt"]
    written = box.files.write_files([{"path": n, "data": n} for n in names])
    assert [w.path for w in written] == names, written
    for name in names:
        assert box.files.read(name) == name


@case
def content_is_compressed_when_asked(box, dir):
    text = "abc" * 100_000
    box.files.write(f"{dir}/z", text, gzip=True)
    assert open(f"{dir}/z").read() == text
    assert box.files.read(f"{dir}/z", gzip=True) == text


@case
def large_files_survive(box, dir):
    data = os.urandom(20_000_000)
    box.files.write(f"{dir}/big", data)
    assert bytes(box.files.read(f"{dir}/big", format="bytes")) == data


@case
def files_of_the_kernel_have_content(box, _):
    assert len(box.files.read("/proc/sys/kernel/random/boot_id").strip()) == 36


@case
def metadata_is_kept_and_replaced(box, dir):
    info = box.files.write(f"{dir}/m", "x", metadata={"author": "ada", "k-2": "v w"})
    assert info.metadata == {"author": "ada", "k-2": "v w"}, info
    assert box.files.get_info(f"{dir}/m").metadata == {"author": "ada", "k-2": "v w"}
    box.files.write(f"{dir}/m", "x")
    assert not box.files.get_info(f"{dir}/m").metadata


@case
def entries_are_described(box, dir):
    box.files.write(f"{dir}/f", "12345")
    os.chmod(f"{dir}/f", 0o640)
    os.symlink("f", f"{dir}/link")
    os.symlink("nowhere", f"{dir}/broken")
    info = box.files.get_info(f"{dir}/f")
    assert (info.name, info.type, info.size, info.mode, info.permissions, info.owner, info.group) == (
        "f", FileType.FILE, 5, 0o640, "-rw-r-----", "root", "root"), info
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    link = box.files.get_info(f"{dir}/link")
    assert link.symlink_target == os.path.realpath(f"{dir}/f"), link
    assert link.permissions.startswith("L"), link
    assert box.files.get_info(dir).type == FileType.DIR
    assert box.files.exists(f"{dir}/f") and not box.files.exists(f"{dir}/g")


@case
def directories_are_listed_in_order_and_depth(box, dir):
    for name in ["b/2", "b/10", "a/x/deep", "c", "B"]:
        box.files.write(f"{dir}/{name}", "")
    def names(depth):
        return [e.path[len(dir) + 1:] for e in box.files.list(dir, depth=depth)]
    assert names(1) == ["B", "a", "b", "c"], names(1)
    assert names(2) == ["B", "a", "a/x", "b", "b/10", "b/2", "c"], names(2)
    assert names(9) == ["B", "a", "a/x", "a/x/deep", "b", "b/10", "b/2", "c"], names(9)
    raises(InvalidArgumentException, lambda: box.files.list(f"{dir}/c"))
    raises(FileNotFoundException, lambda: box.files.list(f"{dir}/none"))


@case
def directories_are_made_moved_and_removed(box, dir):
    assert box.files.make_dir(f"{dir}/p/q") is True
    assert box.files.make_dir(f"{dir}/p/q") is False
    box.files.write(f"{dir}/p/q/f", "x")
    moved = box.files.rename(f"{dir}/p/q", f"{dir}/r/s")
    assert moved.path == f"{dir}/r/s" and box.files.read(f"{dir}/r/s/f") == "x"
    raises(FileNotFoundException, lambda: box.files.rename(f"{dir}/none", f"{dir}/x"))
    box.files.remove(f"{dir}/r")
    box.files.remove(f"{dir}/r")
    assert not box.files.exists(f"{dir}/r")


@case
def paths_start_at_home(box, _):
    home = box.commands.run("echo -n $HOME").stdout
    name = f"dormouse-sdk-{os.getpid()}"
    try:
        assert box.files.write(f"~/{name}/a", "1").path == f"{home}/{name}/a"
        assert box.files.read(f"{name}/a") == "1"
    finally:
        box.files.remove(f"{home}/{name}")


@case
def files_belong_to_the_user_that_is_named(box, dir):
    os.chmod(dir, 0o777)
    box.files.write(f"{dir}/sub/f", "x", user="daemon")
    assert box.files.get_info(f"{dir}/sub").owner == "daemon"
    assert box.files.get_info(f"{dir}/sub/f").owner == "daemon"


# Watches


@case
def a_new_file_is_exactly_three_events(box, dir):
    watch = box.files.watch_dir(dir)
    box.files.write(f"{dir}/f", "content")
    events = watch.get_new_events()
    assert [(e.name, e.type) for e in events] == [
        ("f", FilesystemEventType.CREATE),
        ("f", FilesystemEventType.CHMOD),
        ("f", FilesystemEventType.WRITE),
    ], events
    assert watch.get_new_events() == []
    os.rename(f"{dir}/f", f"{dir}/g")
    os.remove(f"{dir}/g")
    assert [(e.name, e.type) for e in watch.get_new_events()] == [
        ("f", FilesystemEventType.RENAME),
        ("g", FilesystemEventType.CREATE),
        ("g", FilesystemEventType.REMOVE),
    ]
    watch.stop()
    raises(SandboxException, watch.get_new_events)


@case
def a_watch_sees_what_is_below_at_once(box, dir):
    watch = box.files.watch_dir(dir, recursive=True)
    box.files.make_dir(f"{dir}/sub")
    box.files.write(f"{dir}/sub/f", "x")
    box.files.write(f"{dir}/sub/new/g", "x")
    seen = [(e.name, e.type) for e in watch.get_new_events()]
    for name in ["sub/f", "sub/new/g"]:
        mine = [kind for which, kind in seen if which == name]
        assert mine == [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE], seen
    watch.stop()


@case
def a_watch_describes_entries_when_asked(box, dir):
    watch = box.files.watch_dir(dir, include_entry=True)
    box.files.write(f"{dir}/f", "12345")
    events = watch.get_new_events()
    assert all(e.entry is not None and e.entry.path == f"{dir}/f" for e in events), events
    box.files.remove(f"{dir}/f")
    assert [e.entry for e in watch.get_new_events()] == [None]
    watch.stop()


@case
def a_watch_tells_that_its_directory_is_gone(box, dir):
    os.mkdir(f"{dir}/sub")
    watch = box.files.watch_dir(f"{dir}/sub")
    box.files.remove(f"{dir}/sub")
    assert FilesystemEventType.REMOVE in [e.type for e in watch.get_new_events()]
    watch.stop()


@case
def watches_of_what_cannot_be_watched_are_refused(box, dir):
    raises(FileNotFoundException, lambda: box.files.watch_dir(f"{dir}/none"))
    box.files.write(f"{dir}/f", "")
    raises(InvalidArgumentException, lambda: box.files.watch_dir(f"{dir}/f"))


# The other client


@case
def the_async_client_works_the_same(_, dir):
    async def all():
        box = await AsyncSandbox.create()
        done = await box.commands.run("echo async")
        assert done.stdout == "async\n"
        events = []
        watch = await box.files.watch_dir(dir, on_event=events.append)
        await box.files.write(f"{dir}/f", "x")
        for _ in range(100):
            if len(events) >= 3:
                break
            await asyncio.sleep(0.02)
        assert [e.type for e in events] == [
            FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE], events
        await watch.stop()
        results = await asyncio.gather(*(box.commands.run(f"echo {i}") for i in range(50)))
        assert [r.stdout for r in results] == [f"{i}\n" for i in range(50)]
        seen = bytearray()
        term = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.extend)
        await box.pty.send_stdin(term.pid, b"echo $((40+2)); exit\n")
        await term.wait()
        assert b"42" in seen
        handle = await box.commands.run("cat", background=True, stdin=True)
        await box.commands.send_stdin(handle.pid, "x")
        await box.commands.close_stdin(handle.pid)
        assert (await handle.wait()).stdout == "x"

    asyncio.run(all())


@case
def the_sandbox_is_running(box, _):
    assert box.is_running()


def main():
    box = Sandbox.create()
    only = sys.argv[1:]
    failed = 0
    for function in CASES:
        if only and function.__name__ not in only:
            continue
        dir = os.path.realpath(tempfile.mkdtemp(prefix="sdk-"))
        started = time.monotonic()
        try:
            function(box, dir)
            print(f"ok      {function.__name__}  {time.monotonic() - started:.2f} s", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {function.__name__}\n{traceback.format_exc()}", flush=True)
        finally:
            shutil.rmtree(dir, ignore_errors=True)
    print(f"{len(CASES) - failed} of {len(CASES)} passed" if not only else f"{failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
