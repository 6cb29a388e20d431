#!/usr/bin/env python3
"""By hand: full prefills and decode steps of an own worker beside OpenVINO GenAI and llama.cpp, the same GGUF, in turn.

Usage: peers_speed.py [--model FILE.gguf] [--onnx FOLDER] [--threads N] [--rounds N] [--prompt N,…] [--batch N,…]
                      [--only NAME;…] [--json FILE]

Each engine is a process of its own that stays loaded; every round asks each of them for the same ids, one engine after
the other. Prefill: a prompt of N tokens and the first token of its answer. Decode: what STEPS further tokens of a batch
take (an answer of STEPS + 1 tokens less one of a single token to other prompts, as some engines keep a prompt's KV).
Printed: medians of wall time, of tokens a second and of tokens a CPU second (all threads of the engine's process: what
others on the machine take is not in it), and the median of the rounds' ratios to kvblend as it starts by itself. Needs
openvino-genai, llama-cpp-python and onnxruntime-genai, in that Python (tests/e2e/peers.txt); what is missing is left
out and named. The last reads no GGUF: FOLDER is what its model builder makes of the same weights (docs/benchmarks.md).
KVBLEND_BUILD names the build.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import platform
import random
import statistics
import time

from harness import WORKER, Program, real_model, worker_listening

STEPS = 32


class Kvblend:
    """A worker, asked over HTTP; nothing of a request is kept."""

    def __init__(self, model, threads, *args):
        self.p = worker_listening(Program([WORKER, "--model", model, "--listen", "127.0.0.1:0", "--threads", str(threads),
                                           "--max-running", "16", *args], env={"XDG_CACHE_HOME": "{dir}"}))

    def used(self):
        fields = pathlib.Path(f"/proc/{self.p.proc.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def ask(self, prompts, n):
        body = {"prompt": prompts, "max_tokens": n, "temperature": 0, "ignore_eos": True,
                "kvblend": {"mode": "full", "store": False}}
        begin, cpu = time.monotonic(), self.used()
        r = self.p.post("/v1/completions", body, timeout=600)
        took = time.monotonic() - begin, self.used() - cpu
        assert r.status == 200 and r.json()["usage"]["completion_tokens"] == n * len(prompts), r.body[:300]
        return took

    def close(self):
        self.p.__exit__(None, None)


def openvino(model, threads, precision, exact=False):
    """exact: rows are not rounded to 8 bits on their way to weights that are codes, as they are by default."""
    import numpy
    import openvino
    import openvino_genai as genai
    more = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"} if exact else {}
    pipe = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, INFERENCE_PRECISION_HINT=precision, **more)

    def ask(prompts, n):
        config = genai.GenerationConfig(max_new_tokens=n, ignore_eos=True, do_sample=False)
        ids = numpy.array(prompts, dtype=numpy.int64)
        r = pipe.generate(genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids))), config)
        assert all(len(t) == n for t in r.tokens), [len(t) for t in r.tokens]
    return ask


def llama_cpp(model, threads, repacked):
    import ctypes
    import llama_cpp as ll
    ll.llama_backend_init()
    ll.llama_log_set(QUIET := ll.llama_log_callback(lambda *_: None), ctypes.c_void_p())
    p = ll.llama_model_default_params()
    p.use_extra_bufts = repacked
    handle = ll.llama_model_load_from_file(model.encode(), p)
    p = ll.llama_context_default_params()
    p.n_ctx, p.n_batch, p.n_seq_max, p.n_threads, p.n_threads_batch = 16384, 16384, 16, threads, threads
    p.kv_unified = True  # all of it for one prompt, too
    ctx = ll.llama_init_from_model(handle, p)
    vocab = ll.llama_vocab_n_tokens(ll.llama_model_get_vocab(handle))

    def step(tokens):  # (sequence, position, id, wanted) each
        b = ll.llama_batch_init(len(tokens), 0, 1)
        b.n_tokens = len(tokens)
        for i, (seq, pos, token, wanted) in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.seq_id[i][0], b.logits[i] = token, pos, 1, seq, wanted
        assert ll.llama_decode(ctx, b) == 0
        best = []
        for i, (*_, wanted) in enumerate(tokens):
            if wanted:
                row = ll.llama_get_logits_ith(ctx, i)
                best.append(max(range(0, vocab, 97), key=row.__getitem__))  # any id will do: what is timed is the step
        ll.llama_batch_free(b)
        return best

    def ask(prompts, n, _keep=QUIET):
        ll.llama_memory_clear(ll.llama_get_memory(ctx), True)
        last = step([(s, i, t, i == len(ids) - 1) for s, ids in enumerate(prompts) for i, t in enumerate(ids)])
        for k in range(1, n):
            last = step([(s, len(prompts[0]) + k - 1, t, True) for s, t in enumerate(last)])
    return ask


def onnxruntime(folder, threads):
    import numpy
    import onnxruntime_genai as og
    if not folder:
        raise ValueError("--onnx names no folder")
    config = og.Config(folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
    model = og.Model(config)

    def ask(prompts, n):
        length = len(prompts[0]) + n
        params = og.GeneratorParams(model)
        params.set_search_options(batch_size=len(prompts), max_length=length, min_length=length, do_sample=False)
        g = og.Generator(model, params)
        g.append_tokens(numpy.array(prompts, dtype=numpy.int32))
        for _ in range(n):
            g.generate_next_token()
    return ask


class Peer:
    """make(*args) and its ask() in a process of its own."""

    def __init__(self, make, *args):
        self.pipe, other = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=self.serve, args=(other, make, args), daemon=True)
        self.process.start()
        other.close()
        try:
            why = self.pipe.recv()
            if why is None:
                self.ask(ids(1, 32), 2)
        except EOFError:
            why = "its process ended"
        if why is not None:
            raise RuntimeError(why)

    @staticmethod
    def serve(pipe, make, args):
        try:
            ask = make(*args)
        except Exception as e:  # said by the parent
            return pipe.send(f"{type(e).__name__}: {e}")
        pipe.send(None)
        while (order := pipe.recv()) is not None:
            begin, cpu = time.monotonic(), time.process_time()
            ask(*order)
            pipe.send((time.monotonic() - begin, time.process_time() - cpu))

    def ask(self, prompts, n):
        self.pipe.send((prompts, n))
        return self.pipe.recv()

    def close(self):
        try:
            self.pipe.send(None)
        except OSError:  # it has ended
            pass
        self.process.join()


ENGINES = {
    "kvblend": lambda a: Kvblend(a.model, a.threads),
    "kvblend f32": lambda a: Kvblend(a.model, a.threads, "--dtype", "f32"),
    "kvblend int8": lambda a: Kvblend(a.model, a.threads, "--dtype", "int8"),
    "OpenVINO f32": lambda a: Peer(openvino, a.model, a.threads, "f32"),
    "OpenVINO bf16": lambda a: Peer(openvino, a.model, a.threads, "bf16"),
    "OpenVINO f32 exact": lambda a: Peer(openvino, a.model, a.threads, "f32", True),
    "OpenVINO bf16 exact": lambda a: Peer(openvino, a.model, a.threads, "bf16", True),
    "llama.cpp": lambda a: Peer(llama_cpp, a.model, a.threads, True),  # weights in the order its kernels want, AMX
    "llama.cpp, weights as in the file": lambda a: Peer(llama_cpp, a.model, a.threads, False),
    "ONNX Runtime": lambda a: Peer(onnxruntime, a.onnx, a.threads),
}


def numbers(text):
    return [int(x) for x in text.split(",")]


def ids(batch, n):
    return [[random.randrange(1000, 40000) for _ in range(n)] for _ in range(batch)]


def rounds_of(engines, rounds, make, n):
    """{engine: [(wall, CPU) of n steps, …]}; the first round warms and is dropped."""
    out = {name: [] for name in engines}
    for k in range(rounds + 1):
        prompts, others = make(), make()
        for name, e in engines.items():
            one = e.ask(prompts, 1)
            took = one if n == 1 else tuple(a - b for a, b in zip(e.ask(others, n + 1), one))
            if k:
                out[name].append(took)
    return out


def table(title, tokens, measured, rows):
    print(f"\n{title}\n| engine | ms | tokens/s | tokens/CPU-s | kvblend is |\n|---|---|---|---|---|")
    for name, times in measured.items():
        wall, cpu = (statistics.median(x) for x in zip(*times))
        ratio = statistics.median(t[1] / k[1] for t, k in zip(times, measured.get("kvblend", times)))
        rows.append({"what": title, "engine": name, "tokens": tokens, "times": times, "cpu_ratio": ratio})
        print(f"| {name} | {1e3 * wall:.0f} | {tokens / wall:.0f} | {tokens / cpu:.0f} | {ratio:.2f}x |", flush=True)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--model")
    args.add_argument("--onnx", default="")
    args.add_argument("--threads", type=int, default=2)
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--prompt", type=numbers, default=[512, 3104, 8000])
    args.add_argument("--batch", type=numbers, default=[1, 8])
    args.add_argument("--only", type=lambda s: s.split(";"), default=list(ENGINES))
    args.add_argument("--json")
    args = args.parse_args()
    multiprocessing.set_start_method("spawn")
    random.seed(1)
    args.model = args.model or real_model()
    engines, rows = {}, []
    try:
        for name in args.only:
            try:
                engines[name] = ENGINES[name](args)
            except RuntimeError as e:
                print(f"left out: {name}: {e}")
        for n in args.prompt:
            measured = rounds_of(engines, args.rounds, lambda n=n: ids(1, n), 1)
            table(f"prefill of {n} tokens", n, measured, rows)
        for b in args.batch:
            measured = rounds_of(engines, args.rounds, lambda b=b: ids(b, 64), STEPS)
            table(f"decode, {b} at once", b * STEPS, measured, rows)
    finally:
        for e in engines.values():
            e.close()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"machine": platform.processor(), "threads": args.threads,
                                                       "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
