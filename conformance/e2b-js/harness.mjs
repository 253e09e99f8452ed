// Cases and the server they are for.
//
// A case is a sentence and a function. Cases run side by side, as users do; each says how it went in
// one line, and the last line says it of all. Some need a newer SDK than the one at hand: they are
// counted apart, never as passed. The settings are those that `with-server` makes.

import crypto from "node:crypto";
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import { Sandbox } from "e2b";

const here = path.dirname(fileURLToPath(import.meta.url));
const manifest = path.join(here, "node_modules", "e2b", "package.json");
export const VERSION = createRequire(import.meta.url)(manifest).version;
export const RUN = crypto.randomUUID().replaceAll("-", "");
export const SERVER = fs.readFileSync(path.join(here, "server.py"), "utf8");
export const plain = "E2B_SANDBOX_URL" in process.env;

const cases = [];

/** Registers a case, for SDKs from one version on, or up to one. */
export function test(name, body, { since, before } = {}) {
  cases.push({ name, body, since, before });
}

export function newer(version) {
  const numbers = (text) => text.split(".").map(Number);
  const [ours, theirs] = [numbers(VERSION), numbers(version)];
  for (let i = 0; i < theirs.length; i++) {
    if (ours[i] !== theirs[i]) return ours[i] > theirs[i];
  }
  return true;
}

export async function eventually(check, milliseconds = 30_000) {
  const until = Date.now() + milliseconds;
  for (;;) {
    const found = await check();
    if (found || Date.now() > until) return found;
    await sleep(50);
  }
}

/** The error of this kind that is raised; it says these things. */
export async function raises(kind, promise, ...saying) {
  let raised;
  try {
    await promise;
  } catch (why) {
    raised = why;
  }
  if (!(raised instanceof kind)) {
    throw new Error(`expected ${kind.name}, got ${raised?.name}: ${raised?.message}`, { cause: raised });
  }
  for (const part of saying) {
    if (!raised.message.includes(part)) throw new Error(`no ${part} in ${raised.message}`);
  }
  return raised;
}

class World {
  made = [];
  directories = 0;

  /** A sandbox of a case's own; what it leaves is killed at the end. */
  async create(options = {}, template = undefined) {
    const wish = { timeoutMs: 120_000, ...options, metadata: { run: RUN, ...options.metadata } };
    const box = await (template ? Sandbox.create(template, wish) : Sandbox.create(wish));
    this.made.push(box.sandboxId);
    return box;
  }

  /** One that no case puts to sleep, ends or fills. */
  shared() {
    this.one ??= this.create({ timeoutMs: 600_000 });
    return this.one;
  }

  directory() {
    return `/home/user/case-${++this.directories}`;
  }

  /** How a port is reached from outside: by its name, or by headers where there are no names. */
  door(box, port) {
    if (!plain) return { url: `https://${box.getHost(port)}`, headers: {} };
    const headers = { "E2b-Sandbox-Id": box.sandboxId, "E2b-Sandbox-Port": String(port) };
    return { url: process.env.E2B_SANDBOX_URL, headers };
  }

  async serveInside(box, port, { host = "0.0.0.0", more = {} } = {}) {
    await box.files.write("/tmp/server.py", SERVER);
    await box.commands.run(`python3 /tmp/server.py ${port} ${host}`, { background: true, timeoutMs: 0 });
    const door = this.door(box, port);
    const headers = { ...door.headers, ...more };
    if (!(await eventually(async () => (await fetch(door.url, { headers })).ok))) {
      throw new Error("the server inside does not answer");
    }
    return door;
  }

  async end() {
    for (const id of this.made) await Sandbox.kill(id);
  }
}

/** What failed, by the lines of the cases only. */
function told(why) {
  const lines = (why.stack ?? "").split("\n").filter((line) => line.includes(here) && !line.includes("node_modules"));
  return [`  ${why.name}: ${why.message}`, ...lines.map((line) => `  ${line.trim()}`)].join("\n");
}

export async function run(only, workers = 6) {
  console.log(`e2b ${VERSION}, ${plain ? "plain HTTP" : "TLS"}`);
  const world = new World();
  const chosen = cases.filter((c) => !only || c.name.includes(only));
  const known = chosen.filter((c) => (!c.since || newer(c.since)) && (!c.before || !newer(c.before)));
  const failed = [];
  const queue = [...known];
  const work = async () => {
    for (let next = queue.shift(); next; next = queue.shift()) {
      const started = Date.now();
      let why;
      try {
        await next.body(world);
      } catch (raised) {
        why = raised;
      }
      const seconds = ((Date.now() - started) / 1000).toFixed(1);
      console.log(`${why ? "FAIL" : "ok  "} ${next.name} (${seconds} s)`);
      if (why) {
        console.log(told(why));
        failed.push(next.name);
      }
    }
  };
  await Promise.all(Array.from({ length: workers }, work));
  await world.end();
  const passed = known.length - failed.length;
  if (failed.length) {
    console.log(`${failed.length} failed: ${failed.join("; ")}; ${passed} did not`);
    process.exit(1);
  }
  console.log(`${passed} passed, ${chosen.length - known.length} are not for this version of the SDK`);
  process.exit(0);
}
