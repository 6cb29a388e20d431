#!/usr/bin/env python3
"""Without redis-server, the model or the openai package a test is skipped (77): a pass means that all of it ran.

Arguments: unit test programs and the pattern of their tests, in turn. PATH and the model's variables are empty.
"""
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = [("test_registry.py", ""), ("test_tiers.py", "share_redis"), ("test_worker.py", "real_model"),
          ("test_canaries.py", "two")]


def main():
    runs = [[program, "-k", tests] for program, tests in zip(sys.argv[1::2], sys.argv[2::2])]
    runs += [[sys.executable, os.path.join(HERE, file), tests] for file, tests in PYTHON]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kvb-e2e-") as nothing:
        env = {k: v for k, v in os.environ.items() if k not in ("KVBLEND_MODEL", "KVBLEND_TEST_MODEL")}
        env.update(PATH=nothing, XDG_CACHE_HOME=nothing, KVBLEND_MODELS=nothing)
        for run in runs:
            r = subprocess.run(run, env=env, capture_output=True, text=True)
            ok = r.returncode == 77 and "SKIP" in r.stdout
            failed += not ok
            print("ok  " if ok else "FAIL", *run, "" if ok else (r.returncode, r.stdout, r.stderr))
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
