"""Ports inside from outside, and the outside from inside. And who may do what."""

import os

import e2b
from e2b import Sandbox, SandboxException
from websockets.sync.client import connect

from harness import SERVER, VERSION, case, eventually, get, number, post, raises, stream

NotFound = getattr(e2b, "SandboxNotFoundException", e2b.NotFoundException)


@case
def a_web_server_inside_is_reached(world):
    box = world.create()
    url, headers = world.serve_inside(box, 8080)
    assert get(f"{url}/any/path?q=1", headers=headers).text == "hello from inside\n"
    body = os.urandom(1_000_000)
    assert post(f"{url}/echo", content=body, headers=headers).content == body
    with stream("GET", f"{url}/events", headers=headers) as events:
        assert events.headers["content-type"] == "text/event-stream"
        lines = [line for line in events.iter_lines() if line]
    assert lines == ["data: 0", "data: 1", "data: 2"], lines
    ws = url.replace("http", "ws", 1) + "/ws"
    with connect(ws, additional_headers=headers) as socket:
        for text in ["one", "ä" * 100, "x" * 70000]:
            socket.send(text)
            assert socket.recv(timeout=20) == text
        socket.send(b"\x00\x01")
        assert socket.recv(timeout=20) == b"\x00\x01"


@case
def a_server_on_loopback_is_reached_and_a_closed_port_said(world):
    box = world.create()
    world.serve_inside(box, 8081, "127.0.0.1")
    url, headers = world.door(box, 8082)
    reply = get(url, headers=headers)
    assert (reply.status_code, reply.json()["message"]) == (
        502, "The sandbox is running but port is not open"), reply.text
    box.kill()
    reply = get(url, headers=headers)
    assert (reply.status_code, reply.json()["message"]) == (502, "The sandbox was not found"), reply.text


@case
def hosts_are_named_by_port_and_sandbox(world):
    box = world.shared()
    domain = os.environ.get("E2B_DOMAIN") or box.get_info().sandbox_domain or "e2b.app"
    assert box.get_host(3000) == f"3000-{box.sandbox_id}.{domain}", box.get_host(3000)


@case
def traffic_needs_its_token_where_that_was_asked(world):
    box = world.create(network={"allow_public_traffic": False})
    box.files.write("/tmp/x", "the agent is not public traffic")
    token = {"e2b-traffic-access-token": box.traffic_access_token}
    box.files.write("/tmp/server.py", SERVER.read_text())
    box.commands.run("python3 /tmp/server.py 8080", background=True, timeout=0)
    url, headers = world.door(box, 8080)
    assert eventually(lambda: get(url, headers={**headers, **token}).status_code == 200)
    assert get(url, headers=headers).status_code == 403
    wrong = {"e2b-traffic-access-token": "wrong"}
    assert get(url, headers={**headers, **wrong}).status_code == 403
    sent = get(f"{url}/headers", headers={**headers, **token}).json()
    assert "e2b-traffic-access-token" not in {name.lower() for name in sent}, sent


@case
def the_host_that_servers_see_can_be_given(world):
    box = world.create(network={"mask_request_host": "localhost:${PORT}"})
    url, headers = world.serve_inside(box, 8080)
    sent = get(f"{url}/headers", headers=headers).json()
    assert {k.lower(): v for k, v in sent.items()}["host"] == "localhost:8080", sent


# The outside


def reaches(box, address):
    # Once: who may not is refused at once, and a busy machine has time.
    script = f"curl -s -o /dev/null --max-time 30 http://{address}/ && echo yes || echo no"
    return box.commands.run(script).stdout == "yes\n"


@case
def the_outside_is_reached_unless_that_is_off(world):
    outside = os.environ["OUTSIDE"]
    assert reaches(world.shared(), outside)
    box = world.create(allow_internet_access=False)
    assert not reaches(box, outside)
    assert box.get_info().allow_internet_access is False
    # What is so anyway is not told.
    assert world.create(allow_internet_access=True).get_info().allow_internet_access is None


@case
def what_may_be_reached_is_listed(world):
    outside, elsewhere = os.environ["OUTSIDE"], os.environ["ELSEWHERE"]
    host = outside.split(":")[0]
    only = world.create(network={"allow_out": [host], "deny_out": ["0.0.0.0/0"]})
    assert reaches(only, outside) and not reaches(only, elsewhere)
    info = only.get_info().network
    assert (info["allow_out"], info["deny_out"]) == ([host], ["0.0.0.0/0"]), info
    but = world.create(network={"deny_out": [host]})
    assert not reaches(but, outside) and reaches(but, elsewhere)
    raises(SandboxException, lambda: world.create(network={"allow_out": ["example.com"]}), "allowOut")


@case
def what_may_be_reached_changes_while_it_runs(world):
    outside, elsewhere = os.environ["OUTSIDE"], os.environ["ELSEWHERE"]
    host = outside.split(":")[0]
    box = world.create()
    assert reaches(box, outside) and reaches(box, elsewhere)
    box.update_network({"allow_out": [host], "deny_out": ["0.0.0.0/0"]})
    assert reaches(box, outside) and not reaches(box, elsewhere)
    box.update_network({"allow_internet_access": False})
    assert not reaches(box, outside)
    Sandbox.update_network(box.sandbox_id, {})
    assert reaches(box, outside) and reaches(box, elsewhere)
    box.pause()
    box.connect()
    assert reaches(box, outside)
    raises(NotFound, lambda: Sandbox.update_network("inotthere0000000000", {}))


@case
def what_is_not_built_of_the_network_is_refused_by_name(world):
    if number(VERSION) >= (2, 55):
        proxy = {"egress_proxy": {"address": "proxy.example.com:1080"}}
        raises(Exception, lambda: world.create(network=proxy), "egressProxy")
    rules = {"rules": {"example.com": [{"transform": {"headers": {"A": "b"}}}]}}
    raises(Exception, lambda: world.create(network=rules), "rules")


# Who may do what


@case
def a_wrong_key_is_told_so(world):
    wrong = "e2b_" + "0" * 40
    box = world.shared()
    raises(e2b.AuthenticationException, lambda: Sandbox.create(api_key=wrong))
    raises(e2b.AuthenticationException, lambda: Sandbox.list(api_key=wrong).next_items())
    raises(e2b.AuthenticationException, lambda: Sandbox.kill(box.sandbox_id, api_key=wrong))
    raises(e2b.AuthenticationException, lambda: Sandbox.connect(box.sandbox_id, api_key=wrong))


@case
def what_is_anothers_is_not_there(world):
    other = os.environ["OTHER_API_KEY"]
    box = world.shared()
    for id in [box.sandbox_id, "inotthere0000000000"]:
        raises(NotFound, lambda: Sandbox.get_info(id, api_key=other))
        raises(NotFound, lambda: Sandbox.connect(id, api_key=other))
        raises(NotFound, lambda: Sandbox.pause(id, api_key=other))
        raises(NotFound, lambda: Sandbox.set_timeout(id, 10, api_key=other))
        assert Sandbox.kill(id, api_key=other) is False
    assert Sandbox.list(api_key=other).next_items() == []
    assert box.is_running()


@case
def bad_wishes_are_refused(world):
    raises(SandboxException, lambda: Sandbox.create(timeout=-1), "timeout")
    raises(SandboxException, lambda: Sandbox.create(timeout=10_000_000), "timeout")
    raises(SandboxException, lambda: Sandbox.create(network={"deny_out": ["not an address"]}), "denyOut")


def agent_without_token(world, box):
    url, headers = world.door(box, 49983)
    return post(
        f"{url}/process.Process/List", headers={**headers, "Content-Type": "application/json"}, content="{}"
    ).status_code


@case
def the_agent_wants_its_token(world):
    assert agent_without_token(world, world.shared()) == 401


@case(before="2.46")
def the_agent_wants_no_token_where_that_was_asked(world):
    box = world.create(secure=False)
    assert agent_without_token(world, box) == 200
    assert box.commands.run("echo open").stdout == "open\n"
    assert "signature" not in box.download_url("/etc/hostname")
