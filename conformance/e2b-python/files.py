"""Files, watches, and addresses for those who have no key."""

import io
import os
import time

import e2b
from e2b import FilesystemEventType, FileType, InvalidArgumentException

from harness import case, eventually, get, post, raises

Missing = getattr(e2b, "FileNotFoundException", e2b.NotFoundException)


@case
def files_are_written_and_read_in_every_form(world):
    box, dir = world.shared(), world.directory()
    info = box.files.write(f"{dir}/new/deep/a.txt", "hällo")
    assert (info.name, info.path) == ("a.txt", f"{dir}/new/deep/a.txt"), info
    assert box.files.read(f"{dir}/new/deep/a.txt") == "hällo"
    assert bytes(box.files.read(f"{dir}/new/deep/a.txt", format="bytes")) == "hällo".encode()
    assert b"".join(box.files.read(f"{dir}/new/deep/a.txt", format="stream")) == "hällo".encode()
    box.files.write(f"{dir}/b", b"\x00\xff\x01")
    assert bytes(box.files.read(f"{dir}/b", format="bytes")) == b"\x00\xff\x01"
    box.files.write(f"{dir}/b", io.BytesIO(b"from a stream"))
    assert box.files.read(f"{dir}/b") == "from a stream"
    box.files.write(f"{dir}/b", "")
    assert box.files.read(f"{dir}/b") == ""
    raises(Missing, lambda: box.files.read(f"{dir}/none"))
    raises(InvalidArgumentException, lambda: box.files.read(dir))
    raises(InvalidArgumentException, lambda: box.files.write(dir, "x"))


@case
def many_files_are_written_at_once(world):
    box, dir = world.shared(), world.directory()
    names = [f"{dir}/x/{i}" for i in range(5)] + [f"{dir}/ä b+c&d=e#f%.txt"]
    written = box.files.write_files([{"path": n, "data": n} for n in names])
    assert [w.path for w in written] == names, written
    assert all(box.files.read(name) == name for name in names)
    assert box.files.write_files([]) == []


@case
def large_and_compressed_content_survives(world):
    box, dir = world.shared(), world.directory()
    data = os.urandom(8_000_000)
    box.files.write(f"{dir}/big", data)
    assert bytes(box.files.read(f"{dir}/big", format="bytes")) == data
    box.files.write(f"{dir}/z", "abc" * 100_000, gzip=True)
    assert box.files.read(f"{dir}/z", gzip=True) == "abc" * 100_000


@case
def metadata_is_kept_and_replaced(world):
    box, dir = world.shared(), world.directory()
    info = box.files.write(f"{dir}/m", "x", metadata={"author": "ada", "k-2": "v w"})
    assert info.metadata == {"author": "ada", "k-2": "v w"}, info
    assert box.files.get_info(f"{dir}/m").metadata == {"author": "ada", "k-2": "v w"}
    box.files.write(f"{dir}/m", "x")
    assert not box.files.get_info(f"{dir}/m").metadata


@case
def entries_are_described(world):
    box, dir = world.shared(), world.directory()
    box.files.write(f"{dir}/f", "12345")
    box.commands.run("chmod 640 f; ln -s f link", cwd=dir)
    info = box.files.get_info(f"{dir}/f")
    assert (info.name, info.type, info.path, info.size, info.mode, info.permissions) == (
        "f", FileType.FILE, f"{dir}/f", 5, 0o640, "-rw-r-----"), info
    assert (info.owner, info.group) == ("user", "user"), info
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    assert box.files.get_info(f"{dir}/link").symlink_target == f"{dir}/f"
    assert box.files.get_info(dir).type == FileType.DIR
    assert box.files.exists(f"{dir}/f") and not box.files.exists(f"{dir}/g")
    raises(Missing, lambda: box.files.get_info(f"{dir}/g"))
    assert len(box.files.read("/proc/sys/kernel/random/boot_id").strip()) == 36


@case
def directories_are_listed_in_order_and_depth(world):
    box, dir = world.shared(), world.directory()
    for name in ["b/2", "b/10", "a/x/deep", "c", "B"]:
        box.files.write(f"{dir}/{name}", "")

    def names(depth):
        return [e.path[len(dir) + 1:] for e in box.files.list(dir, depth=depth)]

    assert names(1) == ["B", "a", "b", "c"], names(1)
    assert names(2) == ["B", "a", "a/x", "b", "b/10", "b/2", "c"], names(2)
    assert names(9) == ["B", "a", "a/x", "a/x/deep", "b", "b/10", "b/2", "c"], names(9)
    raises(InvalidArgumentException, lambda: box.files.list(f"{dir}/c"))
    raises(Missing, lambda: box.files.list(f"{dir}/none"))
    raises(InvalidArgumentException, lambda: box.files.list(dir, depth=0))


@case
def directories_are_made_moved_and_removed(world):
    box, dir = world.shared(), world.directory()
    assert box.files.make_dir(f"{dir}/p/q") is True
    assert box.files.make_dir(f"{dir}/p/q") is False
    box.files.write(f"{dir}/p/q/f", "x")
    moved = box.files.rename(f"{dir}/p/q", f"{dir}/r/s")
    assert (moved.path, moved.type) == (f"{dir}/r/s", FileType.DIR) and box.files.read(f"{dir}/r/s/f") == "x"
    raises(Missing, lambda: box.files.rename(f"{dir}/none", f"{dir}/x"))
    box.files.remove(f"{dir}/r")
    box.files.remove(f"{dir}/r")
    assert not box.files.exists(f"{dir}/r")


@case
def paths_start_at_home_and_belong_to_who_is_named(world):
    box, dir = world.shared(), world.directory()
    name = dir.rsplit("/", 1)[1]
    assert box.files.write(f"~/{name}/a", "1").path == f"{dir}/a"
    assert box.files.read(f"{name}/a") == "1"
    box.files.write(f"/root/{name}", "x", user="root")
    assert box.files.get_info(f"/root/{name}", user="root").owner == "root"
    assert box.files.write("rooted", "x", user="root").path == "/root/rooted"
    raises(e2b.AuthenticationException, lambda: box.files.exists("/", user="nobody-of-that-name"))
    raises(e2b.AuthenticationException, lambda: box.files.read("/etc/hostname", user="nobody-of-that-name"))


@case
def a_new_file_is_exactly_three_events(world):
    box, dir = world.shared(), world.directory()
    box.files.make_dir(dir)
    watch = box.files.watch_dir(dir)
    box.files.write(f"{dir}/f", "content")
    kinds = [(e.name, e.type) for e in watch.get_new_events()]
    assert kinds == [
        ("f", FilesystemEventType.CREATE),
        ("f", FilesystemEventType.CHMOD),
        ("f", FilesystemEventType.WRITE),
    ], kinds
    assert watch.get_new_events() == []
    box.files.rename(f"{dir}/f", f"{dir}/g")
    kinds = [(e.name, e.type) for e in watch.get_new_events()]
    assert ("f", FilesystemEventType.RENAME) in kinds and ("g", FilesystemEventType.CREATE) in kinds, kinds
    box.files.remove(f"{dir}/g")
    kinds = [(e.name, e.type) for e in watch.get_new_events()]
    assert kinds == [("g", FilesystemEventType.REMOVE)], kinds
    watch.stop()
    raises(e2b.SandboxException, watch.get_new_events)
    raises(Missing, lambda: box.files.watch_dir(f"{dir}/none"))


@case
def whole_trees_are_watched(world):
    box, dir = world.shared(), world.directory()
    box.files.make_dir(dir)
    watch = box.files.watch_dir(dir, recursive=True)
    box.commands.run("mkdir -p a/b && echo x > a/b/c", cwd=dir)
    seen = []
    assert eventually(lambda: seen.extend(e.name for e in watch.get_new_events()) or "a/b/c" in seen), seen
    watch.stop()


@case
def events_come_with_what_they_are_about(world):
    box, dir = world.shared(), world.directory()
    box.files.make_dir(dir)
    watch = box.files.watch_dir(dir, include_entry=True)
    box.files.write(f"{dir}/f", "content")
    events = watch.get_new_events()
    assert events and all(e.entry.path == f"{dir}/f" for e in events), events
    watch.stop()


# Addresses


@case
def who_has_an_address_reads_and_writes_without_a_key(world):
    box, dir = world.shared(), world.directory()
    box.files.write(f"{dir}/a b.txt", "by address")
    for options in [{}, {"use_signature_expiration": 60}, {"user": "user"}]:
        reply = get(box.download_url(f"{dir}/a b.txt", **options))
        assert (reply.status_code, reply.text) == (200, "by address"), (options, reply.text)
    url = box.upload_url(f"{dir}/up", use_signature_expiration=60)
    reply = post(url, files={"file": ("x", b"uploaded")})
    assert reply.status_code == 200, reply.text
    assert box.files.read(f"{dir}/up") == "uploaded"
    root = box.upload_url("/root/by-address", user="root")
    assert post(root, files={"file": ("x", b"r")}).status_code == 200
    assert box.files.read("/root/by-address", user="root") == "r"


@case
def an_address_is_good_for_one_thing_and_one_time(world):
    box, dir = world.shared(), world.directory()
    box.files.write(f"{dir}/a", "1")
    url = box.download_url(f"{dir}/a")
    assert get(url.replace("case", "case-other")).status_code in (401, 502)
    assert post(url, files={"file": ("x", b"x")}).status_code in (401, 502)
    old = box.download_url(f"{dir}/a", use_signature_expiration=-10)
    reply = get(old)
    assert (reply.status_code, reply.json()) == (
        401, {"code": 401, "message": "signature is already expired"}), reply.text
