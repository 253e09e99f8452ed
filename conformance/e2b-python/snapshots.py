"""Snapshots and forks: what is kept of a sandbox, and sandboxes that start from it."""

import e2b
from e2b import Sandbox, SandboxException

from harness import RUN, case, eventually, raises

NotFound = getattr(e2b, "SandboxNotFoundException", e2b.NotFoundException)
FILE = "/home/user/kept.txt"


def all_of(pages):
    found = []
    while pages.has_next:
        found += pages.next_items()
    return found


@case
def a_sandbox_starts_from_a_snapshot_of_another_that_is_gone(world):
    box = world.create(envs={"ONE": "1"})
    box.files.write(FILE, "kept")
    box.commands.run("echo of root > /etc/kept; rm /etc/hostname", user="root")
    snapshot = box.create_snapshot()
    box.files.write(FILE, "later")
    assert box.is_running()
    assert [s.snapshot_id for s in all_of(box.list_snapshots())] == [snapshot.snapshot_id]
    assert box.kill()
    child = world.create(template=snapshot.snapshot_id)
    assert child.sandbox_id != box.sandbox_id
    assert child.files.read(FILE) == "kept"
    assert child.commands.run("cat /etc/kept; test ! -e /etc/hostname").stdout == "of root\n"
    assert child.commands.run("echo -n $E2B_SANDBOX_ID").stdout == child.sandbox_id
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    assert child.files.read(FILE) == "kept"
    raises(SandboxException, lambda: world.create(template=snapshot.snapshot_id))
    raises(NotFound, box.create_snapshot)


@case
def a_named_snapshot_is_created_from_by_its_name(world):
    name = f"kept-{RUN[:12]}"
    box = world.create()
    box.files.write(FILE, "first")
    first = box.create_snapshot(name=name)
    assert first.names == [first.snapshot_id] and first.snapshot_id.endswith(f"/{name}:default"), first
    box.files.write(FILE, "second")
    second = box.create_snapshot(name=f"{name}:v2")
    assert world.create(template=name).files.read(FILE) == "first"
    assert world.create(template=f"{name}:v2").files.read(FILE) == "second"
    found = all_of(Sandbox.list_snapshots(name=name, limit=1))
    assert {s.snapshot_id for s in found} == {first.snapshot_id, second.snapshot_id}, found
    assert [s.snapshot_id for s in all_of(Sandbox.list_snapshots(name=f"{name}:v2"))] == [second.snapshot_id]
    # The name moves on to the newest.
    box.files.write(FILE, "third")
    assert box.create_snapshot(name=name).snapshot_id == first.snapshot_id
    assert world.create(template=name).files.read(FILE) == "third"
    for one in (first, second):
        assert Sandbox.delete_snapshot(one.snapshot_id) is True
    assert all_of(Sandbox.list_snapshots(name=name)) == []


@case
def a_sandbox_that_sleeps_is_captured_as_it_is(world):
    box = world.create()
    box.files.write(FILE, "asleep")
    box.pause()
    snapshot = Sandbox.create_snapshot(box.sandbox_id)
    assert box.get_info().state == e2b.SandboxState.PAUSED
    assert world.create(template=snapshot.snapshot_id).files.read(FILE) == "asleep"
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


@case(since="2.55.0")
def a_snapshot_with_memory_is_refused_and_one_of_files_is_not(world):
    box = world.create()
    raises(SandboxException, lambda: box.create_snapshot(mode="full"), "memory")
    snapshot = box.create_snapshot(mode="filesystem")
    assert Sandbox.delete_snapshot(snapshot.snapshot_id)


@case
def forks_have_the_files_and_nothing_else_in_common(world):
    box = world.create(envs={"ONE": "1"}, metadata={"kind": "forked"})
    box.files.write(FILE, "shared")
    children = box.fork(timeout=120, count=3)
    assert len(children) == 3 and all(isinstance(child, Sandbox) for child in children), children
    for child in children:
        world.keep(child.sandbox_id)
    assert len({child.sandbox_id for child in children}) == 3
    tokens = {child._envd_access_token for child in children}
    assert len(tokens) == 3 and box._envd_access_token not in tokens
    boots = set()
    for number, child in enumerate(children):
        assert child.files.read(FILE) == "shared"
        assert child.commands.run("echo -n $ONE").stdout == "1"
        assert child.get_info().metadata["kind"] == "forked"
        boots.add(child.commands.run("cat /proc/sys/kernel/random/boot_id; hostname").stdout)
        child.files.write(FILE, f"of {number}")
    assert len(boots) == 3, boots
    assert [child.files.read(FILE) for child in children] == ["of 0", "of 1", "of 2"]
    assert box.is_running() and box.files.read(FILE) == "shared"
    box.pause()
    raises(SandboxException, lambda: box.fork(), "paused")
    box.kill()
    assert eventually(lambda: not box.is_running())
    raises(NotFound, lambda: Sandbox.fork(box.sandbox_id))
