// Ports inside from outside, and the outside from inside. And who may do what.

import assert from "node:assert/strict";
import crypto from "node:crypto";

import * as e2b from "e2b";
import { AuthenticationError, Sandbox } from "e2b";
import WebSocket from "ws";

import { eventually, raises, test } from "./harness.mjs";

const NotFound = e2b.SandboxNotFoundError ?? e2b.NotFoundError;
const { OUTSIDE, ELSEWHERE, OTHER_API_KEY } = process.env;

test("a web server inside is reached", async (world) => {
  const box = await world.create();
  const { url, headers } = await world.serveInside(box, 8080);
  assert.equal(await (await fetch(`${url}/any?q=1`, { headers })).text(), "hello from inside\n");
  const body = crypto.randomBytes(1_000_000);
  const echo = await fetch(`${url}/echo`, { method: "POST", body, headers });
  assert(body.equals(Buffer.from(await echo.arrayBuffer())));
  const events = await fetch(`${url}/events`, { headers });
  assert.equal(events.headers.get("content-type"), "text/event-stream");
  assert.equal(await events.text(), "data: 0\n\ndata: 1\n\ndata: 2\n\n");
  const socket = new WebSocket(`${url.replace("http", "ws")}/ws`, { headers });
  await new Promise((resolve, reject) => socket.once("open", resolve).once("error", reject));
  for (const text of ["one", "ä".repeat(100), "x".repeat(70_000)]) {
    const heard = new Promise((resolve) => socket.once("message", resolve));
    socket.send(text);
    assert.equal((await heard).toString(), text);
  }
  socket.close();
});

test("a server on loopback is reached and a closed port said", async (world) => {
  const box = await world.create();
  await world.serveInside(box, 8081, { host: "127.0.0.1" });
  const { url, headers } = world.door(box, 8082);
  const message = async () => {
    const reply = await fetch(url, { headers });
    assert.equal(reply.status, 502);
    return (await reply.json()).message;
  };
  assert.equal(await message(), "The sandbox is running but port is not open");
  await box.kill();
  assert.equal(await message(), "The sandbox was not found");
});

test("traffic needs its token where that was asked", async (world) => {
  const box = await world.create({ network: { allowPublicTraffic: false } });
  const token = { "e2b-traffic-access-token": box.trafficAccessToken };
  const { url, headers } = await world.serveInside(box, 8080, { more: token });
  assert.equal((await fetch(url, { headers })).status, 403);
  const wrong = { ...headers, "e2b-traffic-access-token": "wrong" };
  assert.equal((await fetch(url, { headers: wrong })).status, 403);
});

test("the host that servers see can be given", async (world) => {
  const box = await world.create({ network: { maskRequestHost: "localhost:${PORT}" } });
  const { url, headers } = await world.serveInside(box, 8080);
  const sent = await (await fetch(`${url}/headers`, { headers })).json();
  assert.equal(sent.Host ?? sent.host, "localhost:8080");
});

async function reaches(box, address) {
  // Once: who may not is refused at once, and a busy machine has time.
  const script = `curl -s -o /dev/null --max-time 30 http://${address}/ && echo yes || echo no`;
  return (await box.commands.run(script)).stdout === "yes\n";
}

test("the outside is reached unless that is off", async (world) => {
  const shared = await world.shared();
  assert(await reaches(shared, OUTSIDE));
  const box = await world.create({ allowInternetAccess: false });
  assert(!(await reaches(box, OUTSIDE)));
  assert.equal((await box.getInfo()).allowInternetAccess, false);
});

test("what may be reached is listed and changes while it runs", async (world) => {
  const [host] = OUTSIDE.split(":");
  const only = { allowOut: [host], denyOut: ["0.0.0.0/0"] };
  const box = await world.create({ network: only });
  assert((await reaches(box, OUTSIDE)) && !(await reaches(box, ELSEWHERE)));
  const { network } = await box.getInfo();
  assert.deepEqual([network.allowOut, network.denyOut], [only.allowOut, only.denyOut]);
  await box.updateNetwork({});
  assert((await reaches(box, OUTSIDE)) && (await reaches(box, ELSEWHERE)));
  await Sandbox.updateNetwork(box.sandboxId, { denyOut: [host] });
  assert(!(await reaches(box, OUTSIDE)) && (await reaches(box, ELSEWHERE)));
  await raises(Error, world.create({ network: { allowOut: ["example.com"] } }), "allowOut");
});

test("a wrong key is told so", async (world) => {
  const apiKey = `e2b_${"0".repeat(40)}`;
  const box = await world.shared();
  await raises(AuthenticationError, Sandbox.create({ apiKey }));
  await raises(AuthenticationError, Sandbox.list({ apiKey }).nextItems());
  await raises(AuthenticationError, Sandbox.kill(box.sandboxId, { apiKey }));
});

test("what is another's is not there", async (world) => {
  const box = await world.shared();
  const apiKey = OTHER_API_KEY;
  for (const id of [box.sandboxId, "inotthere0000000000"]) {
    await raises(NotFound, Sandbox.getInfo(id, { apiKey }));
    await raises(NotFound, Sandbox.connect(id, { apiKey }));
    await raises(NotFound, Sandbox.pause(id, { apiKey }));
    await raises(NotFound, Sandbox.setTimeout(id, 10_000, { apiKey }));
    assert.equal(await Sandbox.kill(id, { apiKey }), false);
  }
  assert.deepEqual(await Sandbox.list({ apiKey }).nextItems(), []);
  assert(await box.isRunning());
});

test("bad wishes are refused", async () => {
  await raises(Error, Sandbox.create({ timeoutMs: 10_000_000_000 }), "timeout");
  await raises(Error, Sandbox.create({ network: { denyOut: ["not an address"] } }), "denyOut");
});

async function agentWithoutToken(world, box) {
  const { url, headers } = world.door(box, 49983);
  const all = { ...headers, "Content-Type": "application/json" };
  return (await fetch(`${url}/process.Process/List`, { method: "POST", body: "{}", headers: all })).status;
}

test("the agent wants its token", async (world) => {
  assert.equal(await agentWithoutToken(world, await world.shared()), 401);
});

test("the agent wants no token where that was asked", async (world) => {
  const box = await world.create({ secure: false });
  assert.equal(await agentWithoutToken(world, box), 200);
  assert.equal((await box.commands.run("echo open")).stdout, "open\n");
  assert(await eventually(async () => !(await box.downloadUrl("/etc/hostname")).includes("signature")));
}, { before: "2.46" });
