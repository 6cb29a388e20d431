"""tests/e2e/contexts_soak.py: its arithmetic, its verdict and its plot. The soak itself needs a model and minutes."""
import json
import math
import pathlib
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e"))
import contexts_soak as soak  # noqa: E402


def test_divergence_is_that_of_the_tokens_both_name():
    p, q = {"a": math.log(0.5), "b": math.log(0.25)}, {"a": math.log(0.25), "c": math.log(0.5)}
    assert soak.divergence(p, p) == 0
    want = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert abs(soak.divergence(p, q) - want) < 1e-12, want


def test_only_what_is_beyond_noise_rises():
    quiet, noisy = [0.1, 0.2, 0.3, 0.4], [0.4, 0.1, 0.3, 0.3]
    above = [x + 0.01 + i / 1000 for i, x in enumerate(quiet)]
    assert soak.rises(quiet, above) and not soak.rises(above, quiet)
    assert not soak.rises(quiet, quiet) and not soak.rises(quiet, noisy) and not soak.rises(noisy, quiet)


def test_the_plot_has_a_curve_by_method():
    rows = [{"reuse": [0.4, 0.2], "blend": [0.1, 0.1], "contexts": 0}, {"reuse": [0.1, 0.1], "blend": [0.1, 0.0], "contexts": 2}]
    tree = xml.etree.ElementTree.fromstring("".join(soak.svg(rows)))
    curves = [e.get("d") for e in tree.iter() if e.get("stroke") in [c for _, c in soak.METHODS.values()]]
    assert len(curves) == 2
    heights = [[float(point.split()[1]) for point in d[1:].split("L")] for d in curves]
    assert all(begin < end for begin, end in heights), heights  # less loss is further down


def test_passages_are_whole_paragraphs():
    paragraphs = [f"{i} " + "x" * (soak.LEAST + i) for i in range(40)]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        json.dump({"chunks": ["\n\n".join(["cut"] + paragraphs + ["cut"])]}, f)
        f.flush()
        assert soak.passages(f.name) == paragraphs[:soak.POOL[-1] + soak.TEXTS]


if __name__ == "__main__":
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test()
            print("ok  ", name)
