"""What the tests of kvblend-bench's commands share."""
import json
import os
import pathlib
import subprocess
import tempfile

BENCH = os.environ["KVBLEND_BENCH"]


def report(*args, timeout=600):
    """What `kvblend-bench ARGS --json` writes."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "report.json"
        r = subprocess.run([BENCH, *args, "--json", str(out)], capture_output=True, text=True, timeout=timeout)
        assert r.returncode == 0, r.stderr
        return json.loads(out.read_text())
