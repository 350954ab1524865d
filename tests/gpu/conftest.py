"""Triton decides when it is imported whether kernels are interpreted: see test_in_interpreter.py."""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    collect_ignore_glob = ["test_*.py", "ahead.py"]
else:
    collect_ignore_glob = ["interpreted/*"]
