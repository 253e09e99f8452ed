"""What nobody should try: ways out of a sandbox by its files, and tokens that are another's."""

import pathlib
import tempfile

import httpx

from harness import case, get, post, raises


@case
def no_path_of_a_file_leads_out_of_its_sandbox(world):
    box = world.create()
    with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix="outside-") as host:
        host.write("of the host")
        host.flush()
        name = pathlib.Path(host.name).name
        box.commands.run(f"ln -s /../../../../../../tmp/{name} /tmp/link; ln -s /proc/1/root/tmp /tmp/up")
        ways = [
            f"/tmp/{name}",
            f"/../../../../tmp/{name}",
            f"../../../../../../tmp/{name}",
            f"/home/user/../../../tmp/{name}",
            f"/proc/1/root/tmp/{name}",
            f"/proc/self/root/../../tmp/{name}",
            f"/proc/self/cwd/../../../tmp/{name}",
            "/tmp/link",
            f"/tmp/up/{name}",
        ]
        url, headers = world.door(box, 49983)
        headers = {**headers, "X-Access-Token": box._envd_access_token}
        for way in ways:
            raises(Exception, lambda: box.files.read(way))
            # A link that leads nowhere is there itself.
            assert box.files.exists(way) is (way == "/tmp/link"), way
            reply = get(f"{url}/files", params={"path": way}, headers=headers)
            assert reply.status_code in (400, 404) and "host" not in reply.text, (way, reply.text)
        root = sorted(entry.name for entry in box.files.list("/"))
        assert sorted(entry.name for entry in box.files.list("/../../..")) == root
        for way in ways[:4]:
            box.files.write(way, "of the sandbox")
            assert box.files.read(way) == "of the sandbox"
            box.files.rename(way, f"/../../../tmp/{name}-moved")
            box.files.remove(f"/../../../../tmp/{name}-moved")
        form = {"file": (f"../../../../../../tmp/{name}", b"by a form")}
        assert post(f"{url}/files", files=form, headers=headers).status_code == 200
        assert pathlib.Path(host.name).read_text() == "of the host"
        assert not pathlib.Path(f"{host.name}-moved").exists()


@case
def tokens_and_signatures_open_only_their_own_sandbox_and_while_it_lives(world):
    mine, other = world.create(), world.create()
    for box in (mine, other):
        box.files.write("/home/user/a", "secret")

    def ask(box, token=None, query=()):
        url, headers = world.door(box, 49983)
        if token is not None:
            headers = {**headers, "X-Access-Token": token}
        params = query or {"path": "/home/user/a"}
        return get(f"{url}/files", params=params, headers=headers).status_code

    token = mine._envd_access_token
    assert ask(mine, token) == 200
    for wrong in ["", "x", token[:-1], token + "0", token.upper(), other._envd_access_token]:
        assert ask(mine, wrong) == 401, wrong
    assert ask(mine) == 401
    assert ask(other, token) == 401
    signed = httpx.URL(mine.download_url("/home/user/a", use_signature_expiration=600)).params
    assert ask(mine, query=signed) == 200
    assert ask(other, query=signed) == 401, "another's signature"
    for changed in [
        signed.set("path", "/home/user/b"),
        signed.set("signature_expiration", "9999999999"),
        signed.remove("signature_expiration"),
        signed.set("username", "root"),
        signed.set("signature", signed["signature"][:-1]),
    ]:
        assert ask(mine, query=changed) == 401, changed
    mine.pause()
    mine.connect()
    assert ask(mine, token) == 200 and ask(mine, query=signed) == 200, "the same after sleep"
    mine.kill()
    assert ask(mine, token) == 502 and ask(mine, query=signed) == 502, "replayed after its end"
    assert ask(other, token) == 401
