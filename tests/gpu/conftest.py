"""Triton decides when it is imported whether it interprets kernels: see test_in_interpreter.py."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore_glob = ["test_*.py"]
else:
    collect_ignore_glob = ["interpreted/*"]
