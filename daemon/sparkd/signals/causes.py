"""The causes: what sparkd can name, whether an unchanged restart can help, and what only a person can do.

`transient` answers "can an unchanged restart help?" (None = not known). `permanent` answers "is there
nothing that any restart, with any settings, could change?": a person is needed at once. A memory cause is
neither: an unchanged restart fails again, a restart with other settings does not. docs/runbook.md says it
for people, and a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sparkd.signals.model import CauseInfo

UNKNOWN = "unknown"
NONE = "none"


def _transient(code: str, title: str, advice: str = "") -> CauseInfo:
    return CauseInfo(code=code, transient=True, permanent=False, title=title, advice=advice)


def _undecided(code: str, title: str, advice: str = "") -> CauseInfo:
    return CauseInfo(code=code, transient=None, permanent=False, title=title, advice=advice)


def _settings(code: str, title: str, advice: str = "") -> CauseInfo:
    return CauseInfo(code=code, transient=False, permanent=False, title=title, advice=advice)


def _permanent(code: str, title: str, advice: str) -> CauseInfo:
    return CauseInfo(code=code, transient=False, permanent=True, title=title, advice=advice)


_ALL = (
    # Memory.
    _settings("ray_oom_kill", "Ray's memory monitor killed a worker"),
    _undecided("kernel_oom", "the kernel's OOM killer killed a process"),
    _settings(
        "cgroup_oom",
        "the memory limit of the unit or container was reached",
        "Raise the memory limit of the unit or container.",
    ),
    _undecided("host_memory_pressure", "the node's memory was nearly exhausted"),
    _settings("uma_host_exhaustion", "the node's unified memory was exhausted"),
    _settings(
        "memory_guard_kill",
        "a memory guard (sparkd's own, systemd-oomd, earlyoom) killed a process of the engine",
    ),
    _settings("cuda_oom", "the device had no memory left to allocate"),
    _undecided("startup_free_memory_too_low", "less memory was free at the start than vLLM was told to use"),
    _settings("kv_cache_too_small", "the KV cache that fits is too small for one request of full length"),
    _transient("memory_profiling_error", "memory became free while vLLM was measuring it"),
    _settings(
        "shm_too_small",
        "the shared memory of the node or container is too small",
        "Enlarge /dev/shm (container: --ipc=host or --shm-size).",
    ),
    # The fabric and the rendezvous.
    _undecided(
        "nccl_init_failure",
        "NCCL could not be initialised, and does not say why",
        "Set NCCL_DEBUG=INFO in the engine's environment; its output names the reason.",
    ),
    _settings(
        "nccl_socket_connect",
        "NCCL could not connect to the other node",
        "Check NCCL_SOCKET_IFNAME, the route and the firewall between the nodes.",
    ),
    _transient("nccl_remote_error", "NCCL lost the other side", "Look at the other node's log."),
    _transient("nccl_timeout", "a collective operation did not finish in time"),
    _undecided(
        "ib_roce_error",
        "the RDMA device reported an error",
        "Check the link, its GID and MTU, and the memlock limit.",
    ),
    _undecided("c10d_connect_timeout", "not all ranks came to the rendezvous", "Find the missing rank."),
    _settings(
        "gloo_connect_failure",
        "gloo could not connect the ranks",
        "Check GLOO_SOCKET_IFNAME and /etc/hosts on every node.",
    ),
    _permanent(
        "wrong_interface",
        "an address or interface name does not fit this cluster",
        "Make address and interface of the node agree in the configuration.",
    ),
    # Ray.
    _transient("ray_node_died", "a node's Ray process died or was lost"),
    _transient("ray_gcs_unreachable", "Ray's control process on the head was unreachable"),
    _undecided(
        "ray_insufficient_resources",
        "Ray has fewer GPUs than the plan needs",
        "Check that every node has joined Ray with its GPU, and the parallel sizes.",
    ),
    _permanent(
        "ray_version_mismatch",
        "Ray or Python differ between the nodes",
        "Install the same Ray and Python on every node.",
    ),
    _permanent(
        "ray_auth_refused",
        "Ray refused the node's token",
        "Give every node the same Ray token, or none, and set RAY_AUTH_MODE on all alike.",
    ),
    # Processes.
    _undecided("worker_process_died", "a process of the engine ended without a Python error"),
    _undecided(
        "killed_unspecified",
        "a process was killed with SIGKILL, and nothing says by whom",
        "Look for an OOM kill in the kernel log of that time (journalctl -k), and for somebody who ended it.",
    ),
    _undecided(
        "engine_dead_unspecified",
        "the engine ended with an error, and its cause is not in view",
        "The log above the first traceback, and the other node's log, would decide.",
    ),
    _transient("engine_hang", "the engine made no progress"),
    _transient("peer_lost", "another node was lost"),
    # Device and driver.
    _transient("cuda_illegal_memory_access", "a kernel accessed memory that it may not"),
    _transient("device_side_assert", "a kernel's assertion failed", "Look for the request that triggers it."),
    _undecided(
        "host_overheated",
        "the node became too hot",
        "Look after the node's cooling: dust, fans, the air around it.",
    ),
    _undecided("gpu_xid", "the GPU driver reported a fault (Xid)", "Reset the GPU or reboot the node."),
    _permanent(
        "driver_library_mismatch", "the NVIDIA driver and its library differ in version", "Reboot the node."
    ),
    _permanent(
        "cuda_arch_unsupported",
        "the installed code has no kernels for this GPU",
        "Install a build for this GPU (GB10: CUDA 13).",
    ),
    # Installation and configuration.
    _permanent(
        "no_cuda_device",
        "the engine sees no GPU, or fewer than it was told to use",
        "Give the unit or container its GPU: driver, --gpus, CUDA_VISIBLE_DEVICES.",
    ),
    _permanent(
        "cuda_fork_reinit",
        "CUDA was used before the engine forked its workers",
        "Set VLLM_WORKER_MULTIPROC_METHOD=spawn, and do not touch CUDA before the engine starts.",
    ),
    _permanent(
        "compile_toolchain_missing",
        "a compiler or its headers are missing",
        "Install gcc, g++ and the Python headers (python3-dev).",
    ),
    _permanent(
        "model_unsupported",
        "this vLLM does not know the model's architecture",
        "Use a newer vLLM or another model.",
    ),
    _permanent(
        "broken_install",
        "the engine's environment is broken",
        "Rebuild the engine's environment; where a unit of sparkd is missing: sudo sparkctl install.",
    ),
    _permanent(
        "missing_python_dependency",
        "a program or a Python module is missing",
        "Install it on every node, in the environment that the engine is started from.",
    ),
    _permanent(
        "bad_cli_argument",
        "an option of the engine is refused",
        "Correct the option that the quoted line names.",
    ),
    _permanent(
        "weights_missing_or_corrupt",
        "files of the model are missing or damaged",
        "Check the path of the model; fetch its files again on this node, and compare their sizes.",
    ),
    _permanent(
        "hf_auth",
        "the model hub refused the token",
        "Accept the model's terms and give a token that may read it (HF_TOKEN), or keep the model local.",
    ),
    _transient(
        "hf_network", "the model hub was unreachable", "Keep the model local and set HF_HUB_OFFLINE=1."
    ),
    _permanent("disk_full", "a disk is full", "Free space on the disk: df -h names it."),
    _transient(
        "port_in_use", "a port is taken", "Find the process that listens on the port: ss -ltnp names it."
    ),
    _permanent(
        "tokenizer_or_template_error",
        "the tokenizer or chat template does not fit",
        "Pass a chat template (--chat-template), or fetch the tokenizer's files again.",
    ),
    _permanent(
        "permission_denied",
        "a permission is missing",
        "Correct the owner or group of what the quoted line names, or the container's privileges.",
    ),
    _permanent(
        "os_resource_limit",
        "a limit of threads or processes was reached",
        "Raise TasksMax= or LimitNOFILE= of the unit, or the container's limit of processes.",
    ),
    _undecided(
        "engine_internal_error",
        "an error in the engine's own code",
        "Report it to the engine's authors with its trace; the same request may bring it back.",
    ),
    # No failure, or no cause.
    _undecided("clean_shutdown", "somebody or something asked the engine to stop"),
    _undecided(UNKNOWN, "no evidence decides"),
    _undecided(NONE, "nothing is wrong"),
)

BY_TRACE = frozenset({"engine_internal_error"})
"""What no words name, only where a trace ends (`slips`); a slip without its trace has it as a candidate."""

CAUSES: Mapping[str, CauseInfo] = MappingProxyType({info.code: info for info in _ALL})


def cause_info(code: str) -> CauseInfo:
    """Return what is known of *code*; a code that is not known is treated as `unknown`."""
    return CAUSES.get(code, CAUSES[UNKNOWN])
