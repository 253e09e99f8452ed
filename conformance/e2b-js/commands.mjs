// Commands and terminals, through the gateway.

import assert from "node:assert/strict";

import { AuthenticationError, CommandExitError, InvalidArgumentError, NotFoundError, SandboxError, TimeoutError } from "e2b";

import { eventually, raises, test } from "./harness.mjs";

test("a command says what it printed and how it ended", async (world) => {
  const box = await world.shared();
  const done = await box.commands.run("echo out; echo err >&2");
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["out\n", "err\n", 0]);
  const why = await raises(CommandExitError, box.commands.run("echo x; echo y >&2; exit 7"));
  assert.deepEqual([why.exitCode, why.stdout, why.stderr], [7, "x\n", "y\n"]);
});

test("output is heard while it is made", async (world) => {
  const box = await world.shared();
  let [out, err, heard] = ["", "", undefined];
  const first = new Promise((resolve) => { heard = resolve; });
  const done = box.commands.run("echo a; while [ ! -e /tmp/heard ]; do sleep 0.02; done; echo e >&2; echo b", {
    onStdout: (text) => { out += text; heard(); },
    onStderr: (text) => { err += text; },
  });
  await first;
  await box.files.write("/tmp/heard", "");
  await done;
  assert.deepEqual([out, err], ["a\nb\n", "e\n"]);
});

test("large output and text of many bytes are whole", async (world) => {
  const box = await world.shared();
  const done = await box.commands.run("yes 0123456789abcde | head -c 4194304");
  assert.equal(done.stdout, "0123456789abcde\n".repeat(262144));
  const text = await box.commands.run("python3 -c 'print(\"ä€😀\" * 50000, end=\"\")'");
  assert.equal(text.stdout, "ä€😀".repeat(50000));
});

test("directory, environment and user are as asked", async (world) => {
  const box = await world.shared();
  const said = async (command, options) => (await box.commands.run(command, options)).stdout;
  assert.equal(await said("pwd; id -un; echo $HOME"), "/home/user\nuser\n/home/user\n");
  assert.equal(await said("pwd", { cwd: "/usr" }), "/usr\n");
  assert.equal(await said("echo $A", { envs: { A: "b c" } }), "b c\n");
  assert.equal(await said("id -un; pwd", { user: "root" }), "root\n/root\n");
  assert.equal(await said("sudo id -un"), "root\n");
  await raises(InvalidArgumentError, said("true", { cwd: "/nowhere" }), "/nowhere");
  await raises(AuthenticationError, said("true", { user: "nobody-of-that-name" }), "nobody-of-that-name");
});

test("what runs in the background is listed, connected to and killed", async (world) => {
  const box = await world.shared();
  const handle = await box.commands.run("sleep 61", { background: true, envs: { SEEN: "1" }, cwd: "/tmp" });
  const [listed] = (await box.commands.list()).filter((p) => p.pid === handle.pid);
  assert.deepEqual([listed.cwd, listed.envs, listed.cmd, listed.args], ["/tmp", { SEEN: "1" }, "/bin/bash", ["-l", "-c", "sleep 61"]]);
  const other = await box.commands.connect(handle.pid);
  assert.equal(await box.commands.kill(handle.pid), true);
  const why = await raises(CommandExitError, handle.wait());
  assert.deepEqual([why.exitCode, why.error], [-1, "signal: killed"]);
  await raises(CommandExitError, other.wait());
  assert(await eventually(async () => (await box.commands.kill(handle.pid)) === false));
  await raises(NotFoundError, box.commands.connect(4_000_000));
});

test("what runs in the background outlives its client", async (world) => {
  const box = await world.shared();
  const handle = await box.commands.run("sleep 0.3; echo done > /tmp/outlived; exit 3", { background: true });
  await handle.disconnect();
  assert(await eventually(() => box.files.exists("/tmp/outlived")));
  const late = await box.commands.connect(handle.pid);
  assert.equal((await raises(CommandExitError, late.wait())).exitCode, 3);
});

test("a command that takes too long is killed", async (world) => {
  const box = await world.shared();
  await raises(TimeoutError, box.commands.run("echo $$ > /tmp/late; exec sleep 63", { timeoutMs: 10_000 }));
  const pid = (await box.files.read("/tmp/late")).trim();
  assert(await eventually(async () => !(await box.files.exists(`/proc/${pid}`))));
});

test("input is sent and closed", async (world) => {
  const box = await world.shared();
  const handle = await box.commands.run("cat", { background: true, stdin: true });
  await box.commands.sendStdin(handle.pid, "one\n");
  await handle.sendStdin?.("zwei ä\n");
  await box.commands.closeStdin(handle.pid);
  assert.match((await handle.wait()).stdout, /^one\n(zwei ä\n)?$/);
  const quiet = await box.commands.run("sleep 64", { background: true });
  await raises(SandboxError, box.commands.sendStdin(quiet.pid, "x"));
  assert.equal(await quiet.kill(), true);
});

test("a terminal echoes, resizes, is connected to again and killed", async (world) => {
  const box = await world.shared();
  let seen = "";
  const onData = (bytes) => { seen += Buffer.from(bytes).toString(); };
  const term = await box.pty.create({ rows: 30, cols: 100, onData, envs: { MINE: "yes" }, cwd: "/usr" });
  const type = (text) => box.pty.sendInput(term.pid, new TextEncoder().encode(text));
  await type("stty size; echo T=$TERM $MINE; pwd; id -un\n");
  const parts = ["30 100", "T=xterm-256color yes", "\r\n/usr\r\n", "\r\nuser\r\n"];
  assert(await eventually(() => parts.every((part) => seen.includes(part))), seen);
  await box.pty.resize(term.pid, { rows: 50, cols: 120 });
  await type("stty size; sleep 65\n");
  assert(await eventually(() => seen.includes("50 120")), seen);
  assert(await eventually(async () => (await box.commands.run("pgrep -fx 'sleep 65' || true")).stdout), "it does not sleep");
  await type("\x03echo code $?\n");
  assert(await eventually(() => seen.includes("code 130")), seen);
  await term.disconnect();
  seen = "";
  const again = await box.pty.connect(term.pid, { onData });
  await type("echo I am $(id -un)\n");
  assert(await eventually(() => seen.includes("I am user")), seen);
  assert.equal(await box.pty.kill(term.pid), true);
  await raises(CommandExitError, again.wait());
});
