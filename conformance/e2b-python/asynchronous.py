"""The same through `AsyncSandbox`, each call at least once: its transport is another."""

import asyncio
import datetime

import e2b
import httpx
from e2b import (
    AsyncSandbox,
    CommandExitException,
    FilesystemEventType,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize

from harness import RUN, case

NotFound = getattr(e2b, "SandboxNotFoundException", e2b.NotFoundException)


def asynchronous(**versions):
    """A case that is a coroutine, with a sandbox of its own."""

    def register(function):
        def run(world):
            async def whole():
                box = await AsyncSandbox.create(timeout=120, metadata={"run": RUN, "async": function.__name__})
                world.keep(box.sandbox_id)
                await function(box)

            asyncio.run(whole())

        run.__name__ = function.__name__
        case(**versions)(run)
        return function

    return register


async def raises(kind, awaitable):
    try:
        await awaitable
    except kind as why:
        return why
    raise AssertionError(f"nothing was raised, expected {kind.__name__}")


async def eventually(check, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not (found := await check()):
            await asyncio.sleep(0.05)
    return found


@asynchronous()
async def an_async_sandbox_lives_and_ends(box):
    assert await box.is_running()
    info = await box.get_info()
    assert info == await AsyncSandbox.get_info(box.sandbox_id)
    await box.set_timeout(60)
    await AsyncSandbox.set_timeout(box.sandbox_id, 90)
    end = (await box.get_info()).end_at
    left = (end - datetime.datetime.now(datetime.timezone.utc)).total_seconds()
    assert 60 < left <= 91, left
    again = await AsyncSandbox.connect(box.sandbox_id, timeout=10)
    assert (await again.get_info()).end_at == end
    query = SandboxQuery(metadata={"run": RUN, "async": "an_async_sandbox_lives_and_ends"})
    pages = AsyncSandbox.list(query=query, limit=1)
    assert [i.sandbox_id for i in await pages.next_items()] == [box.sandbox_id]
    assert not pages.has_next
    assert isinstance(await box.get_metrics(), list)
    await box.pause()
    assert (await box.get_info()).state == SandboxState.PAUSED and not await box.is_running()
    assert await AsyncSandbox.pause(box.sandbox_id) is False
    await box.connect(timeout=60)
    assert (await box.commands.run("echo back")).stdout == "back\n"
    assert await box.kill() is True
    assert await AsyncSandbox.kill(box.sandbox_id) is False
    await raises(NotFound, box.get_info())
    await raises(TimeoutException, box.commands.run("true"))


@asynchronous()
async def async_traffic_wakes(box):
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    async with await AsyncSandbox.create(timeout=60, lifecycle=lifecycle) as sleeper:
        await sleeper.files.write("note", "kept")
        await sleeper.pause()
        assert await sleeper.files.read("note") == "kept"
        await sleeper.pause()
        heard = await asyncio.gather(*(sleeper.commands.run(f"echo {i}") for i in range(5)))
        assert [done.stdout for done in heard] == [f"{i}\n" for i in range(5)]
    assert not await sleeper.is_running()


@asynchronous()
async def async_commands_run(box):
    out, err = [], []
    done = await box.commands.run("echo a; echo b >&2; echo c", on_stdout=out.append, on_stderr=err.append)
    assert ("".join(out), "".join(err), done.exit_code) == ("a\nc\n", "b\n", 0)
    why = await raises(CommandExitException, box.commands.run("exit 9"))
    assert why.exit_code == 9
    done = await box.commands.run("id -un; pwd; echo $A", user="root", cwd="/tmp", envs={"A": "b"})
    assert done.stdout == "root\n/tmp\nb\n"
    handle = await box.commands.run("cat; touch ended; sleep 61", background=True, stdin=True, timeout=0)
    await box.commands.send_stdin(handle.pid, "in\n")
    await box.commands.close_stdin(handle.pid)
    await eventually(lambda: box.files.exists("ended"))
    assert any(p.pid == handle.pid for p in await box.commands.list())
    other = await box.commands.connect(handle.pid)
    assert await box.commands.kill(handle.pid) is True
    assert (await raises(CommandExitException, handle.wait())).stdout == "in\n"
    await raises(CommandExitException, other.wait())
    assert await box.commands.kill(handle.pid) is False
    await raises(TimeoutException, box.commands.run("sleep 62", timeout=1))
    many = await asyncio.gather(*(box.commands.run(f"echo {i}; sleep 0.2") for i in range(20)))
    assert [done.stdout for done in many] == [f"{i}\n" for i in range(20)]


@asynchronous(since="2.60")
async def async_input_is_streamed(box):
    handle = await box.commands.run("wc -c", background=True, stdin=True)
    async with box.commands.stream_input(handle.pid) as stream:
        for _ in range(16):
            await stream.send(b"x" * 4096)
    await handle.close_stdin()
    assert (await handle.wait()).stdout.strip() == "65536"


@asynchronous()
async def async_files_are_kept(box):
    info = await box.files.write("d/a", "text")
    assert info.path == "/home/user/d/a"
    assert await box.files.read("d/a") == "text"
    assert bytes(await box.files.read("d/a", format="bytes")) == b"text"
    assert b"".join([part async for part in await box.files.read("d/a", format="stream")]) == b"text"
    written = await box.files.write_files([{"path": "d/b", "data": b"1"}, {"path": "d/c", "data": "2"}])
    assert [w.name for w in written] == ["b", "c"]
    assert [e.name for e in await box.files.list("d")] == ["a", "b", "c"]
    assert await box.files.exists("d/a") and not await box.files.exists("d/z")
    assert (await box.files.get_info("d/a")).size == 4
    assert (await box.files.rename("d/a", "d/y")).name == "y"
    await box.files.remove("d/y")
    assert await box.files.make_dir("d/new") is True and await box.files.make_dir("d/new") is False
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(box.download_url("d/b", use_signature_expiration=60))).text == "1"
        sent = await client.post(box.upload_url("d/up"), files={"file": ("up", b"sent")})
        assert sent.status_code == 200
    assert await box.files.read("d/up") == "sent"


@asynchronous()
async def async_watches_hear_exactly_what_happens(box):
    await box.files.make_dir("w")
    events = []
    watch = await box.files.watch_dir("w", on_event=events.append)
    await box.files.write("w/f", "content")

    async def three():
        return len(events) >= 3

    await eventually(three)
    await asyncio.sleep(0.3)
    assert [(e.name, e.type) for e in events] == [
        ("f", FilesystemEventType.CREATE),
        ("f", FilesystemEventType.CHMOD),
        ("f", FilesystemEventType.WRITE),
    ], events
    await watch.stop()
    await box.files.write("w/g", "content")
    await asyncio.sleep(0.2)
    assert len(events) == 3


@asynchronous()
async def an_async_terminal_works(box):
    seen = bytearray()
    term = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.extend)
    await box.pty.send_stdin(term.pid, b"stty size\n")

    async def has(part):
        return part in seen

    await eventually(lambda: has(b"24 80"))
    await box.pty.resize(term.pid, PtySize(rows=40, cols=90))
    await box.pty.send_stdin(term.pid, b"stty size\n")
    await eventually(lambda: has(b"40 90"))
    assert await box.pty.kill(term.pid) is True
