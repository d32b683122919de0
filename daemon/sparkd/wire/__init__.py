"""PURE: topics and payloads of MQTT and of the peer's HTTP view; encode, decode, sign, verify.

No await, clock, random, environment, logging, file or network. Everything that arrives is refused unless
it is signed with the cluster key for the place where it arrived, is newer than what was heard before, and
every value in it has the right type and is within its bounds; `WireError.reason` says which of these failed.
"""

from sparkd.wire.codec import Decoder, Encoder, Message, Received, Sealed, kind_of, split
from sparkd.wire.envelope import SIZE_MAX
from sparkd.wire.names import INSTANCE_PATTERN, NAME_PATTERN, is_instance, is_name
from sparkd.wire.outbox import Outbox
from sparkd.wire.refusal import Refusal, WireError
from sparkd.wire.shapes import Will
from sparkd.wire.topics import Kind, Topics
from sparkd.wire.twins import Twins

__all__ = [
    "INSTANCE_PATTERN",
    "NAME_PATTERN",
    "SIZE_MAX",
    "Decoder",
    "Encoder",
    "Kind",
    "Message",
    "Outbox",
    "Received",
    "Refusal",
    "Sealed",
    "Topics",
    "Twins",
    "Will",
    "WireError",
    "is_instance",
    "is_name",
    "kind_of",
    "split",
]
