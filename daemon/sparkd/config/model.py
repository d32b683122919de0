"""The file's sections and keys. Every default points to the dataclass that has it; bounds stand here.

TOML has no None: a key that is absent is unset, and Ray's monitor is turned off by the word "off".
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, create_model, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from sparkd.config import types as t
from sparkd.config.served import PREFIX
from sparkd.config.values import Api, Broker, Paths, UnitBackend
from sparkd.core.need import RAISED_THRESHOLD
from sparkd.core.policy import PHASE_BUDGETS, Policy, UnfitPlan
from sparkd.engines.model import Device, EngineSpec
from sparkd.words import Backend, CudaGraph, Floors, LoadFormat, Role, Settings

ENGINE = EngineSpec(model="", served_name="")
POLICY = Policy(node="", head="", nodes=())
ASKED = Settings()
FLOORS = Floors()
BROKER = Broker()
API = Api()
PATHS = Paths()

DELIMITER = "__"
OFF: Literal["off"] = "off"
SpeltOff = Literal["off"]


class Section(BaseModel):
    """A table of the file: nothing unknown, nothing infinite, frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_boolean_as_number(cls, value: object, info: ValidationInfo) -> object:
        """For pydantic true is 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation is not bool:
            raise ValueError("must not be true or false")
        return value


class ClusterSection(Section):
    """[cluster]."""

    name: t.Name
    key: SecretStr | None = None


class NodeSection(Section):
    """[[node]], once for each."""

    name: t.Name
    role: Role
    address: t.Address
    interface: t.Interface
    management_address: t.Address | None = None
    env: t.Environment = {}


class RaySection(Section):
    """[engine.ray]."""

    program: t.Program = ENGINE.ray_program
    version: str = ENGINE.ray_version
    port: t.Port = ENGINE.ray_port
    temp_dir: t.AbsolutePath = ENGINE.ray_temp_dir
    # Ray refuses an object store below 75 MiB (ray_constants.py, OBJECT_STORE_MINIMUM_MEMORY_BYTES).
    object_store_bytes: Annotated[t.Bytes, Field(ge=75 << 20)] = ENGINE.ray_object_store_bytes
    num_gpus: Annotated[int, Field(ge=1, le=64)] | None = ENGINE.ray_num_gpus
    auth_token_path: t.AbsolutePath | None = ENGINE.ray_auth_token_path
    health_period_ms: t.Milliseconds = ENGINE.health_period_ms
    health_timeout_ms: t.Milliseconds = ENGINE.health_timeout_ms
    health_failures: Annotated[int, Field(ge=1, le=100)] = ENGINE.health_failures
    extra_args: t.Arguments = list(ENGINE.ray_extra_args)


class VllmSection(Section):
    """[engine.vllm]."""

    program: t.Program = ENGINE.vllm_program
    version: str = ENGINE.vllm_version
    api_host: t.Listen = ENGINE.api_host
    api_port: t.Port = ENGINE.api_port
    master_port: t.Port = ENGINE.master_port
    execute_timeout_s: Annotated[int, Field(ge=10, le=86400)] = ENGINE.execute_timeout_s
    extra_args: t.Arguments = list(ENGINE.extra_args)


class EngineSection(Section):
    """[engine]."""

    model: t.AbsolutePath
    served_name: t.Text | None = None
    backend: Backend = ENGINE.backend
    device: Device = ENGINE.device
    tensor_parallel: Annotated[int, Field(ge=1, le=512)] = ENGINE.tensor_parallel
    pipeline_parallel: Annotated[int, Field(ge=1, le=512)] = ENGINE.pipeline_parallel
    gpus_per_node: Annotated[int, Field(ge=1, le=64)] = ENGINE.gpus_per_node
    path: t.Text = ENGINE.path
    home: t.AbsolutePath = ENGINE.home
    autostart: bool = POLICY.autostart
    env: t.Environment = dict(ENGINE.env)
    ray: RaySection = RaySection()
    vllm: VllmSection = VllmSection()


class SettingsSection(Section):
    """[settings]: what the operator asks for."""

    ray_memory_threshold: Annotated[float, Field(ge=0.1, le=RAISED_THRESHOLD)] | SpeltOff | None = None
    gpu_memory_utilization: t.Share = ASKED.gpu_memory_utilization
    kv_cache_bytes: Annotated[t.Bytes, Field(ge=1 << 20)] | None = ASKED.kv_cache_bytes
    max_num_batched_tokens: t.Count | None = ASKED.max_num_batched_tokens
    max_num_seqs: t.Count | None = ASKED.max_num_seqs
    cudagraph: CudaGraph = ASKED.cudagraph
    max_model_len: t.Count | None = ASKED.max_model_len
    load_format: LoadFormat = ASKED.load_format


class FloorsSection(Section):
    """[floors]: how far the ladder may go down."""

    gpu_memory_utilization: t.Share = FLOORS.gpu_memory_utilization
    kv_cache_bytes: Annotated[t.Bytes, Field(ge=1 << 20)] = FLOORS.kv_cache_bytes
    max_num_seqs: t.Count = FLOORS.max_num_seqs
    max_num_batched_tokens: t.Count = FLOORS.max_num_batched_tokens
    max_model_len: t.Count = FLOORS.max_model_len
    eager_allowed: bool = FLOORS.eager_allowed


_BUDGETS: dict[str, Any] = {phase.value: (t.Seconds, limit) for phase, limit in PHASE_BUDGETS}
PhaseBudgetSection = create_model("PhaseBudgetSection", __base__=Section, **_BUDGETS)


class TimeoutsSection(Section):
    """[timeouts]."""

    stall_s: t.Seconds = POLICY.stall_s
    membership_every_s: t.Seconds = POLICY.membership_every_s
    membership_silence_s: t.Seconds = POLICY.membership_silence_s
    engine_every_s: t.Seconds = POLICY.engine_every_s
    canary_idle_s: t.Seconds = POLICY.canary_idle_s
    no_progress_s: t.Seconds = POLICY.no_progress_s
    verify_deadline_s: t.Seconds = POLICY.verify_deadline_s
    drain_deadline_s: t.Seconds = POLICY.drain_deadline_s
    stop_grace_s: t.Seconds = POLICY.stop_grace_s
    fail_grace_s: t.Seconds = POLICY.fail_grace_s
    memory_release_s: t.Seconds = POLICY.memory_release_s
    peer_silence_s: t.Seconds = POLICY.peer_silence_s
    status_every_s: t.Seconds = POLICY.status_every_s
    telemetry_every_s: t.Seconds = POLICY.telemetry_every_s
    resend_s: t.Seconds = POLICY.resend_s
    model_check_s: t.Seconds = POLICY.model_check_s
    phase_budget_s: PhaseBudgetSection = PhaseBudgetSection()  # type: ignore[valid-type]


class RecoverySection(Section):
    """[recovery]."""

    backoff_base_s: t.SecondsOrNone = POLICY.backoff_base_s
    backoff_max_s: t.Seconds = POLICY.backoff_max_s
    jitter_share: Annotated[float, Field(ge=0, le=1)] = POLICY.jitter_share
    cooldown_s: t.Seconds = POLICY.cooldown_s
    escalated_retry_s: t.SecondsOrNone = POLICY.escalated_retry_s
    observe_only: bool = POLICY.observe_only
    climb_after_s: t.SecondsOrNone = POLICY.climb_after_s
    climb_idle_s: t.Seconds = POLICY.climb_idle_s
    unclean_boots_max: Annotated[int, Field(ge=1, le=100)] = POLICY.unclean_boots_max
    leak_cycles: Annotated[int, Field(ge=2, le=100)] = POLICY.leak_cycles
    transient_budget: Annotated[int, Field(ge=0, le=100)] = POLICY.transient_budget
    budget_window_s: t.Seconds = POLICY.budget_window_s
    unknown_unchanged: Annotated[int, Field(ge=0, le=100)] = POLICY.unknown_unchanged
    unfit_plan: UnfitPlan = POLICY.unfit_plan
    margin_share: Annotated[float, Field(ge=0, lt=0.5)] = POLICY.margin_share
    unified_memory: bool = POLICY.unified_memory
    guard_floor_bytes: t.Bytes = POLICY.guard_floor_bytes
    memory_tolerance_bytes: t.Bytes = POLICY.memory_tolerance_bytes


class BrokerSection(Section):
    """[broker]."""

    host: Annotated[str, Field(max_length=253)] = BROKER.host
    port: t.Port = BROKER.port
    username: t.Text | None = BROKER.username
    password: SecretStr | None = None
    tls: bool = BROKER.tls
    ca_file: t.AbsolutePath | None = BROKER.ca_file
    cert_file: t.AbsolutePath | None = BROKER.cert_file
    key_file: t.AbsolutePath | None = BROKER.key_file


class ApiSection(Section):
    """[api]."""

    address: t.Listen = API.address
    port: t.Port = API.port
    peer_port: t.Port = API.peer_port
    token: SecretStr | None = None
    socket: t.AbsolutePath | None = None


class UnitsSection(Section):
    """[units]."""

    backend: UnitBackend = UnitBackend.AUTO


class PathsSection(Section):
    """[paths]."""

    state_dir: t.AbsolutePath = PATHS.state_dir
    log_dir: t.AbsolutePath = PATHS.log_dir
    run_dir: t.AbsolutePath = PATHS.run_dir
    kernel_log: t.AbsolutePath | Literal["", "auto", "journal"] = PATHS.kernel_log
    signatures_dir: t.AbsolutePath = PATHS.signatures_dir
    guard_status: t.AbsolutePath = PATHS.guard_status
    guard_dir: t.AbsolutePath = PATHS.guard_dir


class File(BaseSettings):
    """The whole file. Its sources are merged by `sources`, so only what it is given counts here."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        env_prefix=PREFIX,
        env_nested_delimiter=DELIMITER,
        hide_input_in_errors=True,
    )

    cluster: ClusterSection
    node: list[NodeSection]
    engine: EngineSection
    settings: SettingsSection = SettingsSection()
    floors: FloorsSection = FloorsSection()
    timeouts: TimeoutsSection = TimeoutsSection()
    recovery: RecoverySection = RecoverySection()
    broker: BrokerSection = BrokerSection()
    api: ApiSection = ApiSection()
    units: UnitsSection = UnitsSection()
    paths: PathsSection = PathsSection()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `sources` merged: the process's own environment is not read behind its back."""
        return (init_settings,)
