// From create to kill: options, deadlines, lists, sleep and waking.

import assert from "node:assert/strict";

import * as e2b from "e2b";
import { Sandbox, SandboxError, Template, TimeoutError } from "e2b";

import { RUN, eventually, raises, test } from "./harness.mjs";

const NotFound = e2b.SandboxNotFoundError ?? e2b.NotFoundError;

const secondsLeft = async (box) => ((await box.getInfo()).endAt - Date.now()) / 1000;
const state = async (box) => (await box.getInfo()).state;
const asleep = (box) => eventually(async () => (await state(box)) === "paused");
const within = (value, low, high) => assert(value > low && value <= high, `${value} is not in ${low}..${high}`);

async function all(pages) {
  const found = [];
  while (pages.hasNext) found.push(...(await pages.nextItems()));
  return found.map((info) => info.sandboxId);
}

test("a sandbox is made, described, listed and killed", async (world) => {
  const box = await world.create({ metadata: { kind: "first" } });
  assert(await box.isRunning());
  const info = await box.getInfo();
  assert.deepEqual(info, await Sandbox.getInfo(box.sandboxId));
  assert.equal(info.sandboxId, box.sandboxId);
  assert.deepEqual([info.name, info.state], ["base", "running"]);
  assert.deepEqual(info.metadata, { run: RUN, kind: "first" });
  assert(info.cpuCount >= 1 && info.memoryMB >= 128 && info.envdVersion);
  const query = { metadata: { run: RUN, kind: "first" } };
  assert.deepEqual(await all(Sandbox.list({ query })), [box.sandboxId]);
  assert.equal(await box.kill(), true);
  assert.equal(await box.isRunning(), false);
  assert.equal(await box.kill(), false);
  assert.equal(await Sandbox.kill(box.sandboxId), false);
  await raises(NotFound, box.getInfo());
  await raises(NotFound, Sandbox.connect(box.sandboxId));
  await raises(NotFound, Sandbox.pause(box.sandboxId));
  await raises(NotFound, box.setTimeout(60_000));
  assert.deepEqual(await all(Sandbox.list({ query })), []);
});

test("the template may be named", async (world) => {
  assert.equal((await (await world.create({}, "base")).getInfo()).name, "base");
  await raises(Error, world.create({}, "no-such-template"), "no-such-template");
});

test("templates are known by name, alias and tag", async (world) => {
  for (const known of ["base", "base:default", "aliased", "other_name", "other_name:v1"]) {
    assert.equal(await Template.exists(known), true, known);
    assert.equal(await Template.aliasExists(known), true, known);
  }
  for (const unknown of ["no-such-template", "base:v1", "aliased:v1", "somebody/base"]) {
    assert.equal(await Template.exists(unknown), false, unknown);
  }
  const tags = (await Template.getTags("other_name")).map((tag) => tag.tag).sort();
  assert.deepEqual(tags, ["default", "v1"]);
  const box = await world.create({}, "other_name:v1");
  assert.equal((await box.getInfo()).templateId, "aliased");
});

test("environment of the sandbox reaches commands", async (world) => {
  const box = await world.create({ envs: { ONE: "1", TWO: "a b $HOME 'q' ä" } });
  const said = await box.commands.run('printf "%s|%s|%s" "$ONE" "$TWO" "$E2B_SANDBOX_ID"');
  assert.equal(said.stdout, `1|a b $HOME 'q' ä|${box.sandboxId}`);
  const other = await box.commands.run("echo -n $ONE", { envs: { ONE: "other" } });
  assert.equal(other.stdout, "other");
});

test("metadata of any text is kept and found", async (world) => {
  const odd = { "a b": "c&d=e", "ü": "100% ☃/+", empty: "" };
  const box = await world.create({ metadata: odd });
  assert.deepEqual((await box.getInfo()).metadata, { run: RUN, ...odd });
  assert.deepEqual(await all(Sandbox.list({ query: { metadata: { ...odd, run: RUN } } })), [box.sandboxId]);
});

test("a deadline is five minutes unless said, and can be moved", async (world) => {
  const box = await Sandbox.create();
  world.made.push(box.sandboxId);
  within(await secondsLeft(box), 280, 301);
  await box.setTimeout(60_000);
  within(await secondsLeft(box), 40, 61);
  await Sandbox.setTimeout(box.sandboxId, 900_000);
  within(await secondsLeft(box), 880, 901);
  const before = (await box.getInfo()).endAt;
  const same = await Sandbox.connect(box.sandboxId, { timeoutMs: 30_000 });
  assert.deepEqual((await same.getInfo()).endAt, before);
  await box.connect({ timeoutMs: 1_800_000 });
  within(await secondsLeft(box), 1780, 1801);
});

test("a sandbox ends at its deadline", async (world) => {
  const box = await world.create({ timeoutMs: 2_000 });
  assert(await eventually(async () => !(await box.isRunning())));
  await raises(NotFound, box.getInfo());
  await raises(NotFound, box.commands.run("true"));
  await raises(TimeoutError, box.files.write("a", "b"));
  await raises(TimeoutError, box.files.list("/"));
});

test("who runs a command hears that the sandbox was killed", async (world) => {
  const box = await world.create();
  const handle = await box.commands.run("sleep 60", { background: true });
  await Sandbox.kill(box.sandboxId);
  const why = await raises(Error, handle.wait());
  assert(!(why instanceof e2b.CommandExitError), why.message);
});

test("lists are filtered, ordered and paged", async (world) => {
  const group = { group: `paging-${process.hrtime.bigint()}` };
  const boxes = [];
  for (let i = 0; i < 3; i++) boxes.push((await world.create({ metadata: group })).sandboxId);
  const ids = (query = {}, rest = {}) => all(Sandbox.list({ query: { metadata: group, ...query }, ...rest }));
  const newest = boxes.toReversed();
  assert.deepEqual(await ids(), newest);
  assert.deepEqual(await ids({}, { limit: 1 }), newest);
  assert.deepEqual(await ids({}, { limit: 2 }), newest);
  await Sandbox.pause(boxes[1]);
  assert.deepEqual(await ids({ state: ["paused"] }), [boxes[1]]);
  assert.deepEqual(await ids({ state: ["running"] }), [boxes[2], boxes[0]]);
  assert.deepEqual(await ids({ state: ["running", "paused"] }), newest);
  const pages = Sandbox.list({ query: { metadata: group }, limit: 2 });
  await pages.nextItems();
  const rest = Sandbox.list({ query: { metadata: group }, limit: 2, nextToken: pages.nextToken });
  assert.deepEqual(await all(rest), [boxes[0]]);
});

test("lists go both ways and know starts and templates", async (world) => {
  const group = { group: `order-${process.hrtime.bigint()}` };
  const [first, second] = [await world.create({ metadata: group }), await world.create({ metadata: group })];
  const ids = (query = {}, order = "asc") => all(Sandbox.list({ query: { metadata: group, ...query }, order }));
  assert.deepEqual(await ids(), [first.sandboxId, second.sandboxId]);
  assert.deepEqual(await ids({}, "desc"), [second.sandboxId, first.sandboxId]);
  assert.deepEqual(await ids({ template: "base" }), [first.sandboxId, second.sandboxId]);
  assert.deepEqual(await ids({ template: "no-such-template" }), []);
  const after = new Date((await second.getInfo()).startedAt.getTime() + 60_000);
  assert.deepEqual(await ids({ startedAfter: after }), []);
}, { since: "2.46" });

// Sleep

const COUNT = "i=0; while :; do i=$((i+1)); echo $i > /tmp/next; mv /tmp/next /tmp/count; sleep 0.05; done";

test("sleep keeps files, processes and tokens", async (world) => {
  const box = await world.create({ envs: { MINE: "kept" } });
  await box.files.write("note", "before");
  const handle = await box.commands.run(COUNT, { background: true, timeoutMs: 0 });
  await handle.disconnect();
  assert(await eventually(() => box.files.exists("/tmp/count")));
  assert.equal(await box.pause(), true);
  assert.equal(await state(box), "paused");
  assert.equal(await box.isRunning(), false);
  await raises(Error, box.commands.run("true"));
  assert.equal(await Sandbox.pause(box.sandboxId), false);

  const again = await Sandbox.connect(box.sandboxId, { timeoutMs: 120_000 });
  assert.equal(again.sandboxId, box.sandboxId);
  assert.equal(await again.files.read("note"), "before");
  assert((await again.commands.list()).some((p) => p.pid === handle.pid));
  const counted = Number(await again.files.read("/tmp/count"));
  assert(await eventually(async () => Number(await again.files.read("/tmp/count")) > counted));
  assert.equal((await again.commands.run("echo -n $MINE")).stdout, "kept");
  assert.equal(await box.files.read("note"), "before");

  await Sandbox.pause(box.sandboxId);
  await box.connect({ timeoutMs: 60_000 });
  within(await secondsLeft(box), 40, 61);
  await Sandbox.pause(box.sandboxId);
  assert.equal(await Sandbox.kill(box.sandboxId), true);
  await raises(NotFound, Sandbox.connect(box.sandboxId));
});

test("sleep without memory keeps files and boots", async (world) => {
  const box = await world.create({ envs: { MINE: "kept" } });
  const boot = await box.files.read("/proc/sys/kernel/random/boot_id");
  await box.files.write("note", "before");
  await box.pause({ keepMemory: false });
  const again = await Sandbox.connect(box.sandboxId);
  assert.equal(await again.files.read("note"), "before");
  assert.notEqual(await again.files.read("/proc/sys/kernel/random/boot_id"), boot);
  assert.equal((await again.commands.run("echo -n $MINE")).stdout, "kept");
});

test("who wants a reboot does not get the memory back", async (world) => {
  const box = await world.create();
  await box.pause();
  await raises(SandboxError, Sandbox.connect(box.sandboxId, { onResume: "reboot" }), "memory");
  assert.equal(await state(box), "paused");
}, { since: "2.50" });

const sleeper = (world, autoResume) =>
  world.create({ timeoutMs: 60_000, lifecycle: { onTimeout: "pause", ...(autoResume === undefined ? {} : { autoResume }) } });

test("a deadline puts to sleep where that was asked", async (world) => {
  const box = await sleeper(world);
  assert.deepEqual((await box.getInfo()).lifecycle, { onTimeout: "pause", autoResume: false });
  await box.files.write("note", "kept");
  await box.setTimeout(1_000);
  assert(await asleep(box));
  assert.equal(await box.isRunning(), false);
  await raises(Error, box.commands.run("true"));
  assert.equal(await state(box), "paused");
  await box.connect({ timeoutMs: 60_000 });
  assert.equal(await box.files.read("note"), "kept");
});

async function wakes(world, use) {
  const box = await sleeper(world, true);
  assert.equal((await box.getInfo()).lifecycle.autoResume, true);
  const prepared = await use(box);
  await box.setTimeout(1_000);
  assert(await asleep(box));
  await use(box, prepared);
  assert.equal(await state(box), "running");
  within(await secondsLeft(box), 240, 301);
}

test("a command wakes", (world) =>
  wakes(world, async (box) => {
    assert.equal((await box.commands.run("echo awake")).stdout, "awake\n");
  }));

test("a file wakes", (world) =>
  wakes(world, async (box, prepared) => {
    if (!prepared) await box.files.write("note", "kept");
    assert.equal(await box.files.read("note"), "kept");
    return true;
  }));

test("a request to a port wakes", (world) =>
  wakes(world, async (box, prepared) => {
    const door = prepared ?? (await world.serveInside(box, 8080));
    const reply = await fetch(door.url, { headers: door.headers });
    assert.equal(await reply.text(), "hello from inside\n");
    return door;
  }));

test("many at once wake it once", async (world) => {
  const box = await sleeper(world, true);
  await box.pause();
  const said = await Promise.all(Array.from({ length: 8 }, (_, i) => box.commands.run(`echo ${i}`)));
  assert.deepEqual(said.map((done) => done.stdout), Array.from({ length: 8 }, (_, i) => `${i}\n`));
});

// What there is to know

test("metrics are measured", async (world) => {
  const box = await world.shared();
  assert(await eventually(async () => (await box.getMetrics()).length > 0, 40_000), "nothing was measured");
  const one = (await Sandbox.getMetrics(box.sandboxId)).at(-1);
  assert(one.cpuCount >= 1 && one.memTotal > 0 && one.memUsed > 0 && one.memUsed <= one.memTotal, JSON.stringify(one));
  assert(one.diskTotal > 0 && one.cpuUsedPct >= 0, JSON.stringify(one));
  assert.deepEqual(await box.getMetrics({ start: new Date(Date.now() + 3_600_000) }), []);
});

test("what is not built is refused by name", async (world) => {
  await raises(Error, world.create({ volumeMounts: { "/data": "volume" } }), "volumeMounts");
});
