#!/usr/bin/env python3
"""etc/kubernetes: the chart, rendered by Helm's library, meets Kubernetes' schemas; the plain manifests are what it renders
(KVBLEND_WRITE=1 makes them anew); the programs take the configuration and options that are in it.

Python: one with what kubernetes.txt names (tools/test --packages).
"""
import json
import os
import re
import subprocess

import helm_python
import kubernetes_validate
import yaml

from harness import KVBLEND, ROOT, WORKER, Program, main

CHART = os.path.join(ROOT, "etc", "kubernetes", "chart")
PLAIN = os.path.join(ROOT, "etc", "kubernetes", "kvblend.yaml")
MODEL = {"worker": {"model": "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"}}
CRDS = {"ServiceMonitor"}  # of the Prometheus operator: Kubernetes has no schema of it
VERSIONS = ("1.30", "1.34")
OTHERS = [{"gateway": {"config": {"limits": {"max_ttft": "4s"}}, "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
           "worker": {"pull": False, "sharedTier": False, "model": "/models/m.gguf", "args": ["--policy=arc"], "replicas": 1,
                      "resources": {"limits": {"nvidia.com/gpu": 1}}, "nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]},
           "redis": {"namespace": "data", "podLabels": {"app": "redis"}, "port": 6380}, "imagePullSecrets": [{"name": "x"}],
           "monitoring": {"serviceMonitor": False}}]


def render(values):
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values=values, name="kvblend", namespace="kvblend")
    text = "\n".join(f"---\n# {name}\n{files[name].strip()}" for name in sorted(files) if files[name].strip())
    return re.sub(r"\n\n+", "\n", text.replace("managed-by: Helm", "managed-by: kubectl")) + "\n"


def objects(values):
    return {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(render(values)) if d}


def container(values, kind, name):
    return objects(values)[kind, name]["spec"]["template"]["spec"]["containers"][0]


def test_the_chart_is_sound():
    report = helm_python.lint(CHART, MODEL, strict=True)
    assert not report["errors"] and all(m["severity"] < 2 for m in report["messages"]), report
    for wrong in ({}, {"worker": {"model": "m", "ram": "8 gigabytes"}}, {"wroker": {}, **MODEL}):
        try:
            render(wrong)
        except helm_python.HelmError:
            continue
        raise AssertionError(f"{wrong} was rendered")


def test_objects_meet_the_schemas():
    n = 0
    for values in (MODEL, *OTHERS):
        for version in VERSIONS:
            for (kind, name), d in objects(values).items():
                if kind not in CRDS:
                    kubernetes_validate.validate(d, version, strict=True)
                    n += 1
    assert n > 40, n
    broken = objects(MODEL)["Deployment", "kvblend-gateway"]
    broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    try:
        kubernetes_validate.validate(broken, VERSIONS[0], strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("a field that there is not was taken")


def test_plain_manifests_are_what_it_renders():
    text = "# Made of chart/ by tests/e2e/kubernetes_chart.py: README.md beside this says how to use it.\n" + render(MODEL)
    if os.environ.get("KVBLEND_WRITE"):
        with open(PLAIN, "w") as f:
            f.write(text)
    with open(PLAIN) as f:
        assert f.read() == text, "KVBLEND_WRITE=1 makes etc/kubernetes/kvblend.yaml anew"


def test_pods_are_found_and_locked_down():
    for values in (MODEL, *OTHERS):
        them = objects(values)
        for (kind, name), d in them.items():
            if kind in ("Deployment", "StatefulSet"):
                pod = d["spec"]["template"]
                assert d["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
                assert pod["spec"]["securityContext"]["runAsNonRoot"] and not pod["spec"]["automountServiceAccountToken"]
                for c in pod["spec"]["containers"] + pod["spec"].get("initContainers", []):
                    assert c["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
                    mounts = {m["name"] for m in c["volumeMounts"]}
                    known = {v["name"] for v in pod["spec"]["volumes"]} | {t["metadata"]["name"] for t in d["spec"].get("volumeClaimTemplates", [])}
                    assert mounts <= known, (name, mounts, known)
                grace, drain = pod["spec"]["terminationGracePeriodSeconds"], 120
                assert grace > drain + pod["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
            if kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
                wanted = d["spec"].get("podSelector", d["spec"].get("selector"))
                wanted = wanted.get("matchLabels", wanted)
                assert any(wanted.items() <= x["spec"]["template"]["metadata"]["labels"].items() for x in them.values()
                           if x["kind"] in ("Deployment", "StatefulSet")), (kind, name)


def test_the_programs_take_what_they_are_given():
    for values in (MODEL, *OTHERS):
        text = objects(values)["ConfigMap", "kvblend-gateway"]["data"]["kvblend.yaml"]
        env = {e["name"]: "redis://r:6379" if "URL" in e["name"] else "x" * 32 for e in container(values, "Deployment", "kvblend-gateway")["env"]}
        text = text.replace("/etc/kvblend-keys/keys", "{dir}/keys")
        with Program([KVBLEND, "--check", "--config", "{dir}/c.yaml"], env, {"c.yaml": text, "keys": "sesame id=one\n"}) as p:
            os.chmod(p.dir + "/keys", 0o600)
            assert p.proc.wait(60) == 0, p.log()
        table = json.loads(subprocess.run([WORKER, "--dump-options"], capture_output=True, text=True, check=True, timeout=60).stdout)["options"]
        worker = container(values, "StatefulSet", "kvblend-worker")
        flags = {"--" + o["flag"] for o in table}
        assert {a.split("=")[0] for a in worker["args"]} <= flags, worker["args"]
        named = {e["name"] for e in worker["env"] if e["name"].startswith("KVBLEND_")}
        assert named <= {o["variable"] for o in table}, named


if __name__ == "__main__":
    main(globals())
