"""Runs the cases: suite.py [PART_OF_A_NAME]"""

import sys

import abuse  # noqa: F401
import asynchronous  # noqa: F401
import commands  # noqa: F401
import files  # noqa: F401
import lifecycle  # noqa: F401
import network  # noqa: F401
import snapshots  # noqa: F401
from harness import run

run(sys.argv[1] if len(sys.argv) > 1 else None)
