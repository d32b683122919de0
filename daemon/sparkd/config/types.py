"""The kinds of values that keys take, each with what it allows as its message."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from sparkd.config.forms import (
    check_absolute,
    check_address,
    check_env,
    check_interface,
    check_listen,
    check_name,
    check_program,
    env_value,
    parse_bytes,
)

BYTES_MAX = 1 << 50

Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(ge=0, le=BYTES_MAX)]
Seconds = Annotated[float, Field(gt=0, le=604800)]
SecondsOrNone = Annotated[float, Field(ge=0, le=604800)]
Milliseconds = Annotated[int, Field(ge=100, le=600000)]
Share = Annotated[float, Field(gt=0, lt=1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]
Name = Annotated[str, AfterValidator(check_name)]
Address = Annotated[str, AfterValidator(check_address)]
Listen = Annotated[str, AfterValidator(check_listen)]
Interface = Annotated[str, AfterValidator(check_interface)]
AbsolutePath = Annotated[str, AfterValidator(check_absolute)]
Program = Annotated[str, AfterValidator(check_program)]
Text = Annotated[str, Field(min_length=1, max_length=200)]
Arguments = list[Annotated[str, Field(min_length=1, max_length=4096)]]
Environment = Annotated[dict[str, Annotated[str, BeforeValidator(env_value)]], AfterValidator(check_env)]
