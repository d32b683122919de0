import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.intake.records import IDLE_S, REPORT_CHARS_MAX, REPORT_LINES_MAX, STREAMS_MAX, Reader
from sparkd.signals.model import Record
from sparkd.signals.prefix import split


def read(*lines: str) -> list[Record]:
    reader = Reader("serve log", "a", 3)
    return reader.feed(list(lines), 1.0) + reader.flush()


def texts(*lines: str) -> list[str]:
    return [record.text for record in read(*lines)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("(APIServer pid=7) INFO 11-30 01:58:34 [a.py:1] hello", ("APIServer", None, None, "INFO", "hello")),
        ("(Worker_TP1 pid=7) ERROR 11-30 01:58:34 [v1/a.py:1] x", ("Worker_TP1", 1, None, "ERROR", "x")),
        ("(VllmWorker-0 pid=7) ERROR 11-30 01:58:34 [a.py:1] x", ("VllmWorker-0", 0, None, "ERROR", "x")),
        (
            "(RayWorkerProc pid=7, ip=10.77.0.2) (Worker_TP1 pid=7) hi",
            ("Worker_TP1", 1, "10.77.0.2", "", "hi"),
        ),
        (
            "(EngineCore pid=3) (raylet) Raylet is terminated.",
            ("raylet", None, None, "", "Raylet is terminated."),
        ),
        ("(pid=11953, ip=10.77.0.2) Triton", ("", None, "10.77.0.2", "", "Triton")),
        (
            "[2026-11-30 01:58:34,821 W 8868 8891] (raylet) store.cc:366: gone",
            ("raylet", None, None, "W", "gone"),
        ),
        ("[2026-11-30 02:01:00,180 E 11770 11906] rpc_client.h:204: Failed", ("", None, None, "E", "Failed")),
        ("2026-11-30 01:47:20,103\tINFO worker.py:1691 -- Using", ("", None, None, "INFO", "Using")),
        ("[W1130 01:43:40.244165208 utils.cpp:68] Warning", ("", None, None, "W", "Warning")),
        ("INFO:     Shutting down", ("", None, None, "INFO", "INFO:     Shutting down")),
        ("[state-dump] x", ("", None, None, "INFO", "[state-dump] x")),
        ("(RayWorkerProc) not a prefix", ("", None, None, "", "(RayWorkerProc) not a prefix")),
        ("(1) raylet crashes", ("", None, None, "", "(1) raylet crashes")),
        ("plain", ("", None, None, "", "plain")),
    ],
)
def test_prefixes(line: str, wanted: tuple[object, ...]) -> None:
    parts = split(line)
    assert (parts.process, parts.rank, parts.address, parts.level, parts.body) == wanted


def test_a_record_knows_who_and_when() -> None:
    (record,) = read(
        "(RayWorkerProc pid=7, ip=10.0.0.2) (Worker_TP1 pid=7) INFO 11-30 01:58:34 [a.py:1] hello"
    )
    assert record == Record(
        "serve log", "a", "hello", 1.0, 3, "11-30 01:58:34", "Worker_TP1", "INFO", "10.0.0.2", 1
    )


def test_one_call_of_vllms_logger_is_one_record() -> None:
    head = "(EngineCore pid=1) ERROR 11-30 01:58:34 [core.py:1512] "
    other = "(EngineCore pid=1) ERROR 11-30 01:58:34 [dump_input.py:72] dump"
    found = texts(other, head + "fatal", head + "Traceback", head + "  File", head + "RuntimeError: x", other)
    assert found == ["dump", "fatal\nTraceback\n  File\nRuntimeError: x", "dump"]


def test_a_traceback_is_one_record_though_others_write_between_its_lines() -> None:
    found = texts(
        "Process EngineCore:",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in run',
        "(EngineCore pid=1) INFO 11-30 01:58:34 [a.py:1] [shutdown] Executor: waiting",
        "    raise ValueError",
        "ValueError: a",
        "During handling of the above exception, another exception occurred:",
        "Traceback (most recent call last):",
        "  File",
        "pydantic.ValidationError: 1 validation error for ModelConfig",
        "  Value error, bad",
        "INFO:     Shutting down",
    )
    assert found[0] == "Process EngineCore:"
    assert found[1] == "[shutdown] Executor: waiting"
    assert found[2].startswith("Traceback")
    assert found[2].endswith("ModelConfig\n  Value error, bad")
    assert found[3:] == ["INFO:     Shutting down"]


def test_rays_kill_report_is_one_record() -> None:
    stamp = "[2026-11-30 01:58:34,821 I 1 1] (raylet) node_manager.cc:3199: "
    found = texts(
        stamp + "Killing 1 worker(s), kill details: Memory on the node",
        "OOM kill reason: Memory usage",
        "Selected to kill: (Actor(1))",
        "]",
        " suggestions: Refer to",
        stamp + "Disconnecting worker",
        "[state-dump] x",
    )
    assert [text.count("\n") for text in found] == [4, 0, 0]


def test_what_is_one_line_is_given_at_once_and_a_report_after_silence() -> None:
    reader = Reader("serve log", "a", 1)
    assert len(reader.feed(["INFO:     hello"], 1.0)) == 1
    assert reader.feed(["(W pid=1) ERROR 11-30 01:58:34 [a.py:1] died"], 1.0) == []
    assert reader.waiting
    assert reader.tick(1.0 + IDLE_S / 2) == []
    assert [record.text for record in reader.tick(1.1 + IDLE_S)] == ["died"]
    assert not reader.waiting


def test_a_report_has_the_time_of_its_first_line() -> None:
    reader = Reader("serve log", "a", 1)
    head = "(W pid=1) ERROR 11-30 01:58:34 [a.py:1] "
    reader.feed([head + "a"], 1.0)
    reader.feed([head + "b"], 1.1)
    assert [record.at_s for record in reader.flush()] == [1.0]


def test_reports_are_bounded_in_lines_characters_and_number() -> None:
    head = "(W pid=1) ERROR 11-30 01:58:34 [a.py:1] "
    found = read(*[head + "x"] * (3 * REPORT_LINES_MAX))
    assert [record.text.count("\n") + 1 for record in found] == [REPORT_LINES_MAX] * 3
    found = read(*[head + "y" * 16000] * 20)
    assert max(len(record.text) for record in found) <= REPORT_CHARS_MAX + 16001
    reader = Reader("serve log", "a", 1)
    for number in range(3 * STREAMS_MAX):
        reader.feed([f"(W{number} pid=1) Traceback (most recent call last):"], 1.0)
    assert len(reader._open) == STREAMS_MAX


@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [
                    "Traceback (most recent call last):",
                    "  File",
                    "ValueError: x",
                    "(W pid=1) ERROR 11-30 01:58:34 [a.py:1] y",
                    "kill details: z",
                    "[state-dump]",
                    " suggestions: s",
                ]
            ),
        ),
        max_size=30,
    )
)
def test_no_line_is_lost_and_none_raises(lines: list[str]) -> None:
    found = texts(*lines)
    assert sorted("\n".join(found).split("\n")) == sorted("\n".join(split(x).body for x in lines).split("\n"))
