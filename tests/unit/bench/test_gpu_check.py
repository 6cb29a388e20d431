"""tools/gpu-check: its steps against programs that pass, fail, hang or say nonsense, and tools/gpu-torch.py's skip."""
import argparse
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

TOOLS = pathlib.Path(__file__).resolve().parents[3] / "tools"
TTFT = {"meta": {"dims": {"L": 1, "D": 64, "H": 1, "G": 1, "K": 64, "F": 64, "V": 64}, "full_share_of_gemm": 0.9,
                 "gemm_gflops": 5e5},
        "rows": [{"strategy": "full", "ratio": 1, "ttft_ms_median": 80.0, "speedup_vs_full": 1, "tokens_total": 41},
                 {"strategy": "hkvd", "ratio": 0.15, "ttft_ms_median": 20.0, "speedup_vs_full": 4.0}]}
OVERLAP = {"meta": {}, "rows": [{"strategy": "hkvd", "throttle_gbps": 7, "time_ms": 12.0, "load_ms": 10.0,
                                 "compute_ms": 11.0, "time_per_max": 1.09, "can_overlap": True}]}
THROUGHPUT = {"meta": {"throughput_at_slo": {"full": 2.0, "blend": 13.0}, "throughput_ratio": 6.5,
                       "ttft_ms_unloaded": {"full": 80.0, "blend": 20.0}}, "rows": []}
CEIL = {"meta": {"ceilings": {"gemm_gflops": 6e5}},
        "rows": [{"kind": "copy", "gbps": 4000.0}, {"kind": "run", "us": 20.0},
                 {"kind": "square", "n": 8192, "gflops": 8e5, "share": 1.33},
                             {"kind": "gemm", "weight": "layer", "rows": 3104, "gflops": 7e5, "share": 0.97}]}
STUB = """#!{python}
import json, sys, time
sub, file = sys.argv[1], sys.argv[-1]
sub = sys.argv[2] if sub == "kernels" and sys.argv[2][0] != "-" else sub
reports = {reports}
if sub == "kernels":
    print("no such shape")
    sys.exit(1)
if sub == "attn":
    sys.exit(0)  # and leaves no report
if sub == "ceil":
    time.sleep({sleep})
json.dump(reports.get(sub, {{"meta": {{}}, "rows": []}}), open(file, "w"))
print(sub, "done")
"""


def load_tool():
    loader = importlib.machinery.SourceFileLoader("gpu_check", str(TOOLS / "gpu-check"))
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
    loader.exec_module(tool)
    return tool


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build, self.out = (pathlib.Path(self.folder.name) / name for name in ("build", "out"))

    def program(self, path, text):
        file = self.build / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return str(file)

    def stubs(self, sleep=0):
        reports = {"ceil": CEIL, "ttft": TTFT, "overlap": OVERLAP, "throughput": THROUGHPUT}
        text = STUB.format(python=sys.executable, reports=repr(reports), sleep=sleep)
        self.program("tools/bench/kvblend-bench", text)
        self.program("rows", "#!/bin/sh\necho $KVBLEND_TEST_DEVICE $KVBLEND_TEST_WEIGHTS $*\necho 3 passed, 0 failed\n")
        tests = [{"name": "kernels/hostcuda_rows", "env": {"KVBLEND_TEST_DEVICE": "hostcuda", "KVBLEND_TEST_WEIGHTS": "fp8"},
                  "cmd": ["/elsewhere/build/rows", "-k", "few"], "depends": ["lanes@cus", "lanes@sha", "kn@a"]},
                 {"name": "kernels/rows", "env": {}, "cmd": ["/never/run"]},
                 {"name": "bench/hostcuda_cli", "env": {"KVBLEND_TEST_DEVICE": "hostcuda"}, "cmd": ["/never/run"]},
                 {"name": "kernels/hostcuda_mixed_rows", "cmd": ["/elsewhere/build/tests/rows"],
                  "env": {"KVBLEND_TEST_DEVICE": "hostcuda", "KVBLEND_HOSTCUDA": "eager"}},
                 {"name": "kernels/hostcuda", "env": {"KVBLEND_TEST_DEVICE": "hostcuda"},
                  "cmd": ["/elsewhere/build/test_hostcuda"]}]
        self.program("meson-info/meson-info.json", json.dumps({"directories": {"build": "/elsewhere/build"}}))
        self.program("meson-info/intro-tests.json", json.dumps([{"depends": []} | t for t in tests]))
        made = {"lanes@cus": "liblanes_cuda.so", "lanes@sha": "liblanes_hostcuda.so", "kn@a": "libkn.a", "x@sha": "libx_hostcuda.so"}
        self.program("meson-info/intro-targets.json", json.dumps([{"id": i, "filename": [str(self.build / f)]} for i, f in made.items()]))

    def run_check(self, *args):
        argv = [TOOLS / "gpu-check", "--dry", "--no-build", "--build", self.build, "--out", self.out, *args]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return r, json.loads((self.out / "gpu-check.json").read_text())

    def test_a_failing_step_is_recorded_and_the_next_goes_on(self):
        self.stubs()
        r, got = self.run_check()
        self.assertEqual(r.returncode, 1, r.stderr)
        state = {s["step"].split()[0] if s["step"] != "test kernels/rows" else "test": s for s in got["steps"]}
        self.assertEqual({k: v["state"] for k, v in state.items() if k not in ("torch", "vllm", "memcheck", "racecheck")},
                         {"preflight": "passed", "build": "passed", "test": "passed", "ceil": "passed", "ttft": "passed", "kernels": "failed",
                          "attn": "failed", "overlap": "passed", "throughput": "passed"})
        self.assertIn("no such shape", state["kernels"]["note"])
        self.assertEqual([state[tool]["state"] for tool in ("memcheck", "racecheck")], ["skipped"] * 2)
        self.assertEqual(state["test"]["note"], "3 passed, 0 failed")
        self.assertFalse([s for s in got["steps"] if "mixed" in s["step"]])
        self.assertIn("hostcuda fp8 -k few\n", (self.out / "gpu-check.log").read_text())
        self.assertEqual(got["reports"]["ttft smollm2:layers=2"], TTFT)

    def test_figures_stand_beside_their_limits(self):
        self.stubs()
        _, got = self.run_check("--only", "ceil,ttft,overlap,throughput")
        by_name = {f["figure"]: f for f in got["figures"]}
        full = by_name["full prefill, 41 tokens"]
        self.assertEqual((full["value"], full["met"]), ("80.0 ms", True))
        self.assertIn("0.90 of the GEMM ceiling, 500 TFLOP/s", full["beside"])
        self.assertEqual(by_name["hkvd, 0.15 recomputed"]["value"], "4.00x")
        self.assertEqual(by_name["a layer's products, 3104 rows"]["value"], "700 TFLOP/s")
        square = by_name["a product of 8192 x 8192 x 8192"]
        self.assertEqual((square["value"], square["met"]), ("800 TFLOP/s", False))
        self.assertIn("0.75 of it", square["beside"])
        self.assertEqual(by_name["copy"]["value"], "4000.0 GB/s")
        self.assertFalse(by_name["hkvd behind 7 GB/s"]["met"])
        self.assertIn("0.90 hidden", by_name["hkvd behind 7 GB/s"]["beside"])
        self.assertTrue(by_name["blend at the objective"]["met"])
        table = (self.out / "gpu-check.md").read_text()
        for figure in got["figures"]:
            self.assertIn(figure["figure"], table)

    def test_what_hangs_is_cut_off_and_what_no_longer_fits_is_left_out(self):
        self.stubs(sleep=3600)
        r, got = self.run_check("--minutes", "0.12")
        self.assertEqual(r.returncode, 1)
        state, ceil = {s["step"]: s["state"] for s in got["steps"]}, "ceil smollm2:layers=2"
        self.assertEqual((state["test kernels/rows"], state[ceil]), ("passed", "failed"))
        behind = list(state.values())[list(state).index(ceil) + 1:]
        self.assertEqual(set(behind), {"left out"})

    def test_products_that_are_refused_or_slow_are_told(self):
        self.stubs()
        tool = load_tool()
        c = tool.Check(argparse.Namespace(dry=True, minutes=1, out=self.out, build=self.build))
        self.addCleanup(c.log.close)
        c.report["reports"]["ttft x"] = TTFT
        floor = c.floor("x", {"gemm_tflops": 700.0})  # 500 of the stub's
        self.assertEqual((floor["met"], floor["beside"][:4]), (False, "0.71"))
        self.assertTrue(c.floor("x", {"gemm_tflops": 550.0})["met"])
        self.program("tools/bench/kvblend-bench", "#!/bin/sh\nfor last; do :; done\n"
                     "echo '{\"meta\": {\"gemm_refused\": 3}, \"rows\": []}' >$last\n")
        with self.assertRaisesRegex(tool.Failed, "refused 3 products"):
            c.measure(60, "ceil", "x")

    def test_memcheck_skips_what_the_program_itself_skips(self):
        tool = load_tool()
        path = pathlib.Path(self.program("bin/compute-sanitizer", "#!/bin/sh\nfor last; do :; done\nexec \"$last\"\n")).parent
        with unittest.mock.patch.dict(os.environ, PATH="%s:%s" % (path, os.environ["PATH"])):
            c = tool.Check(argparse.Namespace(dry=False, minutes=1, out=self.out, build=self.build))
            self.addCleanup(c.log.close)
            for rc, outcome in ((77, tool.Skipped), (1, tool.Failed)):
                with self.assertRaises(outcome):
                    c.sanitize(60, "memcheck", [self.program("p%d" % rc, "#!/bin/sh\nexit %d\n" % rc)], {})
            self.assertEqual(c.sanitize(60, "memcheck", [self.program("p0", "#!/bin/sh\n")], {}), "no finding")

    def test_shapes_fit_the_memory(self):
        tool = load_tool()
        h100, a100, small = 81000 << 20, 39000 << 20, 22000 << 20
        self.assertEqual([tool.fitted(s, h100) for s in tool.SHAPES], list(tool.SHAPES))
        self.assertEqual(tool.fitted("mistral-7b", small), "mistral-7b")
        self.assertEqual(tool.fitted("yi-34b", a100), "yi-34b:layers=29")
        self.assertEqual(tool.fitted("llama-70b", small), "llama-70b:layers=14")
        self.assertEqual(tool.fitted(tool.MIXTURE, h100), "qwen3-30b-a3b")
        self.assertEqual([tool.fitted(tool.MIXTURE, gpu, 8) for gpu in (h100, small, 12000 << 20)],
                         ["qwen3-30b-a3b:layers=" + n for n in ("8", "8", "4")])
        for shape, (layers, layer, _) in tool.SIZES.items():
            self.assertGreater(layers * layer, 6e9, shape)

    def test_what_tests_load_is_built_for_the_device(self):
        self.stubs()
        for kind, device in ([], "cuda"), (["--dry"], "hostcuda"):
            argv = [TOOLS / "gpu-check", "--targets", "--build", self.build, "--out", self.out, *kind]
            targets = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.split()
            self.assertEqual([t for t in targets if "lib" in t and "/" not in t], ["liblanes_%s.so" % device])
            self.assertIn("rows", targets)

    def test_a_part_of_the_build_that_fails_leaves_the_rest(self):
        self.stubs()
        self.program("build.ninja", "")
        self.program("tests/doubles/libkn_hostcuda.so", "")
        self.program("bin/ninja", "#!/bin/sh\necho one target does not build\nexit 1\n")
        path = "%s:%s" % (self.build / "bin", os.environ["PATH"])
        argv = [TOOLS / "gpu-check", "--dry", "--build", self.build, "--out", self.out, "--only", "test,ceil"]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False,
                           env=dict(os.environ, PATH=path))
        got = json.loads((self.out / "gpu-check.json").read_text())
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertEqual([s["state"] for s in got["steps"]], ["passed", "failed", "passed", "passed"], got["steps"])

    def test_a_build_that_is_cut_off_leaves_what_is_finished(self):
        self.stubs()
        (self.build / "rows").unlink()
        self.program("build.ninja", "")
        self.program("tests/doubles/libkn_hostcuda.so", "")
        self.program("bin/ninja", "#!/bin/sh\nsleep 3600 & wait\n")
        path = "%s:%s" % (self.build / "bin", os.environ["PATH"])
        argv = [TOOLS / "gpu-check", "--dry", "--build", self.build, "--out", self.out, "--only", "test,ceil", "--build-minutes",
                "0.01"]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False,
                           env=dict(os.environ, PATH=path))
        steps = json.loads((self.out / "gpu-check.json").read_text())["steps"]
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertEqual([s["state"] for s in steps], ["passed", "failed", "skipped", "passed"], steps)
        self.assertEqual([steps[i]["note"] for i in (1, 2)], ["longer than 2 s", "was not built"])

    def test_what_cuda_lacks_is_named_at_once(self):
        tool, root = load_tool(), pathlib.Path(self.folder.name)
        wheels, kit = root / "site/nvidia", root / "kit"
        (root / "bin").mkdir()
        with unittest.mock.patch.dict(os.environ, PATH=str(root / "bin"), CUDA_HOME=""), \
                unittest.mock.patch.object(sys, "path", [str(root / "site")]), \
                unittest.mock.patch.object(tool, "TOOLKITS", (str(kit),)):
            self.assertEqual(tool.cuda_lacks(), ["nvcc", "cuda_runtime.h", "cublasLt.h", "libcudart_static.a", "libcublasLt.so"])
            for file in ("bin/nvcc", "include/cuda_runtime.h", "lib64/libcudart_static.a"):
                self.program(kit / file, "")
            self.assertEqual(tool.cuda_lacks(), ["cublasLt.h", "libcublasLt.so"])
            c = tool.Check(argparse.Namespace(dry=False, no_build=False, minutes=1, out=self.out, build=self.build,
                                              deps=str(root / "none")))
            self.addCleanup(c.log.close)
            with self.assertRaisesRegex(tool.Failed, r"cublasLt.h libcublasLt.so meson ninja pkg-config$"):
                c.preflight(60)
            self.program(wheels / "cublas/include/cublasLt.h", "")
            self.program(wheels / "cublas/lib/libcublasLt.so", "")
            self.assertEqual((tool.cuda_lacks(), tool.cuda_root()), ([], kit))
            with self.assertRaisesRegex(tool.Failed, ": meson ninja pkg-config$"):
                c.preflight(60)
            self.assertIn(str(wheels / "cublas/include"), c.env["CPATH"])
            self.assertIn(str(wheels / "cublas/lib"), c.env["LD_LIBRARY_PATH"])
            self.assertNotIn(str(kit / "include"), c.env["CPATH"])

    @unittest.skipUnless(shutil.which("dpkg-deb"), "packages of Debian are carried")
    def test_what_the_machine_lacks_is_carried(self):
        tool, root, deps = load_tool(), pathlib.Path(self.folder.name), pathlib.Path(self.folder.name) / "deps"
        self.program("../deb/DEBIAN/control", "Package: all\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\n"
                     "Description: all\n")
        for name in ("meson", "ninja", "pkg-config"):
            self.program("../deb/usr/bin/" + name, "#!/bin/sh\ntest -f \"${PKG_CONFIG_PATH%%:*}/$2.pc\"\n")
        for name in tool.PACKAGES:
            self.program("../deb/usr/lib/x-linux-gnu/pkgconfig/%s.pc" % name, "")
        (root / "bin").mkdir()
        for name in ("dpkg-deb", "sh", "tar", "rm", "xz", "zstd"):
            if shutil.which(name):
                (root / "bin" / name).symlink_to(shutil.which(name))
        with unittest.mock.patch.dict(os.environ, PATH=str(root / "bin")):
            c = tool.Check(argparse.Namespace(dry=True, minutes=1, out=self.out, build=self.build, deps=str(deps)))
            self.addCleanup(c.log.close)
            self.assertEqual(c.missing(), ["meson", "ninja", "pkg-config"])
            with self.assertRaisesRegex(tool.Failed, "missing, also from .*: meson ninja pkg-config"):
                c.provide(c.missing)
            deps.mkdir()
            subprocess.run([shutil.which("dpkg-deb"), "-b", str(root / "deb"), str(deps / "all.deb")], check=True,
                           capture_output=True, env=dict(os.environ, PATH=os.defpath))
            c.provide(c.missing)
            self.assertEqual(c.missing(), [])
            (self.build.with_name("build-deps") / "usr/lib/x-linux-gnu/pkgconfig/hiredis.pc").unlink()
            self.assertEqual(c.missing(), ["hiredis"])

    def test_nothing_to_run_is_a_failure(self):
        self.build.mkdir()
        r, got = self.run_check()
        self.assertEqual(r.returncode, 1)
        self.assertEqual([s["state"] for s in got["steps"]], ["passed", "failed"])

    def test_without_a_gpu_it_says_so(self):
        r = subprocess.run([sys.executable, TOOLS / "gpu-check", "--out", self.out], capture_output=True, text=True,
                           timeout=60, env={"PATH": self.folder.name})
        self.assertEqual(r.returncode, 77, r.stdout)
        self.assertIn("nothing was checked", r.stderr)


class Torch(unittest.TestCase):
    def run_torch(self, dims, *args):
        return subprocess.run([sys.executable, TOOLS / "gpu-torch.py", "--dims", dims, *args], capture_output=True,
                              text=True, timeout=120)

    def test_bad_dims_are_said(self):
        for dims in ("L=1", "L=1,D=x", "L=0,D=64,H=1,G=1,K=64,F=64,V=64"):
            r = self.run_torch(dims)
            self.assertEqual(r.returncode, 2)
            self.assertIn("expected L", r.stderr)

    def test_a_tiny_model_or_a_skip(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "torch.json"
            r = self.run_torch("L=2,D=64,H=4,G=2,K=16,F=96,V=128", "--tokens", "33", "--reps", "2", "--device", "cpu",
                               "--json", str(out))
            if r.returncode == 77:
                self.assertIn("PyTorch", r.stderr)
                self.skipTest("no PyTorch")
            self.assertEqual(r.returncode, 0, r.stderr)
            got = json.loads(out.read_text())
            self.assertTrue(got["meta"]["finite"])
            self.assertGreater(got["rows"][0]["ttft_ms_median"], 0)

    def run_vllm(self, module):
        """On a stand-in: a real one is not everywhere, and wants a GPU."""
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "vllm.py").write_text(module)
            out = pathlib.Path(folder) / "vllm.json"
            argv = [sys.executable, TOOLS / "gpu-torch.py", "--vllm", "--dims", "L=2,D=64,H=4,G=2,K=16,F=96,V=128", "--tokens",
                    "33", "--reps", "2", "--json", str(out)]
            r = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False,
                               env=dict(os.environ, PYTHONPATH=folder))
            return r, json.loads(out.read_text()) if out.exists() else None

    def test_vllm_is_asked_for_one_token_of_new_prompts(self):
        r, got = self.run_vllm("""
import json, pathlib
__version__ = "9"
seen = set()
class SamplingParams:
    def __init__(self, max_tokens, **_):
        assert max_tokens == 1
class LLM:
    def __init__(self, model, load_format, max_model_len, enable_prefix_caching, **_):
        config = json.loads((pathlib.Path(model) / "config.json").read_text())
        assert (config["num_hidden_layers"], config["head_dim"], load_format) == (2, 16, "dummy") and max_model_len > 33
        assert enable_prefix_caching is False
    def generate(self, prompts, params, use_tqdm):
        ids = prompts[0]["prompt_token_ids"]
        assert len(ids) == 33 and max(ids) < 128 and ids[0] not in seen
        seen.add(ids[0])
""")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual((got["meta"]["vllm"], got["meta"]["shape"]["D"], got["rows"][0]["tokens_total"]), ("9", 64, 33))
        figure, = load_tool().told("vllm", got, "x")
        self.assertEqual(figure["figure"], "full prefill in vLLM 9")

    def test_a_vllm_that_does_not_come_up_is_a_skip(self):
        for module, why in (("raise ImportError()", "not installed"),
                            ("class LLM:\n def __init__(self, **_):\n  raise ValueError('no room')", "vLLM: no room")):
            r, _ = self.run_vllm(module)
            self.assertEqual(r.returncode, 77)
            self.assertIn(why, r.stderr)


if __name__ == "__main__":
    unittest.main()
