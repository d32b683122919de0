"""Entry point of every child process: `child.py ROLE CONFIG_JSON`.

A file of its own, so that a child needs no PYTHONPATH: the environment stays the caller's.
"""

import importlib
import json
import sys
from pathlib import Path

ROLES = {
    "gcs": "standin.ray_gcs",
    "raylet": "standin.ray_raylet",
    "core": "standin.vllm_core",
    "worker": "standin.vllm_worker",
}


def main() -> int:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    role, config = sys.argv[1], json.loads(sys.argv[2])
    return importlib.import_module(ROLES[role]).run(config) or 0


if __name__ == "__main__":
    sys.exit(main())
