"""What the real vLLM allocates for the checkpoints of `checkpoints.py`. Run with the engine's own Python.

    ENV/bin/python tests/sizing/measured_by_vllm.py OUT.json [CASE:TP[:ep] …]

Each case is an engine of its own in a forked child (the slow imports happen once): the real loader reads
the sparse files, the real KV cache is made with a fixed size. Weights are counted before they are packed
for the CPU's kernels, which no GPU does, and again afterwards; a case whose kernels the CPU build lacks may
still have been loaded, and is then counted as far as that. qwen3-5 imports torchvision, which the lab's
environment leaves out: it was measured with a module of that name on PYTHONPATH that has only names.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
KV_BYTES = 64 << 20
MAX_MODEL_LEN = 2048
BLOCK_SIZE = 128  # what the CPU build takes by itself
ALL = [
    "llama-gqa:1", "llama-gqa:2", "llama-gqa:2:kv8", "llama-mha:2", "qwen2-tied:2", "qwen3:2",
    "llama-fp8:2", "llama-fp8-block:2", "llama-awq:2", "llama-gptq:2", "llama-int4:2", "llama-int8:2",
    "llama-nvfp4:2", "gemma3:1", "gemma3:2", "qwen3-moe:1", "qwen3-moe:2", "qwen3-moe:2:ep",
    "qwen3-moe-fp8-block:2", "qwen3-moe-nvfp4:2", "deepseek:1", "deepseek:2", "deepseek-fp8-block:2",
    "mixtral:2", "phi3:2", "minimax-m2:2", "qwen2-moe:2", "mistral:2", "gemma2:2", "glm4-moe:2",
    "qwen3-5:2", "qwen3-next:1", "qwen3-next:2", "nemotron-h:1", "nemotron-h:2", "nemotron-h-one-group:2",
]  # fmt: skip


def held(model) -> dict:
    """Bytes of parameters and of buffers, each storage once."""
    seen: set = set()
    counted = {"parameters": 0, "buffers": 0}
    for kind, tensors in (("parameters", model.parameters()), ("buffers", model.buffers())):
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen and storage.nbytes():
                seen.add(storage.data_ptr())
                counted[kind] += storage.nbytes()
    return counted


def patch(counts: Path) -> None:
    """Count before the packing; fork the workers, so that they need not import everything again."""
    from vllm.model_executor.model_loader import base_loader
    from vllm.v1.executor import multiproc_executor

    packed = base_loader.process_weights_after_loading

    def counted(model, *arguments, **options):
        (counts / f"loaded-{os.getpid()}").write_text(json.dumps(held(model)))
        return packed(model, *arguments, **options)

    base_loader.process_weights_after_loading = counted
    multiproc_executor.get_mp_context = lambda: multiprocessing.get_context("fork")


def of_worker(worker) -> dict:
    runner = worker.model_runner
    cache = runner.kv_cache_config
    groups = [
        {
            "kind": type(group.kv_cache_spec).__name__,
            "layers": len(group.layer_names),
            "block": group.kv_cache_spec.block_size,
            "page_bytes": group.kv_cache_spec.page_size_bytes,
            "request_bytes": group.kv_cache_spec.max_memory_usage_bytes(worker.vllm_config),
        }
        for group in cache.kv_cache_groups
    ]
    return {
        "packed": held(runner.model),
        "kv": {"blocks": cache.num_blocks, "groups": groups, "bytes": sum_of(cache)},
    }


def sum_of(cache) -> int:
    """Regions may alias: the pool is as large as its largest tensor, or their sum where each has its own."""
    sizes = {tensor.size for tensor in cache.kv_cache_tensors}
    return max(sizes)


def measure(case: str, folder: Path) -> dict:
    import checkpoints
    from vllm import LLM

    name, ranks, *more = case.split(":")
    config, tensors = checkpoints.CASES[name]()
    model = checkpoints.write(folder / "model", config, tensors)
    patch(folder)
    llm = LLM(
        model=str(model),
        skip_tokenizer_init=True,
        tensor_parallel_size=int(ranks),
        distributed_executor_backend="mp" if int(ranks) > 1 else None,
        enable_expert_parallel="ep" in more,
        kv_cache_dtype="fp8" if "kv8" in more else "auto",
        kv_cache_memory_bytes=KV_BYTES,
        gpu_memory_utilization=0.3,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=MAX_MODEL_LEN,
        max_num_seqs=4,
        enforce_eager=True,
        enable_prefix_caching=False,
    )
    return {"ranks": llm.collective_rpc(of_worker)}


def in_child(case: str, folder: Path) -> dict:
    """A crash of one case is its own."""
    folder.mkdir()
    answer = folder / "answer"
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            answer.write_text(json.dumps(measure(case, folder)))
        except BaseException as error:  # noqa: BLE001 - a refusal is a result
            traceback.print_exc()
            answer.write_text(json.dumps({"refused": f"{type(error).__name__}: {error}"[:120]}))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
    found = json.loads(answer.read_text()) if answer.exists() else {"refused": "the process died"}
    return found | {"loaded": [json.loads(path.read_text()) for path in sorted(folder.glob("loaded-*"))]}


def text_of(results: dict) -> str:
    """JSON with a line for each case."""
    head = json.dumps({key: value for key, value in results.items() if key != "cases"})
    lines = ",\n".join(f"{json.dumps(case)}: {json.dumps(seen)}" for case, seen in results["cases"].items())
    return f'{head[:-1]}, "cases": {{\n{lines}\n}}}}\n'


def main() -> int:
    import vllm
    import vllm.v1.worker.cpu_worker  # so that it is imported once

    out, cases = Path(sys.argv[1]), sys.argv[2:] or ALL
    results = {
        "vllm": vllm.__version__,
        "max_model_len": MAX_MODEL_LEN,
        "kv_bytes": KV_BYTES,
        "block_size": BLOCK_SIZE,
        "cases": {},
    }
    with tempfile.TemporaryDirectory(prefix="sparkd-sizes-") as folder:
        for case in cases:
            results["cases"][case] = in_child(case, Path(folder) / case)
            print(case, json.dumps(results["cases"][case])[:160], file=sys.stderr, flush=True)
            out.write_text(text_of(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
