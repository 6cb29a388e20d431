"""What ptxas makes of the CUDA kernels: whether one keeps in memory what registers have no room for.

usage: test_ptxas.py NVCC ROOT ARCH...   77 (skipped) without nvcc (NVCC empty), or with another than RELEASE

A kernel that spills is correct and slow: no other test sees it without a GPU. By `-Xptxas -v` none has a frame: neither
spills nor an array that is indexed by what only a run knows. The registers that it prints stand in
docs/decisions/gpu-hardware.md.
"""

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

FILES = ["attn", "attn_mma", "coded", "gemm", "kv", "moe", "moe_coded", "pick", "quant", "rows", "sdpa"]
RELEASE = "13.0"  # of nvcc: another spills elsewhere
ARCHS = ["80", "86", "89", "90", "100", "120"]


def release(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"release ([\d.]+)", said)[1]


def compiled(nvcc, root, name, arch):
    """[(kernel, (registers, bytes of its frame, bytes of spill stores))]; templates' arguments belong to the name."""
    with tempfile.TemporaryDirectory() as folder:
        made = subprocess.run([nvcc, "-std=c++17", "-O3", "-I", root, "-Xptxas", "-v", "-cubin", f"-arch=sm_{arch}",
                               f"{root}/kernels/cuda/{name}.cu", "-o", f"{folder}/cubin"],
                              capture_output=True, text=True, env={**os.environ, "TMPDIR": folder})
    if made.returncode:
        sys.exit(f"{name}.cu for sm_{arch}: {made.stderr}")
    said = subprocess.run(["c++filt", "-p"], input=made.stderr, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Compiling entry function '(.+?)' for .*?"
                       r"(\d+) bytes stack frame, (\d+) bytes spill stores.*?Used (\d+) registers", said, re.DOTALL)
    if len(found) != said.count("Compiling entry function") or not found:
        sys.exit(f"{name}.cu for sm_{arch}: not understood: {said}")
    return [(kernel, (int(registers), int(frame), int(stored))) for kernel, frame, stored, registers in found]


def main():
    nvcc, root, *archs = sys.argv[1:]
    if not nvcc:
        print("SKIP: there is no nvcc")
        return 77
    archs = [a for a in ARCHS if a in archs]
    if release(nvcc) != RELEASE or not archs:
        print(f"SKIP: nvcc {RELEASE} is asked for {', '.join(ARCHS)}, this is {release(nvcc)} for {sys.argv[3:]}")
        return 77
    kernels = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [(arch, pool.submit(compiled, nvcc, root, name, arch)) for name in FILES for arch in archs]
        for arch, job in jobs:
            for kernel, made in job.result():
                if kernels.setdefault(kernel, {}).setdefault(arch, made) is not made:
                    sys.exit(f"{kernel}: two of one name")
    failed = []
    for kernel, made in sorted(kernels.items()):
        print(f"{kernel}: {' / '.join(str(made[a][0]) if a in made else '-' for a in archs)} registers")
        failed += [f"{kernel}, sm_{arch}: {stored} bytes of spill stores, a frame of {frame}"
                   for arch, (_, frame, stored) in made.items() if frame or stored]
    print(f"{len(kernels)} kernels for sm_{', sm_'.join(archs)}, {len(failed)} failures")
    for line in failed:
        print("FAIL", line)
    return 1 if failed else 0


sys.exit(main())
