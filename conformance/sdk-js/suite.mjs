// What users do with the SDK, against an agent. One line of result for each; the last says all.
//
// No test framework: a case is a sentence and a function, and every case gets a directory.

import assert from "node:assert/strict";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  FileType,
  FilesystemEventType,
  InvalidArgumentError,
  NotFoundError,
  Sandbox,
  SandboxError,
  TimeoutError,
} from "e2b";

const cases = [];
const test = (name, body) => cases.push({ name, body });

async function eventually(check, milliseconds = 30_000) {
  const until = Date.now() + milliseconds;
  for (;;) {
    const found = await check();
    if (found || Date.now() > until) return found;
    await sleep(20);
  }
}

// Commands

test("a command runs and says what it printed", async (box) => {
  const done = await box.commands.run("echo out; echo err >&2");
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["out\n", "err\n", 0]);
});

test("a failing command raises with its code", async (box) => {
  await assert.rejects(box.commands.run("echo x; exit 7"), (why) => {
    assert(why instanceof CommandExitError);
    assert.deepEqual([why.exitCode, why.stdout], [7, "x\n"]);
    return true;
  });
});

test("output arrives in order and whole", async (box) => {
  const lines = [];
  const done = await box.commands.run("for i in $(seq 1 2000); do echo $i; done", {
    onStdout: (text) => { lines.push(text); },
  });
  const expected = Array.from({ length: 2000 }, (_, i) => `${i + 1}\n`).join("");
  assert.equal(done.stdout, expected);
  assert.equal(lines.join(""), expected);
});

test("large output is not cut", async (box) => {
  const done = await box.commands.run("yes 0123456789abcde | head -c 8388608");
  assert.equal(done.stdout, "0123456789abcde\n".repeat(524288));
});

test("text split between chunks is decoded", async (box) => {
  const done = await box.commands.run("python3 -c 'print(\"ä€😀\" * 50000, end=\"\")'");
  assert.equal(done.stdout, "ä€😀".repeat(50000));
});

test("environment and directory are as asked", async (box, dir) => {
  const done = await box.commands.run("echo $A-$E2B_SANDBOX-$USER; pwd", { envs: { A: "b c" }, cwd: dir });
  assert.equal(done.stdout, `b c-true-root\n${dir}\n`);
  await assert.rejects(box.commands.run("true", { cwd: "/nowhere" }), (why) => {
    assert(why instanceof InvalidArgumentError);
    assert.match(why.message, /cwd '\/nowhere' does not exist/);
    return true;
  });
});

test("commands run as the user that is named", async (box) => {
  const done = await box.commands.run("id -un; echo $HOME $USER $LOGNAME", { user: "daemon", cwd: "/" });
  assert.equal(done.stdout, "daemon\n/usr/sbin daemon daemon\n");
  for (const call of [
    () => box.commands.run("true", { user: "nobody-of-that-name" }),
    () => box.files.exists("/", { user: "nobody-of-that-name" }),
  ]) {
    await assert.rejects(call, (why) => {
      assert(why instanceof AuthenticationError, `${why}`);
      assert.match(why.message, /invalid username: 'nobody-of-that-name'/);
      return true;
    });
  }
});

test("a command in the background is listed, connected and killed", async (box) => {
  const handle = await box.commands.run("echo started; sleep 60", { background: true });
  const listed = await box.commands.list();
  assert(listed.some((process) => process.pid === handle.pid && process.cmd === "/bin/bash"), `${listed}`);
  assert.equal((await box.commands.run(`kill -0 ${handle.pid}`)).exitCode, 0);
  const other = await box.commands.connect(handle.pid);
  assert.equal(other.pid, handle.pid);
  const ends = [handle, other].map((one) => assert.rejects(one.wait(), (why) => {
    assert(why instanceof CommandExitError);
    assert.deepEqual([why.exitCode, why.error], [-1, "signal: killed"]);
    return true;
  }));
  assert.equal(await box.commands.kill(handle.pid), true);
  await Promise.all(ends);
  assert(await eventually(async () => (await box.commands.list()).every((process) => process.pid !== handle.pid)));
  assert.equal(await box.commands.kill(handle.pid), false);
});

test("a handle kills its own command", async (box) => {
  const handle = await box.commands.run("sleep 60", { background: true });
  const end = assert.rejects(handle.wait(), CommandExitError);
  assert.equal(await handle.kill(), true);
  await end;
});

test("who connects late hears the end", async (box) => {
  const handle = await box.commands.run("sleep 0.1; exit 3", { background: true });
  handle.wait().catch(() => {});
  await handle.disconnect();
  await sleep(500);
  const late = await box.commands.connect(handle.pid);
  await assert.rejects(late.wait(), (why) => why.exitCode === 3);
  await assert.rejects(box.commands.connect(4_000_000), NotFoundError);
});

test("a command outlives its client", async (box, dir) => {
  const handle = await box.commands.run(`sleep 0.3; echo done > ${dir}/mark`, { background: true });
  handle.wait().catch(() => {});
  await handle.disconnect();
  assert(await eventually(() => box.files.exists(`${dir}/mark`)));
});

test("a timeout kills the command", async (box, dir) => {
  await assert.rejects(
    box.commands.run(`echo $$ > ${dir}/pid; exec sleep 60`, { timeoutMs: 10_000 }),
    TimeoutError,
  );
  const pid = fs.readFileSync(`${dir}/pid`, "utf8").trim();
  assert(await eventually(() => !fs.existsSync(`/proc/${pid}`)));
});

test("a command without a timeout outlasts the usual one", async (box) => {
  const done = await box.commands.run("sleep 0.2; echo done", { timeoutMs: 0 });
  assert.equal(done.stdout, "done\n");
});

test("stdin is sent and closed", async (box) => {
  const handle = await box.commands.run("cat", { background: true, stdin: true });
  await box.commands.sendStdin(handle.pid, "one\n");
  await handle.sendStdin("zwei ä\n");
  await handle.sendStdin(new Uint8Array([51, 10]));
  await box.commands.closeStdin(handle.pid);
  assert.equal((await handle.wait()).stdout, "one\nzwei ä\n3\n");
});

test("stdin that was not asked for is at its end", async (box) => {
  assert.equal((await box.commands.run("cat; echo end")).stdout, "end\n");
  const handle = await box.commands.run("sleep 5", { background: true });
  await assert.rejects(box.commands.sendStdin(handle.pid, "x"), SandboxError);
  const end = assert.rejects(handle.wait());
  await handle.kill();
  await end;
});

test("a signal sent by a command reaches another", async (box) => {
  const script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
  const handle = await box.commands.run(script, { background: true });
  const end = assert.rejects(handle.wait(), (why) => {
    assert.deepEqual([why.exitCode, why.stdout], [9, "ready\ncaught\n"]);
    return true;
  });
  assert(await eventually(() => handle.stdout === "ready\n"));
  await box.commands.run(`kill -TERM ${handle.pid}`);
  await end;
});

test("a process left behind holds the end until it closes its output", async (box) => {
  const done = await box.commands.run("(sleep 0.7; echo late) & echo early");
  assert.equal(done.stdout, "early\nlate\n");
});

test("many commands run side by side", async (box) => {
  const all = await Promise.all(Array.from({ length: 50 }, (_, i) => box.commands.run(`echo ${i}`)));
  assert.deepEqual(all.map((done) => done.stdout), Array.from({ length: 50 }, (_, i) => `${i}\n`));
});

// Terminals

function terminal() {
  const seen = [];
  return { seen: () => Buffer.concat(seen).toString(), onData: (data) => { seen.push(Buffer.from(data)); } };
}
const keys = (text) => new TextEncoder().encode(text);

test("a terminal echoes, resizes and ends", async (box) => {
  const { seen, onData } = terminal();
  const term = await box.pty.create({ rows: 30, cols: 100, onData, envs: { MINE: "yes" }, cwd: "/usr" });
  await box.pty.sendInput(term.pid, keys("stty size; echo T=$TERM-$MINE; pwd\n"));
  assert(await eventually(() => /30 100/.test(seen()) && /T=xterm-256color-yes\r\n\/usr/.test(seen())), seen());
  await box.pty.resize(term.pid, { rows: 50, cols: 120 });
  await box.pty.sendInput(term.pid, keys("stty size; tty; test -t 0 && echo is-a-$((1+1))-tty\n"));
  assert(await eventually(() => /50 120/.test(seen()) && /\/dev\/pts\//.test(seen()) && /is-a-2-tty/.test(seen())), seen());
  await box.pty.sendInput(term.pid, keys("exit\n"));
  assert.equal((await term.wait()).exitCode, 0);
});

test("a terminal passes ctrl-c", async (box) => {
  const { seen, onData } = terminal();
  const term = await box.pty.create({ rows: 24, cols: 80, onData });
  await box.pty.sendInput(term.pid, keys("echo $((6*7)); sleep 60\n"));
  assert(await eventually(() => /42/.test(seen())), seen());
  await box.pty.sendInput(term.pid, keys("\x03"));
  await box.pty.sendInput(term.pid, keys("echo code $?; exit 0\n"));
  assert(await eventually(() => /code 130/.test(seen())), seen());
  await term.wait();
});

test("a terminal is connected to again and killed", async (box) => {
  const term = await box.pty.create({ rows: 24, cols: 80, onData: () => {} });
  const first = assert.rejects(term.wait(), CommandExitError);
  const { seen, onData } = terminal();
  const again = await box.pty.connect(term.pid, { onData });
  const second = assert.rejects(again.wait(), CommandExitError);
  await box.pty.sendInput(term.pid, keys("echo $((40+2))\n"));
  assert(await eventually(() => /42/.test(seen())), seen());
  assert.equal(await box.pty.kill(term.pid), true);
  await Promise.all([first, second]);
  assert(await eventually(async () => !(await box.pty.kill(term.pid))));
});

// Files

test("files are written and read in every form", async (box, dir) => {
  const file = `${dir}/new/deep/a.txt`;
  const info = await box.files.write(file, "hällo");
  assert.deepEqual([info.name, info.path, info.type], ["a.txt", file, "file"]);
  const bytes = new TextEncoder().encode("hällo");
  assert.equal(await box.files.read(file), "hällo");
  assert.deepEqual(Buffer.from(await box.files.read(file, { format: "bytes" })), Buffer.from(bytes));
  assert.equal(await (await box.files.read(file, { format: "blob" })).text(), "hällo");
  assert.equal(await new Response(await box.files.read(file, { format: "stream" })).text(), "hällo");
  for (const data of [bytes.buffer, new Blob([bytes]), new Blob([bytes]).stream()]) {
    await box.files.write(file, data);
    assert.equal(await box.files.read(file), "hällo");
  }
  await box.files.write(file, "");
  assert.equal(await box.files.read(file), "");
  await assert.rejects(box.files.read(`${dir}/none`), FileNotFoundError);
  await assert.rejects(box.files.read(dir), InvalidArgumentError);
  await assert.rejects(box.files.write(dir, "x"), InvalidArgumentError);
});

test("several files are written at once", async (box, dir) => {
  const names = [0, 1, 2, 3, 4].map((i) => `${dir}/x/${i}`).concat(`${dir}/ä b+c&d=e#f%.txt`);
  const written = await box.files.writeFiles(names.map((name) => ({ path: name, data: name })));
  assert.deepEqual(written.map((one) => one.path), names);
  for (const name of names) assert.equal(await box.files.read(name), name);
});

test("content is compressed when asked", async (box, dir) => {
  const text = "abc".repeat(100_000);
  await box.files.write(`${dir}/z`, text, { gzip: true });
  assert.equal(fs.readFileSync(`${dir}/z`, "utf8"), text);
  assert.equal(await box.files.read(`${dir}/z`, { gzip: true }), text);
});

test("large files survive", async (box, dir) => {
  const data = Buffer.alloc(20_000_000, Buffer.from(Array.from({ length: 251 }, (_, i) => i)));
  await box.files.write(`${dir}/big`, new Blob([data]));
  assert(data.equals(Buffer.from(await box.files.read(`${dir}/big`, { format: "bytes" }))));
});

test("files of the kernel have content", async (box) => {
  assert.equal((await box.files.read("/proc/sys/kernel/random/boot_id")).trim().length, 36);
});

test("metadata is kept and replaced", async (box, dir) => {
  const info = await box.files.write(`${dir}/m`, "x", { metadata: { author: "ada", "k-2": "v w" } });
  assert.deepEqual(info.metadata, { author: "ada", "k-2": "v w" });
  assert.deepEqual((await box.files.getInfo(`${dir}/m`)).metadata, { author: "ada", "k-2": "v w" });
  await box.files.write(`${dir}/m`, "x");
  assert.deepEqual((await box.files.getInfo(`${dir}/m`)).metadata ?? {}, {});
});

test("entries are described", async (box, dir) => {
  await box.files.write(`${dir}/f`, "12345");
  fs.chmodSync(`${dir}/f`, 0o640);
  fs.symlinkSync("f", `${dir}/link`);
  const info = await box.files.getInfo(`${dir}/f`);
  assert.deepEqual(
    [info.name, info.type, info.size, info.mode, info.permissions, info.owner, info.group],
    ["f", FileType.FILE, 5, 0o640, "-rw-r-----", "root", "root"],
  );
  assert(Math.abs(info.modifiedTime.getTime() - Date.now()) < 60_000);
  const link = await box.files.getInfo(`${dir}/link`);
  assert.equal(link.symlinkTarget, fs.realpathSync(`${dir}/f`));
  assert.equal((await box.files.getInfo(dir)).type, FileType.DIR);
  assert.equal(await box.files.exists(`${dir}/f`), true);
  assert.equal(await box.files.exists(`${dir}/g`), false);
  await assert.rejects(box.files.getInfo(`${dir}/g`), FileNotFoundError);
});

test("directories are listed in order and depth", async (box, dir) => {
  for (const name of ["b/2", "b/10", "a/x/deep", "c", "B"]) await box.files.write(`${dir}/${name}`, "");
  const names = async (depth) => (await box.files.list(dir, { depth })).map((entry) => entry.path.slice(dir.length + 1));
  assert.deepEqual(await names(1), ["B", "a", "b", "c"]);
  assert.deepEqual(await names(2), ["B", "a", "a/x", "b", "b/10", "b/2", "c"]);
  assert.deepEqual(await names(9), ["B", "a", "a/x", "a/x/deep", "b", "b/10", "b/2", "c"]);
  await assert.rejects(box.files.list(`${dir}/c`), InvalidArgumentError);
  await assert.rejects(box.files.list(`${dir}/none`), FileNotFoundError);
});

test("directories are made, moved and removed", async (box, dir) => {
  assert.equal(await box.files.makeDir(`${dir}/p/q`), true);
  assert.equal(await box.files.makeDir(`${dir}/p/q`), false);
  await box.files.write(`${dir}/p/q/f`, "x");
  const moved = await box.files.rename(`${dir}/p/q`, `${dir}/r/s`);
  assert.equal(moved.path, `${dir}/r/s`);
  assert.equal(await box.files.read(`${dir}/r/s/f`), "x");
  await assert.rejects(box.files.rename(`${dir}/none`, `${dir}/x`), FileNotFoundError);
  await box.files.remove(`${dir}/r`);
  await box.files.remove(`${dir}/r`);
  assert.equal(await box.files.exists(`${dir}/r`), false);
});

test("paths start at home", async (box) => {
  const home = (await box.commands.run("echo -n $HOME")).stdout;
  const name = `dormouse-sdk-js-${process.pid}`;
  try {
    assert.equal((await box.files.write(`~/${name}/a`, "1")).path, `${home}/${name}/a`);
    assert.equal(await box.files.read(`${name}/a`), "1");
  } finally {
    await box.files.remove(`${home}/${name}`);
  }
});

test("files belong to the user that is named", async (box, dir) => {
  fs.chmodSync(dir, 0o777);
  await box.files.write(`${dir}/sub/f`, "x", { user: "daemon" });
  assert.equal((await box.files.getInfo(`${dir}/sub`)).owner, "daemon");
  assert.equal((await box.files.getInfo(`${dir}/sub/f`)).owner, "daemon");
});

// Watches

const { CREATE, CHMOD, WRITE, RENAME, REMOVE } = FilesystemEventType;

test("a new file is exactly three events", async (box, dir) => {
  const events = [];
  const watch = await box.files.watchDir(dir, (event) => { events.push([event.name, event.type]); });
  await box.files.write(`${dir}/f`, "content");
  await eventually(() => events.length >= 3);
  fs.renameSync(`${dir}/f`, `${dir}/g`);
  fs.rmSync(`${dir}/g`);
  await eventually(() => events.length >= 6);
  assert.deepEqual(events, [
    ["f", CREATE], ["f", CHMOD], ["f", WRITE], ["f", RENAME], ["g", CREATE], ["g", REMOVE],
  ]);
  await watch.stop();
});

test("a watch sees what is below at once", async (box, dir) => {
  const events = [];
  const watch = await box.files.watchDir(dir, (event) => { events.push(event); }, { recursive: true });
  await box.files.makeDir(`${dir}/sub`);
  await box.files.write(`${dir}/sub/f`, "x");
  await box.files.write(`${dir}/sub/new/g`, "x");
  const of = (name) => events.filter((event) => event.name === name).map((event) => event.type);
  await eventually(() => of("sub/new/g").length >= 3);
  for (const name of ["sub/f", "sub/new/g"]) assert.deepEqual(of(name), [CREATE, CHMOD, WRITE]);
  await watch.stop();
});

test("a watch describes entries when asked, and tells when it ends", async (box, dir) => {
  const events = [];
  let ended;
  const exit = new Promise((resolve) => { ended = resolve; });
  const watch = await box.files.watchDir(dir, (event) => { events.push(event); }, { includeEntry: true, onExit: () => ended(true) });
  await box.files.write(`${dir}/f`, "12345");
  await eventually(() => events.length >= 3);
  assert(events.every((event) => event.entry?.path === `${dir}/f`), JSON.stringify(events));
  await box.files.remove(`${dir}/f`);
  await eventually(() => events.length >= 4);
  assert.deepEqual([events[3].type, events[3].entry], [REMOVE, undefined]);
  await watch.stop();
  assert(await Promise.race([exit, sleep(30_000)]));
});

test("watches of what cannot be watched are refused", async (box, dir) => {
  await assert.rejects(box.files.watchDir(`${dir}/none`, () => {}), FileNotFoundError);
  await box.files.write(`${dir}/f`, "");
  await assert.rejects(box.files.watchDir(`${dir}/f`, () => {}), InvalidArgumentError);
});

test("a call that is given up ends", async (box) => {
  const stop = new AbortController();
  const call = box.commands.run("sleep 60", { signal: stop.signal });
  const end = assert.rejects(call);
  setTimeout(() => stop.abort(), 200);
  await end;
});

test("the sandbox is running", async (box) => {
  assert.equal(await box.isRunning(), true);
});

const box = await Sandbox.create();
const only = process.argv.slice(2);
let failed = 0;
let run = 0;
for (const { name, body } of cases) {
  if (only.length > 0 && !only.includes(name)) continue;
  run += 1;
  const dir = fs.realpathSync(fs.mkdtempSync(path.join(os.tmpdir(), "sdk-js-")));
  const started = Date.now();
  try {
    await body(box, dir);
    console.log(`ok      ${name}  ${((Date.now() - started) / 1000).toFixed(2)} s`);
  } catch (why) {
    failed += 1;
    console.log(`FAILED  ${name}\n${why?.stack ?? why}`);
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
}
console.log(`${run - failed} of ${run} passed`);
process.exit(failed > 0 ? 1 : 0);
