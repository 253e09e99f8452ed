// Builds templates and uses them. OPEN is an image in a registry.

import assert from "node:assert/strict";
import crypto from "node:crypto";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

import { BuildError, Template, waitForPort } from "e2b";

import { eventually, raises, run, test } from "./harness.mjs";

const { OPEN } = process.env;
const name = () => `built-${crypto.randomUUID().slice(0, 8)}`;

/** Builds, and answers what was said. */
async function said(template, called, options = {}) {
  const lines = [];
  await Template.build(template, called, { onBuildLogs: (entry) => lines.push(entry.message), ...options });
  return lines;
}

const inside = async (world, called, command) =>
  (await (await world.create({}, called)).commands.run(command)).stdout.trim();

test("steps of an image become a template, and are used again", async (world) => {
  const called = name();
  const template = Template()
    .fromImage(OPEN)
    .setEnvs({ GREETING: "hello" })
    .setWorkdir("/srv/app")
    .runCmd("echo $GREETING > greeting")
    .setUser("root")
    .runCmd("id -un > who");
  await said(template, called);
  assert.equal(await inside(world, called, "cat greeting who; pwd; id -un"), "hello\nroot\n/srv/app\nroot");
  const again = await said(template, name());
  assert(again.some((line) => line.startsWith("CACHED RUN id -un")), again.join("\n"));
});

test("files are copied", async (world) => {
  const context = fs.mkdtempSync(path.join(os.tmpdir(), "context-"));
  fs.mkdirSync(path.join(context, "app", "lib"), { recursive: true });
  fs.writeFileSync(path.join(context, "app", "main.py"), "print('main')");
  fs.writeFileSync(path.join(context, "app", "lib", "one.txt"), "one");
  fs.writeFileSync(path.join(context, "tool"), "#!/bin/sh\necho tool\n");
  const called = name();
  const template = Template({ fileContextPath: context })
    .fromTemplate("base")
    .copy("app", "app/")
    .copy("tool", "/usr/local/bin/tool", { user: "root", mode: 0o755 })
    .runCmd("python3 app/main.py > said; tool >> said");
  await said(template, called);
  assert.equal(await inside(world, called, "cat said app/lib/one.txt"), "main\ntool\none");
  fs.rmSync(context, { recursive: true });
});

test("a start command serves in every sandbox", async (world) => {
  const called = name();
  const template = Template().fromTemplate("base").setStartCmd("python3 -m http.server 8000", waitForPort(8000));
  await said(template, called);
  const box = await world.create({}, called);
  const served = async () => (await box.commands.run("curl -s -o /dev/null -w '%{http_code}' localhost:8000 || true")).stdout;
  assert(await eventually(async () => (await served()) === "200"));
});

test("a failure says which step and why", async () => {
  const failing = Template().fromImage(OPEN).runCmd("echo last words; exit 3");
  await raises(BuildError, said(failing, name()), "exit status 3", "last words");
  const nobody = Template().fromImage(OPEN).skipCache().runCmd("whoami", { user: "root123" });
  await raises(
    BuildError,
    said(nobody, name()),
    "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
  );
});

test("builds go on in the background, and tags say which is meant", async (world) => {
  const called = name();
  const build = (text) => Template().fromImage(OPEN).runCmd(`echo ${text} > version`);
  const first = await Template.buildInBackground(build("one"), `${called}:v1`);
  const over = async () => !["waiting", "building"].includes((await Template.getBuildStatus(first)).status);
  assert(await eventually(over));
  assert.equal((await Template.getBuildStatus(first)).status, "ready");
  await Template.build(build("two"), `${called}:v2`);
  assert.equal(await inside(world, `${called}:v1`, "cat version"), "one");
  await Template.assignTags(`${called}:v2`, ["default", "v1"]);
  assert.equal(await inside(world, called, "cat version"), "two");
  assert.equal(await inside(world, `${called}:v1`, "cat version"), "two");
  assert.deepEqual((await Template.getTags(called)).map((tag) => tag.tag).sort(), ["default", "v1", "v2"]);
  await Template.removeTags(called, "v1");
  assert.equal(await Template.exists(`${called}:v1`), false);
  assert.equal(await Template.exists(called), true);
});

await run(process.argv[2], 3);
