"""PURE: topics and payloads of MQTT and of the peer's HTTP view; encode, decode, sign, verify.

No await, clock, random, environment, logging, file or network. Everything that arrives is refused unless
it is signed with the cluster key for the place where it arrived, is newer than what was heard before, and
every value in it has the right type and is within its bounds; `WireError.reason` says which of these failed.
"""
