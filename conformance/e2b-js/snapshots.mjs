// Snapshots and forks: what is kept of a sandbox, and sandboxes that start from it.

import assert from "node:assert/strict";

import { Sandbox, SandboxError } from "e2b";

import { RUN, raises, test } from "./harness.mjs";

const FILE = "/home/user/kept.txt";

async function all(pages) {
  const found = [];
  while (pages.hasNext) found.push(...(await pages.nextItems()));
  return found.map((info) => info.snapshotId);
}

test("a sandbox starts from a snapshot of another that is gone", async (world) => {
  const box = await world.create();
  await box.files.write(FILE, "kept");
  const { snapshotId } = await box.createSnapshot();
  await box.files.write(FILE, "later");
  assert(await box.isRunning());
  assert.deepEqual(await all(box.listSnapshots()), [snapshotId]);
  assert(await box.kill());
  const child = await world.create({}, snapshotId);
  assert.notEqual(child.sandboxId, box.sandboxId);
  assert.equal(await child.files.read(FILE), "kept");
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
  assert.equal(await Sandbox.deleteSnapshot(snapshotId), false);
  assert.equal(await child.files.read(FILE), "kept");
  await raises(Error, world.create({}, snapshotId));
});

test("a named snapshot is created from by its name", async (world) => {
  const name = `kept-js-${RUN.slice(0, 12)}`;
  const box = await world.create();
  await box.files.write(FILE, "first");
  const first = await box.createSnapshot({ name });
  assert(first.snapshotId.endsWith(`/${name}:default`), first.snapshotId);
  await box.files.write(FILE, "second");
  const second = await box.createSnapshot({ name: `${name}:v2` });
  assert.equal(await (await world.create({}, name)).files.read(FILE), "first");
  assert.equal(await (await world.create({}, `${name}:v2`)).files.read(FILE), "second");
  const listed = await all(Sandbox.listSnapshots({ name, limit: 1 }));
  assert.deepEqual(listed.sort(), [first.snapshotId, second.snapshotId].sort());
  for (const { snapshotId } of [first, second]) assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
});

test("forks have the files and nothing else in common", async (world) => {
  const box = await world.create({ envs: { ONE: "1" } });
  await box.files.write(FILE, "shared");
  const children = await box.fork({ timeoutMs: 120_000, count: 3 });
  assert.equal(children.length, 3);
  const boots = new Set();
  for (const child of children) {
    assert(!(child instanceof Error), child.message);
    world.made.push(child.sandboxId);
    assert.equal(await child.files.read(FILE), "shared");
    assert.equal((await child.commands.run("echo -n $ONE")).stdout, "1");
    boots.add((await child.commands.run("cat /proc/sys/kernel/random/boot_id")).stdout);
    await child.files.write(FILE, "own");
  }
  assert.equal(boots.size, 3);
  assert.equal(await box.files.read(FILE), "shared");
  await box.pause();
  await raises(SandboxError, box.fork(), "paused");
});
