// The official JavaScript code interpreter, unmodified, against a whole server. Each case says how it
// went in one line, and the last line says it of all. The settings are those that `with-server` makes.

import assert from "node:assert/strict";

import { Sandbox, TimeoutError } from "@e2b/code-interpreter";

const cases = {
  async "output, results and errors come back"(sandbox) {
    const ran = await sandbox.runCode("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'text'");
    assert.deepEqual(ran.logs, { stdout: ["out\n"], stderr: ["err\n"] });
    assert.equal(ran.text, "text");
    assert.equal(ran.results[0].isMainResult, true);
    const failed = await sandbox.runCode("1 / 0");
    assert.equal(failed.error.name, "ZeroDivisionError");
    assert.match(failed.error.traceback, /division by zero/);
  },
  async "what is displayed comes in its formats"(sandbox) {
    const ran = await sandbox.runCode(
      "from IPython.display import HTML, JSON, display\ndisplay(HTML('<b>x</b>'))\nJSON({'a': 1})",
    );
    assert.equal(ran.results[0].html, "<b>x</b>");
    assert.deepEqual(ran.results[1].json, { a: 1 });
  },
  async "state is kept in a context and in no other"(sandbox) {
    await sandbox.runCode("kept = 41");
    assert.equal((await sandbox.runCode("kept + 1")).text, "42");
    const context = await sandbox.createCodeContext({ cwd: "/tmp" });
    assert.equal(context.cwd, "/tmp");
    assert.equal((await sandbox.runCode("kept", { context })).error.name, "NameError");
    const listed = await sandbox.listCodeContexts();
    assert.ok(listed.some(({ id }) => id === context.id));
    await sandbox.runCode("x = 1", { context });
    await sandbox.restartCodeContext(context);
    assert.equal((await sandbox.runCode("x", { context })).error.name, "NameError");
    await sandbox.removeCodeContext(context);
    await assert.rejects(sandbox.runCode("1", { context }), /not found/i);
  },
  async "variables are for one execution or for the sandbox"(sandbox) {
    const code = "import os; (os.environ.get('ONCE'), os.environ.get('ALWAYS'))";
    assert.equal((await sandbox.runCode(code, { envs: { ONCE: "now" } })).text, "('now', 'yes')");
    assert.equal((await sandbox.runCode(code)).text, "(None, 'yes')");
  },
  async "output is heard while code runs"(sandbox) {
    const heard = [];
    await sandbox.runCode("import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.2)\ni", {
      onStdout: (message) => heard.push(message.line),
      onResult: (result) => heard.push(result.text),
    });
    // A line may come in pieces; each comes when it is written.
    assert.equal(heard.join(""), "0\n1\n2\n2");
    assert.ok(heard.length > 3);
  },
  async "a timeout interrupts what runs"(sandbox) {
    const context = await sandbox.createCodeContext();
    const code = "n = 0\nimport time\nwhile True:\n    n += 1\n    time.sleep(0.01)";
    await assert.rejects(sandbox.runCode(code, { context, timeoutMs: 2000 }), TimeoutError);
    const first = (await sandbox.runCode("n", { context, timeoutMs: 30_000 })).text;
    assert.ok(Number(first) > 0, first);
    assert.equal((await sandbox.runCode("n", { context })).text, first);
  },
  async "bash runs, and a language that is not there is named"(sandbox) {
    const ran = await sandbox.runCode("echo $((1 + 1))", { language: "bash" });
    assert.equal(ran.logs.stdout.join("").trim(), "2");
    // This client does not show what else the answer says.
    await assert.rejects(sandbox.runCode("1", { language: "r" }), /400/);
  },
};

const part = process.argv[2] ?? "";
const chosen = Object.entries(cases).filter(([name]) => name.includes(part));
const sandbox = await Sandbox.create({ timeoutMs: 600_000, envs: { ALWAYS: "yes" } });
let failed = 0;
for (const [name, body] of chosen) {
  try {
    await body(sandbox);
    console.log(`ok      ${name}`);
  } catch (why) {
    failed += 1;
    console.log(`FAILED  ${name}\n${why.stack}`);
  }
}
await sandbox.kill();
console.log(`${chosen.length - failed} passed, ${failed} failed`);
process.exit(failed || !chosen.length ? 1 : 0);
