"""An exception in view, known to nobody, is evidence against every mere suggestion."""

from __future__ import annotations

import pytest

from sparkd.engines.lines import read_line
from sparkd.signals.assess import assess
from sparkd.signals.catalogue import Signature, packaged_catalogue
from sparkd.signals.judge import judge
from sparkd.signals.match import recognise
from sparkd.signals.model import Evidence, Proof, Record, Signal, UnitExit
from sparkd.signals.precedence import BURST, UNKNOWN_EXCEPTION
from sparkd.words import Phase, UnitName

CATALOGUE = packaged_catalogue()
WEAK = [
    signature
    for signature in CATALOGUE.signatures
    if signature.proof is Proof.SUGGESTS
    and not signature.fatal
    and signature.cause not in {"none", "clean_shutdown"}
]
CONFIG = "Resolved architecture: Qwen3ForCausalLM"
FAILED = "EngineCore failed to start.\nTraceback (most recent call last):\nKeyError: 'layers.3.mlp'"
DRIVER = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from x"
)
EXIT = UnitExit("a", UnitName.SERVE, 1, 31.0, code=1)


def weak_signals(signature: Signature) -> list[Signal]:
    found = recognise(Record(_source(signature), "a", signature.examples[0]), CATALOGUE)
    return [signal for signal in found if signal.id == signature.id]


def _source(signature: Signature) -> str:
    return signature.sources[0] if signature.sources else "log"


@pytest.mark.parametrize("signature", WEAK, ids=lambda signature: signature.id)
def test_a_weak_line_does_not_beat_an_exception(signature: Signature) -> None:
    said = Record(_source(signature), "a", signature.examples[0], at_s=1.0)
    records = [Record("log", "a", CONFIG), said, Record("log", "a", FAILED, at_s=31.0)]
    assert assess(records, CATALOGUE, read_line=read_line).diagnosis.cause == "unknown"


@pytest.mark.parametrize("signature", WEAK, ids=lambda signature: signature.id)
def test_a_weak_line_does_not_beat_an_exception_of_a_live_engine(signature: Signature) -> None:
    raised = Signal(
        UNKNOWN_EXCEPTION, "unknown", Proof.CASCADE, "a", "log", "KeyError: 'a'", 30.0, fatal=True
    )
    evidence = Evidence((*weak_signals(signature), raised), (EXIT,), Phase.LOADING_WEIGHTS, ("a", "b"), "a")
    assert judge(evidence).cause == "unknown"


def test_a_lone_line_of_the_driver_is_no_cause_and_a_burst_is() -> None:
    line = recognise(Record("kernel", "a", DRIVER), CATALOGUE)
    one = judge(Evidence(line, (EXIT,), Phase.LOADING_WEIGHTS, ("a", "b"), "a"))
    assert (one.cause, one.candidates[:1]) == ("unknown", ("uma_host_exhaustion",))
    many = judge(Evidence(line * BURST, (EXIT,), Phase.LOADING_WEIGHTS, ("a", "b"), "a"))
    assert many.cause == "uma_host_exhaustion"
