"""Times the official Python SDK against a server: one line for each measurement, its name and
nanoseconds. The environment says where the server is."""

import sys
import time

from e2b import Sandbox


def main(rounds: int) -> None:
    for _ in range(rounds):
        begun = time.perf_counter_ns()
        sandbox = Sandbox.create()
        created = time.perf_counter_ns()
        said = sandbox.commands.run("echo hello").stdout
        output = time.perf_counter_ns()
        assert said == "hello\n", said
        sandbox.kill()
        killed = time.perf_counter_ns()
        print("create", created - begun)
        print("output", output - begun)
        print("kill", killed - output)


main(int(sys.argv[1]))
