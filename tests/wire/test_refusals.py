"""Every kind of drop has its reason, and nothing but what it says is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.core.messages import Echo, MemberStatus
from sparkd.wire.codec import Decoder, Encoder, Sealed
from sparkd.wire.envelope import DEPTH_MAX, SIZE_MAX
from sparkd.wire.refusal import Refusal, WireError
from sparkd.wire.topics import Kind
from wire import samples
from wire.samples import (
    CLUSTER,
    HEAD,
    INSTANCE,
    INTENT,
    KEY,
    NOW,
    REPORT,
    STATUS,
    TELEMETRY,
    WORKER,
    decoder,
    encoder_of,
    forged,
)

TOPIC = f"sparkd/{CLUSTER}/node/{WORKER}/status"
SEALED = encoder_of(STATUS).encode(STATUS, NOW)
CONTENT = json.loads(SEALED.payload.split(b"\n", 1)[1])


def refused(topic: str, payload: bytes, listener: Decoder | None = None) -> WireError:
    """Return how *payload* on *topic* is refused."""
    with pytest.raises(WireError) as caught:
        (listener or decoder()).decode(topic, payload, NOW)
    return caught.value


def altered(change: Callable[[dict[str, Any]], object], sealed: Sealed = SEALED) -> bytes:
    """Return the message of *sealed* with *change* done to its content, signed rightly."""
    content = json.loads(sealed.payload.split(b"\n", 1)[1])
    change(content)
    return forged(sealed.topic, json.dumps(content).encode())


def body(**parts: Any) -> bytes:
    """Return the status with *parts* of its body replaced."""
    return altered(lambda content: content["body"].update(parts))


def test_what_is_altered_is_right_when_nothing_is() -> None:
    """The helper of this file makes messages that are accepted."""
    assert decoder().decode(TOPIC, altered(lambda _: None), NOW).message == STATUS


@pytest.mark.parametrize("position", [9, 40, 74, 80, -1])
def test_an_altered_byte_is_refused(position: int) -> None:
    """Any altered byte of MAC or content fails."""
    frame = bytearray(SEALED.payload)
    frame[position] ^= 1

    assert refused(TOPIC, bytes(frame)).reason in (Refusal.BAD_MAC, Refusal.NOT_SIGNED)


def test_another_key_is_refused() -> None:
    """Only who has the cluster key can say anything; the refusal names nobody, for nothing is proved."""
    sealed = encoder_of(STATUS, key=b"another cluster key of 32 bytes.").encode(STATUS, NOW)

    error = refused(sealed.topic, sealed.payload)

    assert (error.reason, error.sender) == (Refusal.BAD_MAC, "")


def test_a_moved_message_is_refused() -> None:
    """A right message on another topic of the same kind is none."""
    assert Refusal.BAD_MAC is refused(f"sparkd/{CLUSTER}/node/{HEAD}/status", SEALED.payload).reason
    assert Refusal.BAD_MAC is refused(f"sparkd/{CLUSTER}/intent", SEALED.payload).reason


def test_replays_are_refused() -> None:
    """What was heard is not heard again, nor anything older of the same instance and kind."""
    encoder, listener = encoder_of(STATUS), decoder()
    first, second = encoder.encode(STATUS, NOW), encoder.encode(STATUS, NOW)
    listener.decode(second.topic, second.payload, NOW)

    for sealed in (second, first):
        error = refused(sealed.topic, sealed.payload, listener)
        assert (error.reason, error.sender) == (Refusal.REPLAY, WORKER)


def test_a_new_instance_starts_anew() -> None:
    """The numbers are those of an instance: a restarted daemon is heard at once."""
    listener = decoder()
    for instance in ("one", "two"):
        sealed = Encoder(KEY, CLUSTER, WORKER, instance).encode(replace(STATUS, instance=instance), NOW)
        assert instance == listener.decode(sealed.topic, sealed.payload, NOW).instance


def test_a_refused_message_does_not_count_as_heard() -> None:
    """A message with a wrong body does not make the right one with its number a replay."""
    listener = decoder()
    assert Refusal.WRONG_TYPE is refused(TOPIC, body(swept=3), listener).reason

    assert listener.decode(TOPIC, SEALED.payload, NOW).message == STATUS


def test_the_memory_of_instances_is_bounded() -> None:
    """However many instances a node has had, a bounded number is remembered."""
    listener = decoder()
    for number in range(300):
        sealed = Encoder(KEY, CLUSTER, WORKER, f"i{number}").encode(STATUS, NOW)
        listener.decode(sealed.topic, sealed.payload, NOW)

    assert len(listener._last) == 128


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("sparkd/other/node/spark-2/status", Refusal.UNKNOWN_TOPIC),
        ("sparkd/lab/node/spark-2/orders", Refusal.UNKNOWN_TOPIC),
        ("sparkd/lab/node/../status", Refusal.UNKNOWN_TOPIC),
        ("sparkd/lab/node//status", Refusal.UNKNOWN_TOPIC),
        ("sparkd/lab/incident", Refusal.UNKNOWN_TOPIC),
        ("", Refusal.UNKNOWN_TOPIC),
    ],
)
def test_other_topics_are_refused(topic: str, reason: Refusal) -> None:
    """Only the topics that daemons read are read."""
    assert reason is refused(topic, SEALED.payload).reason


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", Refusal.NOT_SIGNED),
        (b"hello", Refusal.NOT_SIGNED),
        (b"{}", Refusal.NOT_SIGNED),
        (b"\xff" * 100, Refusal.NOT_SIGNED),
        (b"x" * (SIZE_MAX + 1), Refusal.TOO_LARGE),
        (SEALED.payload.replace(b"sparkd/1", b"sparkd/2", 1), Refusal.UNKNOWN_VERSION),
        (SEALED.payload.replace(b"sparkd/1", b"sparkd/01", 1), Refusal.NOT_SIGNED),
        (forged(TOPIC, b"\xff\xfe"), Refusal.NOT_UTF8),
        (forged(TOPIC, b"not json"), Refusal.NOT_JSON),
        (forged(TOPIC, b""), Refusal.NOT_JSON),
        (forged(TOPIC, b"[1]"), Refusal.WRONG_TYPE),
        (forged(TOPIC, b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1)), Refusal.TOO_DEEP),
        (forged(TOPIC, b"[" * 60000), Refusal.TOO_DEEP),
        (forged(TOPIC, b'{"a":' * 10000), Refusal.TOO_DEEP),
        (forged(TOPIC, b'{"v":"1.0","v":"1.0"}'), Refusal.DUPLICATE_KEY),
        (forged(TOPIC, b'{"v":NaN}'), Refusal.NOT_FINITE),
        (forged(TOPIC, b'{"v":' + b"9" * 5000 + b"}"), Refusal.OUT_OF_RANGE),
        (forged(TOPIC, b'{"v":"1.0"}'), Refusal.MISSING_KEY),
    ],
)
def test_bad_frames_are_refused(frame: bytes, reason: Refusal) -> None:
    """Size, signature, version, encoding, depth and syntax, in this order."""
    assert reason is refused(TOPIC, frame).reason


def test_brackets_in_text_are_not_depth() -> None:
    """Depth is counted outside strings: a quoted log line may hold any."""
    signal = replace(samples.SIGNAL, quote='[[[[{{{{"\\' * 40)
    report = replace(REPORT, signals=(signal,) * 3)
    sealed = encoder_of(report).encode(report, NOW)

    assert report == decoder().decode(sealed.topic, sealed.payload, NOW).message


@pytest.mark.parametrize(
    ("change", "reason", "where"),
    [
        (lambda c: c.update(v="2.0"), Refusal.UNKNOWN_VERSION, "v"),
        (lambda c: c.update(v=1), Refusal.UNKNOWN_VERSION, "v"),
        (lambda c: c.update(cluster="other"), Refusal.WRONG_CLUSTER, ""),
        (lambda c: c.update(cluster="a/b"), Refusal.BAD_NAME, "cluster"),
        (lambda c: c.update(kind="report"), Refusal.WRONG_KIND, ""),
        (lambda c: c.update(kind="order"), Refusal.WRONG_KIND, "kind"),
        (lambda c: c.update(kind=["status"]), Refusal.WRONG_KIND, "kind"),
        (lambda c: c.update({"from": HEAD}), Refusal.WRONG_NODE, ""),
        (lambda c: c.update({"from": "a\nb"}), Refusal.BAD_NAME, "from"),
        (lambda c: c.update({"from": 7}), Refusal.WRONG_TYPE, "from"),
        (lambda c: c.update(instance=""), Refusal.BAD_NAME, "instance"),
        (lambda c: c.update(instance="x" * 65), Refusal.TOO_LONG, "instance"),
        (lambda c: c.update(seq=0), Refusal.OUT_OF_RANGE, "seq"),
        (lambda c: c.update(seq=1 << 60), Refusal.OUT_OF_RANGE, "seq"),
        (lambda c: c.update(seq=True), Refusal.WRONG_TYPE, "seq"),
        (lambda c: c.update(seq=1.0), Refusal.WRONG_TYPE, "seq"),
        (lambda c: c.update(argv=["rm"]), Refusal.UNKNOWN_KEY, "argv"),
        (lambda c: c.pop("seq"), Refusal.MISSING_KEY, "seq"),
        (lambda c: c.update(body=[]), Refusal.WRONG_TYPE, "body"),
        (lambda c: c["body"].pop("seen"), Refusal.MISSING_KEY, "body.seen"),
        (lambda c: c["body"].update(environment={}), Refusal.UNKNOWN_KEY, "body.environment"),
        (lambda c: c["body"]["units"][1].update(path="/x"), Refusal.UNKNOWN_KEY, "body.units.1.path"),
    ],
)
def test_bad_content_is_refused(
    change: Callable[[dict[str, Any]], object], reason: Refusal, where: str
) -> None:
    """Even who has the key is held to the form, and told where it failed."""
    error = refused(TOPIC, altered(change))

    assert (reason, where) == (error.reason, error.where)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"seen": [1]}, Refusal.WRONG_TYPE),
        ({"seen": [1, -1]}, Refusal.OUT_OF_RANGE),
        ({"seen": [1, 1 << 53]}, Refusal.OUT_OF_RANGE),
        ({"heard": [["spark 1", "feed"]]}, Refusal.BAD_NAME),
        ({"heard": [["spark-1", "feed"]] * 65}, Refusal.TOO_LONG),
        ({"heard": {}}, Refusal.WRONG_TYPE),
        ({"intent_seq": "1"}, Refusal.WRONG_TYPE),
        ({"intent_seq": False}, Refusal.WRONG_TYPE),
        ({"refused": "x" * 501}, Refusal.TOO_LONG),
        ({"refused": "\x1b[2J"}, Refusal.BAD_TEXT),
        ({"refused": "\ud800"}, Refusal.BAD_TEXT),
        ({"units": [{"unit": "rays", "generation": 1, "state": "running"}]}, Refusal.UNKNOWN_VALUE),
        ({"units": ["ray"]}, Refusal.WRONG_TYPE),
        ({"swept": 1}, Refusal.WRONG_TYPE),
        ({"ready": "yes"}, Refusal.WRONG_TYPE),
        ({"shared_digest": "../../etc"}, Refusal.BAD_NAME),
        ({"available_bytes": -1}, Refusal.OUT_OF_RANGE),
        ({"available_bytes": 1.5}, Refusal.WRONG_TYPE),
        ({"pressure_percent": 100.5}, Refusal.OUT_OF_RANGE),
        ({"pressure_percent": 10**400}, Refusal.OUT_OF_RANGE),
        ({"pressure_percent": True}, Refusal.WRONG_TYPE),
        ({"version": None}, Refusal.WRONG_TYPE),
    ],
)
def test_bad_values_are_refused(parts: dict[str, Any], reason: Refusal) -> None:
    """Types, bounds, lengths and enumerations of a body."""
    assert reason is refused(TOPIC, body(**parts)).reason


def test_a_number_that_overflows_is_refused() -> None:
    """JSON can say numbers that become infinite when they are read."""
    content = json.dumps(CONTENT).replace('"pressure_percent": 0.25', '"pressure_percent": 1e999')

    assert Refusal.NOT_FINITE is refused(TOPIC, forged(TOPIC, content.encode())).reason


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"gpu_memory_utilization": 1.5}, Refusal.OUT_OF_RANGE),
        ({"max_num_seqs": 0}, Refusal.OUT_OF_RANGE),
        ({"cudagraph": "most"}, Refusal.UNKNOWN_VALUE),
        ({"trust_remote_code": True}, Refusal.UNKNOWN_KEY),
    ],
)
def test_settings_are_bounded(settings: dict[str, Any], reason: Refusal) -> None:
    """An intent carries bounded numbers and enumerations, nothing that becomes an argument by itself."""
    sealed = encoder_of(INTENT).encode(INTENT, NOW)
    frame = altered(lambda content: content["body"]["settings"].update(settings), sealed)

    assert reason is refused(sealed.topic, frame).reason


def test_a_left_out_setting_is_no_default() -> None:
    """Two versions may have different defaults: settings that are not empty must be said."""
    sealed = encoder_of(INTENT).encode(INTENT, NOW)
    frame = altered(lambda content: content["body"]["settings"].pop("gpu_memory_utilization"), sealed)

    assert refused(sealed.topic, frame).where == "body.settings.gpu_memory_utilization"


def test_an_unknown_node_is_refused() -> None:
    """Only configured nodes are heard, and nobody else becomes a label."""
    stranger = replace(INTENT, node="spark-9")
    sealed = encoder_of(stranger).encode(stranger, NOW)

    error = refused(sealed.topic, sealed.payload)

    assert (error.reason, error.sender) == (Refusal.UNKNOWN_NODE, "")


def test_a_newer_minor_version_is_understood() -> None:
    """While one node is upgraded before the other: keys that are not known yet are ignored."""

    def newer(content: dict[str, Any]) -> None:
        content.update(v="1.7", hint="new")
        content["body"].update(mood="good")
        content["body"]["units"][0].update(colour="green")

    assert decoder().decode(TOPIC, altered(newer), NOW).message == STATUS


def test_a_newer_minor_version_is_still_bounded() -> None:
    """What is known is checked as ever."""

    def newer(content: dict[str, Any]) -> None:
        content.update(v="1.7")
        content["body"].update(intent_seq=-1)

    assert Refusal.OUT_OF_RANGE is refused(TOPIC, altered(newer)).reason


@pytest.mark.parametrize(
    "message",
    [
        replace(STATUS, report_seq=-1),
        replace(STATUS, pressure_percent=float("nan")),
        replace(TELEMETRY, done=1 << 60),
        replace(INTENT, wanted=((HEAD, ()),) * 65),
        replace(INTENT, addressees=(("a b", INSTANCE),)),
    ],
)
def test_nothing_out_of_bounds_is_said(message: Any) -> None:
    """What the others would refuse is refused before it is sent, and takes no number."""
    encoder = encoder_of(message)

    with pytest.raises(WireError):
        encoder.encode(message, NOW)

    assert (encoder.said(Kind.STATUS), encoder.said(Kind.INTENT)) == (0, 0)


@pytest.mark.parametrize(
    ("key", "cluster", "node", "instance"),
    [
        (b"short", CLUSTER, WORKER, INSTANCE),
        (KEY, "a/b", WORKER, INSTANCE),
        (KEY, CLUSTER, "+", INSTANCE),
        (KEY, CLUSTER, WORKER, "in stance"),
    ],
)
def test_unusable_identities_are_refused(key: bytes, cluster: str, node: str, instance: str) -> None:
    """A weak key or a name that cannot be a topic level is an error at start."""
    with pytest.raises(ValueError):
        Encoder(key, cluster, node, instance)


def test_a_decoder_checks_its_identity() -> None:
    """The listening side is held to the same."""
    with pytest.raises(ValueError):
        Decoder(b"short", CLUSTER, (WORKER,))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    """Whatever arrives, the outcome is a refusal and nothing else."""
    assert refused(TOPIC, data).reason in Refusal


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(CONTENT["body"])), json_values)
def test_any_value_is_taken_or_refused(name: str, value: Any) -> None:
    """Whatever stands in the place of a value of a rightly signed body: a message or a refusal."""
    listener = decoder()
    try:
        outcome = listener.decode(TOPIC, body(**{name: value}), NOW).message
    except WireError as error:
        outcome = error.reason

    assert isinstance(outcome, MemberStatus | Refusal)


def test_a_version_without_stamps_is_heard() -> None:
    """1.0 said neither when it sent a message nor what it had heard."""

    def earlier(content: dict[str, Any]) -> None:
        content["v"] = "1.0"
        for name in ("sent_s", "echoes"):
            content["body"].pop(name, None)

    telemetry = replace(samples.TELEMETRY, sent_s=NOW, echoes=(Echo("feed", 1.0, 2.0),))
    for said, heard in ((REPORT, replace(REPORT, sent_s=None)), (telemetry, samples.TELEMETRY)):
        sealed = encoder_of(said).encode(said, NOW)

        assert heard == decoder().decode(sealed.topic, altered(earlier, sealed), NOW).message


def test_refusals_can_be_read() -> None:
    """The text says what is wrong and where."""
    assert (
        str(refused(TOPIC, body(seen=[1, -1])))
        == "out_of_range at body.seen: 0 to 9007199254740991 is allowed"
    )
    assert str(WireError(Refusal.BAD_MAC)) == "bad_mac"
