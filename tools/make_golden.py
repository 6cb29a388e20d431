#!/usr/bin/env python3
"""Golden vectors of tests/data/: what reference implementations make of our test models.

Writes
  quant/<type>.bin     random blocks of every quantised type and what the gguf package makes of them:
                       u32 n_blocks, u32 block bytes, u32 block values, the blocks, then f32 values
  golden/<model>.json  for every model folder of tests/data/models/: prompt token ids, logits of the
                       last positions and a greedy continuation, by transformers on the CPU in f32
  golden/rope.json     inverse frequencies and attention factors of the same models

Run: python3 tools/make_golden.py [quant] [models]      (needs numpy, gguf, torch, transformers)
The files are committed; the tests read them and need no Python.
"""
import json
import os
import struct
import sys

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "data")
N_PROMPT, N_ROWS, N_GREEDY, N_HEAD = 40, 8, 64, 16


def make_quant():
    import gguf
    import numpy as np

    rng = np.random.default_rng(20240607)
    # Where each type keeps its f16 scales, so that random blocks stay finite.
    scales = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
              "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
              "F16": [0], "BF16": []}
    os.makedirs(os.path.join(DATA, "quant"), exist_ok=True)
    for name, at in scales.items():
        qtype = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[qtype]
        n = 8 if values == 256 else 24 if values == 32 else 256
        blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
        if name == "BF16":
            blocks[:, 1] = rng.integers(0x30, 0x48, n)
        for offset in at:
            f16 = (rng.standard_normal(n) * 10.0 ** rng.integers(-6, 2, n)).astype(np.float16)
            blocks[:, offset:offset + 2] = f16.view(np.uint8).reshape(n, 2)
        if name == "F16":
            out = blocks.reshape(-1).view(np.float16).astype(np.float32)
        else:
            out = gguf.quants.dequantize(blocks.reshape(1, -1), qtype).astype(np.float32)
        with open(os.path.join(DATA, "quant", name + ".bin"), "wb") as f:
            f.write(struct.pack("<III", n, size, values))
            f.write(blocks.tobytes())
            f.write(out.reshape(-1).astype("<f4").tobytes())
        print("quant", name, n, "blocks")
