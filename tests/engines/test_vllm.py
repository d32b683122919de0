"""The serve unit: what each setting becomes, for the versions that are known and for the others."""

import json
import pathlib

import pytest

from engines.specs import ASKED, HEAD, NODES, SPEC, STAMP, WORKER, env, settings, spec
from sparkd.engines.model import Device
from sparkd.engines.vllm import OWN_OPTIONS, render_serve
from sparkd.words import GIB, Backend, CudaGraph, LoadFormat

OPTIONS = pathlib.Path(__file__).parents[1] / "standin/data/vllm_serve_options.json"
EVERYTHING = settings(
    kv_cache_bytes=44 * GIB,
    max_num_batched_tokens=2048,
    max_num_seqs=16,
    max_model_len=8192,
    load_format=LoadFormat.LAZY,
    cudagraph=CudaGraph.REDUCED,
)
MP = spec(backend=Backend.MP)


def serve(node=HEAD, engine=SPEC, asked=ASKED, stamp=STAMP):
    return render_serve(engine, "sparks", node, NODES, settings=asked, stamp=stamp)


def test_head_over_ray():
    assert serve(asked=EVERYTHING).argv == (
        "vllm",
        "serve",
        "/srv/models/Qwen3",
        "--served-model-name=qwen",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=1",
        "--distributed-executor-backend=ray",
        "--host=0.0.0.0",
        "--port=8000",
        "-cc.cudagraph_mode=PIECEWISE",
        "--cudagraph-capture-sizes",
        "1",
        "2",
        "4",
        "8",
        "16",
        "--gpu-memory-utilization=0.9",
        "--kv-cache-memory-bytes=47244640256",
        "--max-num-batched-tokens=2048",
        "--max-num-seqs=16",
        "--max-model-len=8192",
        "--safetensors-load-strategy=lazy",
    )


def test_defaults_ask_for_nothing():
    assert serve().argv[9:] == ("--gpu-memory-utilization=0.9",)


def test_mp_on_every_node():
    head, worker = serve(HEAD, MP).argv, serve(WORKER, MP).argv
    gang = ("--nnodes=2", "--master-addr=192.168.200.12", "--master-port=29501")
    assert set(gang) < set(head)
    assert set(gang) < set(worker)
    assert "--node-rank=0" in head
    assert "--node-rank=1" in worker
    assert "--headless" in worker
    assert not [arg for arg in worker if arg.startswith(("--port", "--host"))]
    assert "--headless" not in head
    assert "--port=8000" in head


@pytest.mark.parametrize("engine", [SPEC, MP, spec(vllm_version="0.22.1"), spec(vllm_version="")])
@pytest.mark.parametrize("node", NODES)
def test_every_option_exists_in_vllm(engine, node):
    """Names recorded from the real `vllm serve` of 0.32; --headless is read before those are."""
    known = {name for option in json.loads(OPTIONS.read_text()) for name in option["names"]}
    known |= {"--headless", "-cc.cudagraph_mode"}
    for asked in (EVERYTHING, settings(cudagraph=CudaGraph.NONE)):
        argv = serve(node, engine, asked).argv
        options = {arg.partition("=")[0] for arg in argv[3:] if arg.startswith("-")}
        assert options <= known
        assert options - {"--compilation-config", "-cc.cudagraph_mode"} <= set(OWN_OPTIONS)


@pytest.mark.parametrize(
    ("asked", "version", "arguments"),
    [
        (CudaGraph.FULL, "0.32.0", ()),
        (CudaGraph.NONE, "0.32.0", ("--enforce-eager",)),
        (CudaGraph.PIECEWISE, "0.32.0", ("-cc.cudagraph_mode=PIECEWISE",)),
        (CudaGraph.PIECEWISE, "", ('--compilation-config={"cudagraph_mode":"PIECEWISE"}',)),
        (
            CudaGraph.REDUCED,
            "0.22.1",
            ('--compilation-config={"cudagraph_mode":"PIECEWISE","cudagraph_capture_sizes":[1,2,4,8,16]}',),
        ),
    ],
)
def test_cuda_graphs(asked, version, arguments):
    argv = serve(engine=spec(vllm_version=version), asked=settings(cudagraph=asked)).argv
    assert argv[9:-1] == arguments


def test_extra_arguments_are_last_and_swallow_nothing():
    """--cudagraph-capture-sizes takes every word up to the next option."""
    argv = serve(engine=spec(extra_args=("--trust-remote-code",)), asked=EVERYTHING).argv
    assert argv[-1] == "--trust-remote-code"
    assert argv[argv.index("16") + 1].startswith("--")


def test_driver_over_ray_knows_nothing_of_one_node():
    """What the driver has, vLLM copies to the workers of all nodes."""
    shared = (("NCCL_DEBUG", "INFO"),)
    values = env(serve(engine=spec(env=shared)))
    assert values["NCCL_DEBUG"] == "INFO"
    assert values["RAY_ADDRESS"] == "192.168.200.12:6379"
    assert values["RAY_AUTH_MODE"] == "disabled"
    assert values["VLLM_HOST_IP"] == "192.168.200.12"
    assert not {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"} & set(values)


def test_environment_of_each_node_without_ray():
    values = env(serve(WORKER, MP))
    assert values["VLLM_HOST_IP"] == "192.168.200.13"
    assert values["NCCL_SOCKET_IFNAME"] == "enP2p1s0f1np1"
    assert values["NCCL_IB_HCA"] == "roceP2p1s0f1"
    assert values["SPARKD_STAMP"] == "sparks/spark-b/14/serve"
    assert values["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "300"
    assert not [name for name in values if name in {"RAY_ADDRESS", "RAY_AUTH_MODE"}]


def test_kv_cache_of_cpu_builds():
    """0.32 takes bytes; VLLM_CPU_KVCACHE_SPACE takes whole GiB and would override them."""
    asked = settings(kv_cache_bytes=GIB + GIB // 2, cudagraph=CudaGraph.PIECEWISE)
    new = serve(engine=spec(device=Device.CPU), asked=asked)
    assert "--kv-cache-memory-bytes=1610612736" in new.argv
    assert "VLLM_CPU_KVCACHE_SPACE" not in env(new)
    assert not [arg for arg in new.argv if "cudagraph" in arg]
    assert "no CUDA graphs" in new.warnings[0]
    old = serve(engine=spec(device=Device.CPU, vllm_version="0.22.1"), asked=asked)
    assert env(old)["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert any("whole GiB" in warning for warning in old.warnings)
    assert "VLLM_CPU_KVCACHE_SPACE" not in env(serve(asked=asked))


def test_warnings():
    assert serve(asked=EVERYTHING).warnings == ()
    unknown = serve(engine=spec(vllm_version="0.40.0"), asked=EVERYTHING)
    assert "--safetensors-load-strategy=lazy" not in unknown.argv
    assert [warning.split(":")[0] for warning in unknown.warnings] == [
        "vLLM 0.40.0",
        "settings.load_format lazy",
    ]
    undone = serve(engine=spec(extra_args=("-O1",)), asked=EVERYTHING)
    assert "may undo" in undone.warnings[0]
