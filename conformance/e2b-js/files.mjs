// Files, watches, and addresses for those who have no key.

import assert from "node:assert/strict";
import crypto from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import * as e2b from "e2b";
import { AuthenticationError, FileType, FilesystemEventType, InvalidArgumentError } from "e2b";

import { eventually, raises, test } from "./harness.mjs";

const Missing = e2b.FileNotFoundError ?? e2b.NotFoundError;

test("files are written and read in every form", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  const info = await box.files.write(`${dir}/new/a.txt`, "hällo");
  assert.deepEqual([info.name, info.path, info.type], ["a.txt", `${dir}/new/a.txt`, "file"]);
  assert.equal(await box.files.read(`${dir}/new/a.txt`), "hällo");
  const bytes = await box.files.read(`${dir}/new/a.txt`, { format: "bytes" });
  assert.equal(Buffer.from(bytes).toString(), "hällo");
  assert.equal(await (await box.files.read(`${dir}/new/a.txt`, { format: "blob" })).text(), "hällo");
  const stream = await box.files.read(`${dir}/new/a.txt`, { format: "stream" });
  assert.equal(await new Response(stream).text(), "hällo");
  await box.files.write(`${dir}/b`, new Uint8Array([0, 255, 1]).buffer);
  assert.deepEqual([...(await box.files.read(`${dir}/b`, { format: "bytes" }))], [0, 255, 1]);
  await box.files.write(`${dir}/b`, new Blob(["from a blob"]));
  assert.equal(await box.files.read(`${dir}/b`), "from a blob");
  await box.files.write(`${dir}/b`, new Blob(["from a stream"]).stream());
  assert.equal(await box.files.read(`${dir}/b`), "from a stream");
  await box.files.write(`${dir}/b`, "");
  assert.equal(await box.files.read(`${dir}/b`), "");
  await raises(Missing, box.files.read(`${dir}/none`));
  await raises(InvalidArgumentError, box.files.read(dir));
});

test("many and large files are written", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  const names = [...Array.from({ length: 5 }, (_, i) => `${dir}/x/${i}`), `${dir}/ä b+c&d=e#f%.txt`];
  const written = await box.files.write(names.map((path) => ({ path, data: path })));
  assert.deepEqual(written.map((w) => w.path), names);
  for (const name of names) assert.equal(await box.files.read(name), name);
  const data = crypto.randomBytes(8_000_000);
  await box.files.write(`${dir}/big`, data.buffer.slice(data.byteOffset, data.byteOffset + data.length));
  assert(data.equals(Buffer.from(await box.files.read(`${dir}/big`, { format: "bytes" }))));
});

test("entries are described, listed in order and depth", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  for (const name of ["b/2", "b/10", "a/x/deep", "c", "B"]) await box.files.write(`${dir}/${name}`, "12345");
  const names = async (depth) => (await box.files.list(dir, { depth })).map((e) => e.path.slice(dir.length + 1));
  assert.deepEqual(await names(1), ["B", "a", "b", "c"]);
  assert.deepEqual(await names(2), ["B", "a", "a/x", "b", "b/10", "b/2", "c"]);
  assert.deepEqual(await names(9), ["B", "a", "a/x", "a/x/deep", "b", "b/10", "b/2", "c"]);
  await box.commands.run("chmod 640 c; ln -s c link", { cwd: dir });
  const info = await box.files.getInfo(`${dir}/c`);
  assert.deepEqual(
    [info.name, info.type, info.path, info.size, info.mode, info.permissions, info.owner, info.group],
    ["c", FileType.FILE, `${dir}/c`, 5, 0o640, "-rw-r-----", "user", "user"],
  );
  assert(Math.abs(info.modifiedTime - Date.now()) < 60_000);
  assert.equal((await box.files.getInfo(`${dir}/link`)).symlinkTarget, `${dir}/c`);
  await raises(Missing, box.files.list(`${dir}/none`));
  await raises(InvalidArgumentError, box.files.list(`${dir}/c`));
  await raises(Missing, box.files.getInfo(`${dir}/none`));
});

test("directories are made, moved and removed", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  assert.equal(await box.files.makeDir(`${dir}/p/q`), true);
  assert.equal(await box.files.makeDir(`${dir}/p/q`), false);
  await box.files.write(`${dir}/p/q/f`, "x");
  assert.equal((await box.files.rename(`${dir}/p/q`, `${dir}/r/s`)).path, `${dir}/r/s`);
  assert.equal(await box.files.exists(`${dir}/r/s/f`), true);
  await raises(Missing, box.files.rename(`${dir}/none`, `${dir}/x`));
  await box.files.remove(`${dir}/r`);
  assert.equal(await box.files.exists(`${dir}/r`), false);
});

test("paths start at home and belong to who is named", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  const name = dir.split("/").at(-1);
  assert.equal((await box.files.write(`~/${name}/a`, "1")).path, `${dir}/a`);
  assert.equal(await box.files.read(`${name}/a`), "1");
  assert.equal((await box.files.write("rooted", "x", { user: "root" })).path, "/root/rooted");
  await raises(AuthenticationError, box.files.exists("/", { user: "nobody-of-that-name" }));
});

test("metadata is kept", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  await box.files.write(`${dir}/m`, "x", { metadata: { author: "ada" } });
  assert.deepEqual((await box.files.getInfo(`${dir}/m`)).metadata, { author: "ada" });
});

test("a new file is exactly three events", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  await box.files.makeDir(dir);
  const events = [];
  const watch = await box.files.watchDir(dir, (event) => { events.push([event.name, event.type]); });
  await box.files.write(`${dir}/f`, "content");
  await eventually(() => events.length >= 3);
  await sleep(300);
  assert.deepEqual(events, [
    ["f", FilesystemEventType.CREATE],
    ["f", FilesystemEventType.CHMOD],
    ["f", FilesystemEventType.WRITE],
  ]);
  await watch.stop();
  await raises(Missing, box.files.watchDir(`${dir}/none`, () => {}));
});

test("whole trees are watched", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  await box.files.makeDir(dir);
  const seen = [];
  const watch = await box.files.watchDir(dir, (event) => { seen.push(event.name); }, { recursive: true });
  await box.commands.run("mkdir -p a/b && echo x > a/b/c", { cwd: dir });
  assert(await eventually(() => seen.includes("a/b/c")), seen.join());
  await watch.stop();
});

test("who has an address reads and writes without a key", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  await box.files.write(`${dir}/a b.txt`, "by address");
  for (const options of [{}, { useSignatureExpiration: 60 }, { user: "user" }]) {
    const reply = await fetch(await box.downloadUrl(`${dir}/a b.txt`, options));
    assert.deepEqual([reply.status, await reply.text()], [200, "by address"]);
  }
  const form = new FormData();
  form.append("file", new Blob(["uploaded"]), "x");
  const sent = await fetch(await box.uploadUrl(`${dir}/up`, { useSignatureExpiration: 60 }), { method: "POST", body: form });
  assert.equal(sent.status, 200);
  assert.equal(await box.files.read(`${dir}/up`), "uploaded");
});

test("an address is good for one thing and one time", async (world) => {
  const [box, dir] = [await world.shared(), world.directory()];
  await box.files.write(`${dir}/a`, "1");
  const url = await box.downloadUrl(`${dir}/a`);
  assert.equal((await fetch(url.replace("case", "case-other"))).status, 401);
  const old = await fetch(await box.downloadUrl(`${dir}/a`, { useSignatureExpiration: -10 }));
  assert.equal(await old.text(), '{"code":401,"message":"signature is already expired"}');
});
