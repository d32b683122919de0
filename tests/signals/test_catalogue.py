"""Every signature renders: its examples are recognised as itself, with their quantities."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.signals import catalogue
from sparkd.signals.catalogue import CatalogueError, Signature, compile_catalogue, packaged_texts
from sparkd.signals.causes import CAUSES
from sparkd.signals.match import Places, recognise
from sparkd.signals.model import Proof, Record
from sparkd.signals.precedence import ORDER
from sparkd.words import GIB, Phase

CATALOGUE = compile_catalogue(packaged_texts())
EXAMPLES = [(signature, text) for signature in CATALOGUE.signatures for text in signature.examples]
INFO = "(APIServer pid=1) INFO 11-30 01:58:34 [x.py:1] "
PLACES = Places(addresses={"10.77.0.1": "a", "10.77.0.2": "b"}, ranks={0: "a", 1: "b"}, head="a")


@pytest.mark.parametrize(("signature", "text"), EXAMPLES, ids=[signature.id for signature, _ in EXAMPLES])
def test_an_example_is_recognised_as_its_signature(signature: Signature, text: str) -> None:
    signals = {s.id: s for s in recognise(Record("log", "a", text), CATALOGUE, PLACES)}
    assert signature.id in signals
    found = signals[signature.id]
    assert (found.cause, found.proof, found.fatal) == (signature.cause, signature.proof, signature.fatal)
    assert found.quote
    assert any(literal in text for literal in signature.literals)


@pytest.mark.parametrize(("signature", "text"), EXAMPLES, ids=[signature.id for signature, _ in EXAMPLES])
def test_an_example_renders_every_quantity_in_some_form(signature: Signature, text: str) -> None:
    """A group that no example fills is a group that nobody has seen working."""
    filled = {
        name
        for example in signature.examples
        for match in [signature.pattern.search(example)]
        if match
        for name, value in match.groupdict().items()
        if value is not None
    }
    stems = {re.sub(r"_(gib|mib|kib|bytes)$", "", name) for name in filled}
    assert {re.sub(r"_(gib|mib|kib|bytes)$", "", name) for name in signature.pattern.groupindex} <= stems


def one(text: str, **fields: object) -> dict[str, float]:
    record = Record("log", "a", text, **fields)  # type: ignore[arg-type]
    (signal,) = [s for s in recognise(record, CATALOGUE, PLACES) if s.proof is Proof.PROVES]
    return {q.name: q.value for q in signal.quantities}


def test_rays_gb_are_gib() -> None:
    example = next(s for s in CATALOGUE.signatures if s.id == "ray_kill_details").examples[0]
    numbers = one(example)
    assert numbers["used_bytes"] == pytest.approx(113.78 * GIB)
    assert numbers["total_bytes"] == 128526897447
    assert numbers["threshold_bytes"] == 122102402580
    assert numbers["used_share"] == pytest.approx(0.9505, abs=1e-3)


def test_the_kv_cache_estimate_is_a_quantity() -> None:
    example = next(s for s in CATALOGUE.signatures if s.id == "kv_cache_below_one_request").examples[0]
    numbers = one(example)
    assert (numbers["needed_bytes"], numbers["available_bytes"]) == (12 * GIB, 4.5 * GIB)
    assert numbers["estimated_tokens"] == 49152


@pytest.mark.parametrize(
    ("frame", "phase"),
    [
        ("capture_model", Phase.CAPTURING_GRAPHS),
        ("profile_run", Phase.PROFILING),
        ("initialize_kv_cache_tensors", Phase.ALLOCATING_KV_CACHE),
        ("load_model", Phase.LOADING_WEIGHTS),
        ("execute_model", Phase.SERVING),
    ],
)
def test_an_allocation_failure_names_its_phase(frame: str, phase: Phase) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "/x.py", line 1, in {frame}\n    y()\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB."
    )
    (signal,) = recognise(Record("log", "a", text), CATALOGUE)
    assert signal.phase is phase
    assert signal.quantity("requested_bytes") == 512 << 20


def test_the_node_is_the_one_in_the_text_or_none() -> None:
    died = Record("serve log", "a", "RayWorkerProc rank=[1] died unexpectedly, shutting down executor.")
    assert [s.node for s in recognise(died, CATALOGUE, PLACES)] == ["b"]
    assert [s.node for s in recognise(died, CATALOGUE)] == [""]
    lost = Record("serve log", "a", "(raylet) Raylet is terminated. Termination is unexpected.")
    assert [s.node for s in recognise(lost, CATALOGUE, PLACES)] == [""]
    text = "(RayWorkerProc pid=7, ip=10.77.0.2) (Worker_TP1 pid=7) ERROR 11-30 01:58:34 [m.py:1] "
    text += "CUDA error: out of memory"
    (signal,) = recognise(Record("serve log", "a", text), CATALOGUE, PLACES)
    assert (signal.node, signal.rank, signal.printed) == ("b", 1, "11-30 01:58:34")


@pytest.mark.parametrize(
    "text",
    [
        "0 Workers (tasks / actors) killed due to memory pressure (OOM), 1 Workers crashed due to other",
        INFO + "Received request 1: prompt: 'CUDA out of memory. Tried to allocate 2 GiB.'",
        INFO + "Received request 1: prompt: '[shutdown] API server: shutdown triggered'",
        INFO + "an answer that says SafetensorError: no",
        "Python patch version mismatch: The cluster was started with:",
        "This might cause deadlock in distributed execution",
        'INFO:     10.77.0.1:42744 - "GET /health HTTP/1.1" 200 OK',
    ],
)
def test_what_says_nothing(text: str) -> None:
    assert [s.id for s in recognise(Record("log", "a", text), CATALOGUE) if s.proof is not Proof.NOISE] == []


@given(
    st.text(max_size=300), st.sampled_from([literal for s in CATALOGUE.signatures for literal in s.literals])
)
def test_no_text_raises(text: str, literal: str) -> None:
    for record in (text, literal + text, text + literal, f"(Worker_TP{text} pid=1) {literal}"):
        recognise(Record("log", "a", record), CATALOGUE, PLACES)


def test_every_cause_has_its_place_and_its_words() -> None:
    ordered = {cause for group in ORDER for cause in group}
    assert {s.cause for s in CATALOGUE.signatures} - {"none"} <= ordered
    assert ordered <= set(CAUSES)
    assert all(info.advice for info in CAUSES.values() if info.permanent)


RUNBOOK = (Path(__file__).parents[2] / "docs" / "runbook.md").read_text(encoding="utf-8")
ENTRIES = {entry.split("`", 1)[0]: entry for entry in re.split(r"^## `", RUNBOOK, flags=re.MULTILINE)[1:]}


def test_the_runbook_has_an_entry_for_each_cause() -> None:
    assert list(ENTRIES) == [cause for group in ORDER for cause in group] + ["none"]
    assert set(ENTRIES) == set(CAUSES)


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_an_entry_of_the_runbook_says_what_the_code_does(cause: str) -> None:
    entry, info = ENTRIES[cause], CAUSES[cause]
    helps = "person" if info.permanent else {True: "yes", False: "no", None: "unknown"}[info.transient]
    assert f"{info.title[0].upper()}{info.title[1:]}. A restart helps: *{helps}*." in entry
    parts = re.findall(r"^- \*\*(.+?)\.\*\* \S.+$", entry, flags=re.MULTILINE)
    assert parts == ["What it means", "What sparkd does", "What you do"]
    told = entry.partition("- Signatures: ")[2]
    assert re.findall(r"`(\w+)`", told) == [s.id for s in CATALOGUE.signatures if s.cause == cause]


def test_the_runbooks_example_of_a_signature_works() -> None:
    (example,) = re.findall(r"^```toml\n(.+?)^```$", RUNBOOK, flags=re.MULTILINE | re.DOTALL)
    (mine,) = [s for s in compile_catalogue([example]).signatures if s.id == "my_card_too_hot"]
    (found,) = recognise(Record("log", "a", mine.examples[0]), compile_catalogue([example]))
    assert found.quantity("reached_number") == 105


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('cause = "no_such"', "cause 'no_such' is not known"),
        ('proof = "maybe"', "maybe"),
        ('pattern = "("', "unterminated"),
        ('pattern = "(?P<size>x)"', "group size: its name must end with one of"),
        ('place = "moon"', "place 'moon'"),
        ('colour = "red"', "unknown keys colour"),
        ("literals = []", "literals: at least one text"),
    ],
)
def test_a_catalogue_that_cannot_be_used_says_why(change: str, said: str) -> None:
    entry = {
        "id": 'id = "mine"',
        "cause": 'cause = "disk_full"',
        "proof": 'proof = "proves"',
        "literals": 'literals = ["x"]',
        "pattern": 'pattern = "x"',
        "examples": 'examples = ["x"]',
    }
    entry[change.split(" ", maxsplit=1)[0]] = change
    with pytest.raises(CatalogueError, match=re.escape(said)) as caught:
        compile_catalogue(["[[signature]]\n" + "\n".join(entry.values())])
    assert str(caught.value).startswith("mine: ")


def test_a_later_text_replaces_a_signature() -> None:
    mine = '[[signature]]\nid = "disk_full"\ncause = "disk_full"\nproof = "noise"\n'
    mine += 'literals = ["x"]\npattern = "x"\nexamples = ["x"]'
    merged = compile_catalogue([*packaged_texts(), mine])
    assert [s.proof for s in merged.signatures if s.id == "disk_full"] == [Proof.NOISE]


def test_every_file_of_the_catalogue_is_read_and_the_surface_last() -> None:
    folder = Path(catalogue.__file__).parent / "catalogue"
    assert sorted(catalogue.PACKAGED) == sorted(path.stem for path in folder.glob("*.toml"))
    assert catalogue.PACKAGED[-1] == "surface"
