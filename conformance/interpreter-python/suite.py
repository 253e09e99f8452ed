"""The official Python code interpreter, unmodified, against a whole server.

A case is a function whose name is a sentence. All of them but the last share a sandbox, each with
contexts of its own where it leaves something behind; each says how it went in one line, and the last
line says it of all. The settings are those that `with-server` makes.
"""

import asyncio
import sys
import traceback

from e2b import TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

CASES = []


def case(function):
    CASES.append(function)
    return function


@case
def output_and_results_come_back(sandbox):
    execution = sandbox.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\n'text'"
    )
    assert execution.logs.stdout == ["out\n"], execution
    assert execution.logs.stderr == ["err\n"], execution
    assert execution.text == "text", execution
    assert execution.results[0].is_main_result
    assert execution.error is None
    assert execution.execution_count >= 1


@case
def what_is_displayed_comes_in_its_formats(sandbox):
    execution = sandbox.run_code(
        "from IPython.display import HTML, SVG, Latex, JSON, Markdown, display\n"
        "display(HTML('<b>x</b>'))\n"
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>'))\n"
        "display(Latex('$x$'))\ndisplay(JSON({'a': 1}))\ndisplay(Markdown('*x*'))\n"
        "display({'application/x-own': 'mine'}, raw=True)\n42"
    )
    assert execution.error is None, execution.error
    html, svg, latex, data, markdown, own, main = execution.results
    assert html.html == "<b>x</b>" and not html.is_main_result
    assert svg.svg.startswith("<svg")
    assert latex.latex == "$x$"
    assert data.json == {"a": 1}
    assert markdown.markdown == "*x*"
    assert own.extra == {"application/x-own": "mine"}
    assert main.is_main_result and main.text == "42"


@case
def an_image_is_a_png(sandbox):
    execution = sandbox.run_code(
        "import base64\nfrom IPython.display import Image\n"
        "Image(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk"
        "YPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=='))"
    )
    assert execution.results[0].png.startswith("iVBORw0KGgo"), execution


@case
def an_error_has_its_name_value_and_traceback(sandbox):
    execution = sandbox.run_code("def f():\n    return 1 / 0\nf()")
    assert execution.error.name == "ZeroDivisionError", execution
    assert execution.error.value == "division by zero"
    assert "return" in execution.error.traceback
    broken = sandbox.run_code("def (")
    assert broken.error.name == "SyntaxError", broken


@case
def state_is_kept_between_executions_and_not_between_contexts(sandbox):
    sandbox.run_code("kept = 41")
    assert sandbox.run_code("kept + 1").text == "42"
    context = sandbox.create_code_context()
    assert context.language == "python" and context.cwd == "/home/user", context
    assert sandbox.run_code("kept", context=context).error.name == "NameError"
    sandbox.remove_code_context(context)


@case
def contexts_are_made_listed_restarted_and_removed(sandbox):
    context = sandbox.create_code_context(cwd="/tmp", language="python")
    assert sandbox.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert context.id in [listed.id for listed in sandbox.list_code_contexts()]
    sandbox.run_code("x = 1", context=context)
    sandbox.restart_code_context(context)
    again = sandbox.run_code("x", context=context)
    assert again.error.name == "NameError", again
    sandbox.remove_code_context(context.id)
    assert context.id not in [listed.id for listed in sandbox.list_code_contexts()]
    for gone in (
        lambda: sandbox.run_code("1", context=context),
        lambda: sandbox.restart_code_context(context),
        lambda: sandbox.remove_code_context(context),
    ):
        try:
            gone()
        except Exception as why:
            assert "not found" in str(why).lower(), why
        else:
            raise AssertionError("a context that is gone was found")


@case
def variables_are_for_one_execution_or_for_the_sandbox(sandbox):
    code = "import os; (os.environ.get('ONCE'), os.environ.get('ALWAYS'))"
    assert sandbox.run_code(code, envs={"ONCE": "a'\nb"}).text == "(\"a'\\nb\", 'yes')"
    assert sandbox.run_code(code).text == "(None, 'yes')"
    sandbox.run_code("pass", envs={"ALWAYS": "no"})
    assert sandbox.run_code(code).text == "(None, 'yes')"


@case
def output_is_heard_while_code_runs(sandbox):
    heard = []
    sandbox.run_code(
        "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.2)\ni",
        on_stdout=lambda message: heard.append(message.line),
        on_result=lambda result: heard.append(result.text),
    )
    # A line may come in pieces; each comes when it is written.
    assert "".join(heard) == "0\n1\n2\n2" and len(heard) > 3, heard
    errors = []
    sandbox.run_code("1 / 0", on_error=lambda error: errors.append(error.name))
    assert errors == ["ZeroDivisionError"]


@case
def a_timeout_interrupts_what_runs(sandbox):
    context = sandbox.create_code_context()
    try:
        sandbox.run_code(
            "n = 0\nimport time\nwhile True:\n    n += 1\n    time.sleep(0.01)",
            context=context,
            timeout=2,
        )
    except TimeoutException:
        pass
    else:
        raise AssertionError("it was not interrupted")
    first = sandbox.run_code("n", context=context, timeout=30)
    assert int(first.text) > 0, first
    assert sandbox.run_code("n", context=context).text == first.text, "it still counts"
    sandbox.remove_code_context(context)


@case
def code_that_is_quiet_for_long_is_waited_for(sandbox):
    assert sandbox.run_code("import time; time.sleep(12); 'done'").text == "done"


@case
def a_kernel_that_dies_is_replaced(sandbox):
    context = sandbox.create_code_context()
    died = sandbox.run_code("import os; os._exit(1)", context=context)
    assert died.error is not None, died
    assert sandbox.run_code("1 + 1", context=context).text == "2"
    sandbox.remove_code_context(context)


@case
def bash_runs_and_what_is_not_there_is_named(sandbox):
    execution = sandbox.run_code("x=1; echo $((x + 1))", language="bash")
    assert "".join(execution.logs.stdout).strip() == "2", execution
    try:
        sandbox.run_code("1", language="r")
    except Exception as why:
        assert "no kernel for r" in str(why), why
    else:
        raise AssertionError("there is no R here")


@case
def files_and_commands_are_those_of_the_same_sandbox(sandbox):
    sandbox.files.write("/home/user/data.txt", "shared")
    assert sandbox.run_code("open('data.txt').read()").text == "shared"
    sandbox.run_code("open('made.txt', 'w').write('inside')")
    assert sandbox.commands.run("cat made.txt").stdout == "inside"
    said = "".join(sandbox.run_code("!pip --version").logs.stdout)
    assert "pip " in said, said


@case
def variables_outlive_a_pause(sandbox):
    sandbox.run_code("slept = 'through'")
    sandbox.pause()
    woken = Sandbox.connect(sandbox.sandbox_id)
    assert woken.run_code("slept").text == "through"


@case
def the_asynchronous_client_works(_):
    async def run():
        sandbox = await AsyncSandbox.create(timeout=120)
        heard = []
        execution = await sandbox.run_code(
            "print('a')\n'b'", on_stdout=lambda message: heard.append(message.line)
        )
        assert execution.text == "b" and heard == ["a\n"], execution
        context = await sandbox.create_code_context()
        assert context.id in [listed.id for listed in await sandbox.list_code_contexts()]
        await sandbox.kill()

    asyncio.run(run())


def main():
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    sandbox = Sandbox.create(timeout=600, envs={"ALWAYS": "yes"})
    failed = 0
    chosen = [case for case in CASES if part in case.__name__]
    for case in chosen:
        name = case.__name__.replace("_", " ")
        try:
            case(sandbox)
            print(f"ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    sandbox.kill()
    print(f"{len(chosen) - failed} passed, {failed} failed")
    sys.exit(1 if failed or not chosen else 0)


main()
