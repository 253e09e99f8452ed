"""From create to kill: options, deadlines, lists, sleep and waking."""

import datetime
import time

import e2b
from e2b import Sandbox, SandboxException, SandboxQuery, SandboxState, Template

from harness import RUN, VERSION, case, eventually, get, number, raises

NotFound = getattr(e2b, "SandboxNotFoundException", e2b.NotFoundException)


def seconds_left(box):
    return (box.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()


def state(box):
    return box.get_info().state


def asleep(box):
    return eventually(lambda: state(box) == SandboxState.PAUSED)


@case
def a_sandbox_is_made_described_listed_and_killed(world):
    box = world.create(metadata={"kind": "first"})
    assert box.is_running()
    info = box.get_info()
    assert info == Sandbox.get_info(box.sandbox_id)
    assert info.sandbox_id == box.sandbox_id and info.sandbox_id.isalnum(), info
    assert (info.name, info.state) == ("base", SandboxState.RUNNING), info
    assert info.metadata == {"run": RUN, "kind": "first"}, info
    assert info.cpu_count >= 1 and info.memory_mb >= 128 and info.envd_version, info
    listed = Sandbox.list(query=SandboxQuery(metadata={"run": RUN, "kind": "first"})).next_items()
    assert [i.sandbox_id for i in listed] == [box.sandbox_id], listed
    assert box.kill() is True
    assert box.is_running() is False
    assert box.kill() is False
    assert Sandbox.kill(box.sandbox_id) is False
    raises(NotFound, box.get_info)
    raises(NotFound, lambda: Sandbox.connect(box.sandbox_id))
    raises(NotFound, lambda: Sandbox.pause(box.sandbox_id))
    raises(NotFound, lambda: box.set_timeout(60))
    listed = Sandbox.list(query=SandboxQuery(metadata={"kind": "first", "run": RUN})).next_items()
    assert listed == [], listed


@case
def a_sandbox_is_a_context_that_ends_with_its_block(world):
    with world.create() as box:
        assert box.commands.run("echo in").stdout == "in\n"
    assert not box.is_running()


@case
def the_template_may_be_named(world):
    assert world.create(template="base").get_info().name == "base"
    raises(SandboxException, lambda: world.create(template="no-such-template"), "no-such-template")


@case
def templates_are_known_by_name_alias_and_tag(world):
    for known in ["base", "base:default", "aliased", "other_name", "other_name:v1"]:
        assert Template.exists(known) is True, known
        assert Template.alias_exists(known) is True, known
    for unknown in ["no-such-template", "base:v1", "aliased:v1", "somebody/base"]:
        assert Template.exists(unknown) is False, unknown
    assert sorted(t.tag for t in Template.get_tags("other_name")) == ["default", "v1"]
    box = world.create(template="other_name:v1")
    assert box.get_info().template_id == "aliased"
    assert box.commands.run("echo made").stdout == "made\n"


@case
def environment_of_the_sandbox_reaches_commands(world):
    box = world.create(envs={"ONE": "1", "TWO": "a b $HOME 'q' \"d\" ä"})
    said = box.commands.run('printf "%s|%s|%s" "$ONE" "$TWO" "$E2B_SANDBOX"').stdout
    assert said == "1|a b $HOME 'q' \"d\" ä|true", said
    assert box.commands.run("echo -n $ONE", envs={"ONE": "other"}).stdout == "other"
    assert box.commands.run("echo -n $E2B_SANDBOX_ID").stdout == box.sandbox_id
    assert box.commands.run("echo -n $E2B_TEMPLATE_ID").stdout == box.get_info().template_id


@case
def metadata_of_any_text_is_kept_and_found(world):
    odd = {"a b": "c&d=e", "ü": "100% ☃/+", "empty": ""}
    box = world.create(metadata=odd)
    assert box.get_info().metadata == {"run": RUN, **odd}
    found = Sandbox.list(query=SandboxQuery(metadata={**odd, "run": RUN})).next_items()
    assert [i.sandbox_id for i in found] == [box.sandbox_id], found
    assert Sandbox.list(query=SandboxQuery(metadata={"run": RUN, "a b": "c"})).next_items() == []


@case
def a_deadline_is_five_minutes_unless_said_and_can_be_moved(world):
    box = Sandbox.create()
    world.keep(box.sandbox_id)
    assert 280 < seconds_left(box) <= 301, seconds_left(box)
    box.set_timeout(60)
    assert 40 < seconds_left(box) <= 61, seconds_left(box)
    Sandbox.set_timeout(box.sandbox_id, 900)
    assert 880 < seconds_left(box) <= 901, seconds_left(box)
    before = box.get_info().end_at
    assert Sandbox.connect(box.sandbox_id, timeout=30).get_info().end_at == before
    assert box.connect(timeout=30) is not None and box.get_info().end_at == before
    Sandbox.connect(box.sandbox_id, timeout=1800)
    assert 1780 < seconds_left(box) <= 1801, seconds_left(box)


@case
def a_sandbox_ends_at_its_deadline(world):
    box = world.create(timeout=2)
    assert eventually(lambda: not box.is_running())
    raises(NotFound, box.get_info)
    raises(e2b.TimeoutException, lambda: box.commands.run("true"))
    raises(e2b.TimeoutException, lambda: box.files.write("a", "b"))
    raises(e2b.TimeoutException, lambda: box.files.list("/"))


@case
def a_deadline_of_now_ends_it(world):
    box = world.create()
    box.set_timeout(0)
    assert eventually(lambda: not box.is_running())


@case
def who_runs_a_command_hears_that_the_sandbox_was_killed(world):
    box = world.create()
    handle = box.commands.run("sleep 60", background=True)
    Sandbox.kill(box.sandbox_id)
    why = raises(SandboxException, handle.wait)
    if number(VERSION) >= (2, 55):
        assert isinstance(why, e2b.TimeoutException), repr(why)


@case
def lists_are_filtered_ordered_and_paged(world):
    group = {"group": f"paging-{time.monotonic_ns()}"}
    boxes = [world.create(metadata=group).sandbox_id for _ in range(3)]

    def ids(limit=None, **query):
        pages = Sandbox.list(query=SandboxQuery(metadata={**group, "run": RUN}, **query), limit=limit)
        found = []
        while pages.has_next:
            items = pages.next_items()
            assert limit is None or len(items) <= limit
            found += [i.sandbox_id for i in items]
        return found

    assert ids() == boxes[::-1], "newest first"
    assert ids(limit=1) == boxes[::-1]
    assert ids(limit=2) == boxes[::-1]
    Sandbox.pause(boxes[1])
    assert ids(state=[SandboxState.PAUSED]) == [boxes[1]]
    assert ids(state=[SandboxState.RUNNING]) == [boxes[2], boxes[0]]
    assert ids(state=[SandboxState.RUNNING, SandboxState.PAUSED]) == boxes[::-1]
    pages = Sandbox.list(query=SandboxQuery(metadata=group), limit=2)
    pages.next_items()
    rest = Sandbox.list(query=SandboxQuery(metadata=group), limit=2, next_token=pages.next_token)
    assert [i.sandbox_id for i in rest.next_items()] == [boxes[0]]
    assert not rest.has_next


@case(since="2.46")
def lists_go_both_ways_and_know_starts_and_templates(world):
    group = {"group": f"order-{time.monotonic_ns()}"}
    first, second = world.create(metadata=group), world.create(metadata=group)
    infos = [first.get_info(), second.get_info()]

    def ids(order=None, **query):
        pages = Sandbox.list(query=SandboxQuery(metadata=group, **query), order=order)
        return [i.sandbox_id for i in pages.next_items()]

    assert ids("asc") == [first.sandbox_id, second.sandbox_id]
    assert ids("desc") == [second.sandbox_id, first.sandbox_id]
    assert ids(started_after=infos[1].started_at) == [second.sandbox_id], "inclusive"
    assert ids("asc", template="base") == [first.sandbox_id, second.sandbox_id]
    assert ids("asc", template=infos[0].template_id) == [first.sandbox_id, second.sandbox_id]
    assert ids(template="no-such-template") == []


@case(since="2.58")
def a_create_that_is_repeated_by_its_key_is_one_sandbox(world):
    key = f"conformance-{time.monotonic_ns()}"
    boxes = [world.create(idempotency_key=key, metadata={"k": key}) for _ in range(2)]
    assert boxes[0].sandbox_id == boxes[1].sandbox_id
    assert boxes[1].commands.run("echo yes").stdout == "yes\n"
    why = raises(SandboxException, lambda: world.create(idempotency_key=key, metadata={"k": "x"}))
    assert why.status_code == 422, why


# Sleep


COUNT = "i=0; while :; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.05; done"


@case
def sleep_keeps_files_processes_and_tokens(world):
    box = world.create(envs={"MINE": "kept"})
    box.files.write("note", "before")
    handle = box.commands.run(COUNT, background=True, timeout=0)
    handle.disconnect()
    assert eventually(lambda: box.files.exists("/tmp/count"))
    assert box.pause() is True or number(VERSION) < (2, 46)
    info = box.get_info()
    assert info.state == SandboxState.PAUSED, info
    assert not box.is_running()
    raises(e2b.TimeoutException, lambda: box.commands.run("true"))
    assert Sandbox.pause(box.sandbox_id) is False, "it sleeps already"

    again = Sandbox.connect(box.sandbox_id, timeout=120)
    assert again.sandbox_id == box.sandbox_id
    assert state(again) == SandboxState.RUNNING
    assert again.files.read("note") == "before"
    assert any(p.pid == handle.pid for p in again.commands.list()), "the same process"
    counted = int(again.files.read("/tmp/count"))
    assert eventually(lambda: int(again.files.read("/tmp/count")) > counted), "goes on"
    assert again.commands.run("echo -n $MINE").stdout == "kept"
    assert box.is_running() and box.files.read("note") == "before", "with the old token too"

    Sandbox.pause(box.sandbox_id)
    assert box.connect(timeout=60) is not None
    assert box.commands.run("cat note").stdout == "before"
    assert 40 < seconds_left(box) <= 61, seconds_left(box)
    Sandbox.pause(box.sandbox_id)
    assert Sandbox.kill(box.sandbox_id) is True, "asleep"
    raises(NotFound, lambda: Sandbox.connect(box.sandbox_id))


@case(since="2.46")
def sleep_without_memory_keeps_files_and_boots(world):
    box = world.create(envs={"MINE": "kept"})
    boot = box.files.read("/proc/sys/kernel/random/boot_id")
    handle = box.commands.run("sleep 1000", background=True, timeout=0)
    handle.disconnect()
    box.files.write("note", "before")
    box.pause(keep_memory=False)
    again = Sandbox.connect(box.sandbox_id)
    assert again.files.read("note") == "before"
    assert again.files.read("/proc/sys/kernel/random/boot_id") != boot
    assert all("sleep 1000" not in p.args for p in again.commands.list())
    assert again.commands.run("echo -n $MINE").stdout == "kept"
    assert box.files.read("note") == "before", "with the old token too"


@case(since="2.55")
def who_wants_a_reboot_does_not_get_the_memory_back(world):
    box = world.create()
    box.pause()
    raises(SandboxException, lambda: Sandbox.connect(box.sandbox_id, on_resume="reboot"), "memory")
    assert state(box) == SandboxState.PAUSED
    box.connect()
    assert box.connect(on_resume="reboot") is not None, "no-op on one that runs"
    assert box.commands.run("echo on").stdout == "on\n"


def sleeper(world, auto_resume=None, **options):
    lifecycle = {"on_timeout": "pause"}
    if auto_resume is not None:
        lifecycle["auto_resume"] = auto_resume
    return world.create(lifecycle=lifecycle, **options)


@case
def a_deadline_puts_to_sleep_where_that_was_asked(world):
    box = sleeper(world, timeout=60)
    info = box.get_info()
    assert (info.lifecycle["on_timeout"], info.lifecycle["auto_resume"]) == ("pause", False), info
    box.files.write("note", "kept")
    box.set_timeout(1)
    assert asleep(box)
    assert not box.is_running(), "and traffic does not wake it"
    raises(e2b.TimeoutException, lambda: box.commands.run("true"))
    assert state(box) == SandboxState.PAUSED
    box.connect(timeout=60)
    assert box.files.read("note") == "kept"


@case(since="2.46")
def a_deadline_puts_to_sleep_without_memory_where_that_was_asked(world):
    mode = {"mode": "filesystem"} if number(VERSION) >= (2, 55) else {"keep_memory": False}
    box = world.create(timeout=60, lifecycle={"on_timeout": {"action": "pause", **mode}})
    boot = box.files.read("/proc/sys/kernel/random/boot_id")
    box.set_timeout(1)
    assert asleep(box)
    box.connect(timeout=60)
    assert box.files.read("/proc/sys/kernel/random/boot_id") != boot


def wakes(world, use):
    """Asleep by its deadline, then used without connecting."""
    box = sleeper(world, auto_resume=True, timeout=60)
    assert box.get_info().lifecycle["auto_resume"] is True
    prepared = use(box, None)
    box.set_timeout(1)
    assert asleep(box)
    use(box, prepared)
    assert state(box) == SandboxState.RUNNING
    assert 240 < seconds_left(box) <= 301, seconds_left(box)


@case
def a_command_wakes(world):
    def use(box, _):
        assert box.commands.run("echo awake").stdout == "awake\n"

    wakes(world, use)


@case
def a_file_wakes(world):
    def use(box, prepared):
        if prepared is None:
            box.files.write("note", "kept")
        assert box.files.read("note") == "kept"
        return True

    wakes(world, use)


@case
def a_probe_wakes(world):
    wakes(world, lambda box, _: box.is_running())


@case
def a_request_to_a_port_wakes(world):
    def use(box, prepared):
        url, headers = prepared or world.serve_inside(box, 8080)
        reply = get(url, headers=headers)
        assert (reply.status_code, reply.text) == (200, "hello from inside\n"), reply.text
        return url, headers

    wakes(world, use)


@case
def one_that_was_put_to_sleep_by_hand_wakes_too(world):
    box = sleeper(world, auto_resume=True)
    box.pause()
    assert box.commands.run("echo awake").stdout == "awake\n"


@case
def waking_needs_sleep_at_the_deadline(world):
    raises(Exception, lambda: world.create(lifecycle={"on_timeout": "kill", "auto_resume": True}))


# What there is to know


@case
def metrics_are_measured(world):
    box = world.shared()
    box.commands.run("true")
    assert eventually(lambda: box.get_metrics(), 40), "nothing was measured"
    one = Sandbox.get_metrics(box.sandbox_id)[-1]
    assert one.cpu_count >= 1 and one.mem_total > 0 and 0 < one.mem_used <= one.mem_total, one
    assert one.disk_total > 0 and one.cpu_used_pct >= 0, one
    assert abs((one.timestamp - datetime.datetime.now(datetime.timezone.utc)).total_seconds()) < 120
    later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    assert box.get_metrics(start=later) == []


@case(since="2.46")
def what_is_not_built_is_refused_by_name(world):
    raises(Exception, lambda: world.create(volume_mounts={"/data": "volume"}), "volumeMounts")
