"""Runs code in kernels and streams what it does, as E2B's code interpreter clients ask for it.

    POST   /execute                 code in, lines of JSON out until the code has ended
    GET    /contexts                every context
    POST   /contexts                a new one
    DELETE /contexts/{id}           ends one
    POST   /contexts/{id}/restart   the same one with nothing in it
    GET    /health                  "OK" once the first context is up

A context is a Jupyter kernel: a process of its own that keeps variables between executions. One
execution of a context runs at a time. An execution belongs to a task, not to its request: if the
client leaves, the kernel is interrupted and the task sees it to its end, so that the next one finds
a kernel that listens.
"""

import asyncio
import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
import uuid
from pathlib import Path

from aiohttp import ClientSession, ClientTimeout, web
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

PORT = 49999
AGENT = "http://127.0.0.1:49983"
KEEPALIVE = 5.0
# How long an interrupted kernel may go on before it is ended.
PATIENCE = 10.0
START_TIMEOUT = 60.0
# What a client that reads slowly may be behind.
QUEUE = 1024

KERNELS = {
    "python": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
    "bash": [sys.executable, "-m", "bash_kernel", "-f", "{connection_file}"],
}
ALIASES = {"js": "javascript", "ts": "typescript"}
FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


class Refusal(Exception):
    """What a caller is told instead of an answer."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


def language_of(name):
    """A language that there is a kernel for."""
    name = ALIASES.get((name or "python").lower(), (name or "python").lower())
    if name not in KERNELS:
        known = ", ".join(sorted(KERNELS))
        raise Refusal(400, f"There is no kernel for {name} in this template; there are: {known}")
    return name


def strip_quotes(text):
    """A string's text as its own, without the quotes of its repr."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


def result_of(data, is_main_result):
    """A line for what a kernel displays, by its mime types."""
    line = {"type": "result", "is_main_result": is_main_result}
    extra = {}
    for mime, value in data.items():
        field = FIELDS.get(mime)
        if field is None:
            extra[mime] = value
        elif field == "text":
            line["text"] = strip_quotes(value)
        else:
            line[field] = value
    if extra:
        line["extra"] = extra
    return line


class Context:
    """A kernel, and who may use it."""

    def __init__(self, language, cwd, sockets):
        self.sockets = sockets
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        self.turn = asyncio.Lock()
        # What its processes find besides what this server was started with; none until it was asked.
        self.env = None
        self.manager = None
        self.client = None

    def describe(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    async def start(self):
        # Sockets lie beside this file, wherever the kernel's own directory is.
        connection_file = str(Path(self.sockets) / f"{self.id}.json")
        manager = AsyncKernelManager(transport="ipc", connection_file=connection_file)
        manager._kernel_spec = KernelSpec(
            argv=KERNELS[self.language], display_name=self.language, language=self.language
        )
        await manager.start_kernel(cwd=self.cwd, env=dict(os.environ))
        self.manager = manager
        await self.connect()

    async def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        await self.client.wait_for_ready(timeout=START_TIMEOUT)

    async def restart(self):
        """The same context with a kernel that knows nothing."""
        client, self.client = self.client, None
        client.stop_channels()
        await self.manager.restart_kernel(now=True, cwd=self.cwd, env=dict(os.environ))
        self.env = None
        await self.connect()

    async def stop(self):
        client, self.client = self.client, None
        client.stop_channels()
        await self.manager.shutdown_kernel(now=True)

    async def quietly(self, code):
        """Runs code that leaves nothing to see and is not counted."""
        request = self.client.execute(code, silent=True, store_history=False, allow_stdin=False)
        await asyncio.wait_for(self.until_idle(request), START_TIMEOUT)

    async def until_idle(self, request):
        while True:
            message = await self.client.get_iopub_msg(timeout=None)
            if (
                message["parent_header"].get("msg_id") == request
                and message["msg_type"] == "status"
                and message["content"]["execution_state"] == "idle"
            ):
                return

    async def set_env(self, variables):
        """Changes variables of the kernel; None takes one away."""
        if not variables:
            return
        if self.language == "bash":
            lines = [
                f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}"
                for name, value in variables.items()
                if name.isidentifier()
            ]
            await self.quietly("\n".join(lines))
        else:
            # As data: no name or value is ever read as code.
            await self.quietly(
                "import json as _j, os as _o\n"
                f"for _n, _v in _j.loads({json.dumps(json.dumps(variables))}).items():\n"
                "    _o.environ.pop(_n, None) if _v is None else _o.environ.__setitem__(_n, _v)\n"
                "del _j, _o, _n, _v"
            )

    async def learn_env(self, token):
        """Gives the kernel the sandbox's environment, once its owner's is there to be had."""
        if self.env is not None:
            return
        headers = {"X-Access-Token": token} if token else {}
        env = {}
        with contextlib.suppress(Exception):
            async with ClientSession(timeout=ClientTimeout(total=5)) as session:
                async with session.get(f"{AGENT}/envs", headers=headers) as answer:
                    if answer.status == 200:
                        env = await answer.json()
        if "PATH" in env:
            # The sandbox's own does not know of the environment that kernels run in.
            env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
        await self.set_env(env)
        self.env = env

    def env_before(self, name):
        return self.env.get(name, os.environ.get(name))


class Execution:
    """One run of code, and the lines that its client is told."""

    def __init__(self, context, code, env_vars, token):
        self.context, self.code, self.env_vars, self.token = context, code, env_vars or {}, token
        self.lines = asyncio.Queue(QUEUE)
        self.left = False

    async def tell(self, **line):
        if not self.left:
            await self.lines.put(line)

    async def run(self):
        """To its end, whether anybody listens or not."""
        try:
            async with self.context.turn:
                if not self.left:
                    await self.in_turn()
        except Exception as error:  # The client must hear of an end, whatever went wrong here.
            await self.tell(type="error", name=type(error).__name__, value=str(error), traceback="")
        await self.tell(type="end_of_execution")
        await self.lines.put(None) if not self.left else None

    async def in_turn(self):
        context = self.context
        await context.learn_env(self.token)
        await context.set_env(self.env_vars)
        request = context.client.execute(self.code, allow_stdin=False, store_history=True)
        if await self.follow(request) and self.env_vars:
            await context.set_env({name: context.env_before(name) for name in self.env_vars})

    async def follow(self, request):
        """Tells what the kernel does. Answers whether it is the kernel it was."""
        context, interrupted_at = self.context, None
        client = context.client
        while True:
            if context.client is not client:
                await self.tell(
                    type="error",
                    name="ContextRestarting",
                    value="The context was restarted or removed",
                    traceback="",
                )
                return False
            if self.left and interrupted_at is None:
                interrupted_at = time.monotonic()
                await context.manager.interrupt_kernel()
            try:
                message = await client.get_iopub_msg(timeout=0.5)
            except Exception:
                if context.client is not client:
                    continue
                late = interrupted_at and time.monotonic() - interrupted_at > PATIENCE
                if late or not await context.manager.is_alive():
                    await context.restart()
                    await self.tell(
                        type="error",
                        name="ContextRestarting",
                        value="The kernel has ended, and was started again",
                        traceback="",
                    )
                    return False
                continue
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                await self.tell(
                    type=content["name"], text=content["text"], timestamp=time.time_ns()
                )
            elif kind == "execute_input":
                await self.tell(
                    type="number_of_executions", execution_count=content["execution_count"]
                )
            elif kind in ("display_data", "execute_result"):
                await self.tell(**result_of(content["data"], kind == "execute_result"))
            elif kind == "error":
                await self.tell(
                    type="error",
                    name=content["ename"],
                    value=content["evalue"],
                    traceback="\n".join(content["traceback"]),
                )
            elif kind == "status" and content["execution_state"] == "idle":
                return True

    def leave(self):
        """Its client has gone: nothing is told any more, and the code is interrupted."""
        self.left = True
        while not self.lines.empty():
            self.lines.get_nowait()


class Server:
    """Every context, and the default one of each language."""

    def __init__(self):
        self.sockets = tempfile.mkdtemp(prefix="kernels-")
        self.contexts = {}
        self.defaults = {}
        self.making = asyncio.Lock()
        self.tasks = set()

    def find(self, context_id):
        context = self.contexts.get(context_id)
        if context is None:
            raise Refusal(404, f"Context {context_id} not found")
        return context

    async def make(self, language, cwd=None):
        cwd = cwd or str(Path.home())
        if not Path(cwd).is_dir():
            raise Refusal(400, f"The directory {cwd} does not exist")
        context = Context(language, cwd, self.sockets)
        await context.start()
        self.contexts[context.id] = context
        return context

    async def default(self, language):
        async with self.making:
            context = self.contexts.get(self.defaults.get(language))
            if context is None:
                context = await self.make(language)
                self.defaults[language] = context.id
            return context

    async def execute(self, request):
        body = await read(request)
        context_id, language = body.get("context_id"), body.get("language")
        if context_id and language:
            raise Refusal(400, "Only one of context_id or language can be provided")
        if context_id:
            context = self.find(context_id)
        else:
            context = await self.default(language_of(language))
        token = request.headers.get("X-Access-Token")
        execution = Execution(context, body.get("code", ""), body.get("env_vars"), token)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            await response.prepare(request)
            task = asyncio.create_task(execution.run())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
            while True:
                try:
                    line = await asyncio.wait_for(execution.lines.get(), KEEPALIVE)
                except asyncio.TimeoutError:
                    line = {"type": "keepalive"}
                if line is None:
                    break
                await response.write(json.dumps(line).encode() + b"\n")
        except (asyncio.CancelledError, ConnectionError):
            execution.leave()
            raise
        await response.write_eof()
        return response

    async def list(self, _):
        return web.json_response([context.describe() for context in self.contexts.values()])

    async def create(self, request):
        body = await read(request)
        context = await self.make(language_of(body.get("language")), body.get("cwd"))
        return web.json_response(context.describe())

    async def remove(self, request):
        context = self.find(request.match_info["id"])
        del self.contexts[context.id]
        await context.stop()
        return web.Response(status=204)

    async def restart(self, request):
        context = self.find(request.match_info["id"])
        # What runs is ended with it.
        await context.restart()
        return web.Response(status=204)

    async def health(self, _):
        return web.json_response("OK")


async def read(request):
    if not request.can_read_body:
        return {}
    try:
        body = await request.json()
    except ValueError as error:
        raise Refusal(400, f"The body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refusal(400, "The body is not an object")
    return body


@web.middleware
async def refusals(request, handler):
    try:
        return await handler(request)
    except Refusal as refusal:
        return web.Response(status=refusal.status, text=str(refusal))


async def application():
    server = Server()
    await server.default("python")
    app = web.Application(middlewares=[refusals], client_max_size=64 << 20)
    app.add_routes(
        [
            web.post("/execute", server.execute),
            web.get("/contexts", server.list),
            web.post("/contexts", server.create),
            web.delete("/contexts/{id}", server.remove),
            web.post("/contexts/{id}/restart", server.restart),
            web.get("/health", server.health),
        ]
    )
    return app


if __name__ == "__main__":
    # Programs that kernels start find the packages of this environment first.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    web.run_app(application(), host="127.0.0.1", port=PORT, handler_cancellation=True, print=print)
