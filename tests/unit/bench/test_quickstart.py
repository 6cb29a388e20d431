"""tools/quickstart: what it builds and starts with and without a GPU, everything around it played by scripts; and what
every script beside it says of itself before it does anything."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[3] / "tools"
NOTE = "#!/bin/sh\necho \"${0##*/} $*\" >>\"$CALLS\"\n"
PLAIN = ["build --no-packages --serve", "kvblend --model MODEL --listen 127.0.0.1:1 --metrics-public --log-level warn"]


class Quickstart(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.calls = self.root / "calls"
        for name in ("quickstart", "lib.sh"):
            (self.root / "tools").mkdir(exist_ok=True)
            shutil.copy(TOOLS / name, self.root / "tools" / name)
        self.script("tools/build", NOTE + "case $* in *cuda=enabled*) exit ${GPU_BUILD:-0} ;; esac\n")
        self.script("tools/demo.py", "#!/bin/sh\n")
        self.script("build/bin/kvblend", NOTE + 'echo "$KVBLEND_ADMIN $KVBLEND_ADMIN_KEY $KVBLEND_SHOW_TEXT" >"$CALLS.admin"\n'
                    "echo kernels $KVBLEND_KERNELS_DIR >>\"$CALLS\"\nexec sleep 60\n")
        self.script("build/bin/kvblend-worker", "#!/bin/sh\n[ \"$*\" = '--device cuda:0 --list-devices' ] && echo $GPU\n")
        self.script("bin/dpkg-query", "#!/bin/sh\necho installed\n")
        # Ready once the gateway has noted how it was started.
        self.script("bin/curl", "#!/bin/sh\ngrep -q ^kernels \"$CALLS\"\n")

    def script(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def gpu(self, capability="9.0", nvcc=True):
        self.script("bin/nvidia-smi", "#!/bin/sh\necho %s\n" % capability if capability else "#!/bin/sh\nexit 9\n")
        if nvcc:
            self.script("cuda/bin/nvcc", "#!/bin/sh\n")
            (self.root / "bin/nvcc").symlink_to(self.root / "cuda/bin/nvcc")

    def environment(self, **env):
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("KVBLEND_", "CUDA_"))}
        # Where a real nvidia-smi or nvcc may be, only what the script itself calls is.
        tools = self.root / "plain"
        tools.mkdir(exist_ok=True)
        for name in ("bash", "sh", "awk", "cat", "cut", "df", "dirname", "env", "grep", "id", "mkdir", "nproc", "od",
                     "readlink", "sed", "seq", "sleep", "tail", "tr"):
            if not (tools / name).exists():
                (tools / name).symlink_to(shutil.which(name))
        return dict(keep, PATH="%s:%s" % (self.root / "bin", tools), CALLS=str(self.calls), KVBLEND_MODEL="MODEL",
                    KVBLEND_PORT="1", **env)

    def run_it(self, **env):
        """The calls that it made, and what the gateway has as KVBLEND_KERNELS_DIR."""
        r = subprocess.run([self.root / "tools/quickstart", "--once"], capture_output=True, text=True, timeout=60,
                           env=self.environment(**env), check=False)
        self.assertEqual(r.returncode, 0, r.stderr)
        *calls, kernels = self.calls.read_text().splitlines()
        return calls, kernels[len("kernels "):], r.stderr

    def test_without_a_gpu_or_a_compiler_nothing_of_it_is_seen(self):
        for make in (lambda: None, lambda: self.gpu(nvcc=False), lambda: self.gpu("")):
            self.calls.unlink(missing_ok=True)
            make()
            calls, kernels, said = self.run_it(CUDA_HOME=str(self.root / "cuda"))
            self.assertEqual((calls, kernels), (PLAIN, ""))
            self.assertNotIn("GPU", said)

    def test_its_last_line_opens_the_page(self):
        keys = set()
        for _ in range(2):
            self.calls.unlink(missing_ok=True)
            with subprocess.Popen([self.root / "tools/quickstart"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True, env=self.environment()) as p:
                link = next(line for line in p.stdout if "/ui#" in line).split()[-1]
                p.terminate()
                self.assertEqual(p.stdout.read(), "", "the last line")
            address, key, shown = (self.root / "calls.admin").read_text().split()
            self.assertEqual((address, link), ("127.0.0.1:2", f"http://127.0.0.1:2/ui#play?key={key}"))
            self.assertEqual(shown, "/playground")
            self.assertRegex(key, "^[0-9a-f]{32}$")
            keys.add(key)
        self.assertEqual(len(keys), 2, "a key of each run's own")

    def test_a_gpu_is_built_for_and_used(self):
        self.gpu()
        calls, kernels, _ = self.run_it(GPU="cuda:0 NVIDIA H100")
        self.assertEqual(calls[0], "build --no-packages --serve -Dcuda=enabled -Dgpu_arch=90 -Dgpu_root=%s"
                         % (self.root / "cuda").resolve())
        self.assertEqual((calls[1], kernels), (PLAIN[1] + " --device cuda", str(self.root / "build/kernels")))

    def test_a_gpu_that_cannot_be_used_leaves_the_cpu(self):
        self.gpu()
        calls, _, said = self.run_it(GPU="")
        self.assertEqual(calls[1], PLAIN[1])
        self.assertIn("the GPU cannot be used", said)

    def test_a_toolkit_that_does_not_build_leaves_the_cpu(self):
        self.gpu()
        calls, kernels, said = self.run_it(GPU="cuda:0", GPU_BUILD="1")
        self.assertEqual(calls[1:], ["build --no-packages --serve -Dcuda=disabled", PLAIN[1]])
        self.assertEqual(kernels, "")
        self.assertIn("does not build", said)

    def test_a_gpu_that_is_too_old_is_passed_over(self):
        self.gpu("7.5")
        calls, _, _ = self.run_it()
        self.assertEqual(calls, PLAIN)


class Usage(unittest.TestCase):
    def ask(self, *command):
        # An empty PATH but for what printing takes: whoever goes on to install or build fails.
        with tempfile.TemporaryDirectory() as tools:
            for name in ("bash", "dirname", "nproc", "sed"):
                os.symlink(shutil.which(name), os.path.join(tools, name))
            return subprocess.run(command, capture_output=True, text=True, timeout=60, env={"PATH": tools}, check=False)

    def test_every_script_says_how_it_is_used(self):
        scripts = [f for f in TOOLS.iterdir() if f.is_file() and f.read_bytes().startswith(b"#!/usr/bin/env bash\n")]
        self.assertGreater(len(scripts), 5)
        for script in scripts:
            for option in ("--help", "-h"):
                r = self.ask(script, option)
                self.assertEqual((r.returncode, r.stderr), (0, ""), script.name)
                first = script.read_text().splitlines()[1]
                self.assertEqual(r.stdout.splitlines()[0], first[2:], script.name)
                self.assertNotIn("pipefail", r.stdout, script.name)

    def test_a_stage_that_does_not_exist_is_refused(self):
        r = self.ask(TOOLS / "test", "--client")
        self.assertEqual((r.returncode, r.stdout), (1, ""))
        self.assertIn("unknown stage --client: see tools/test --help", r.stderr)


if __name__ == "__main__":
    unittest.main()
