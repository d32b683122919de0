"""Command lines as click (Ray) and argparse (vLLM) read them, from the real programs' own tables."""

import argparse
import json
import re
from typing import Any, NoReturn

from standin import texts

BOOLEANS = {"1": True, "true": True, "t": True, "yes": True, "y": True, "on": True}
BOOLEANS |= {"0": False, "false": False, "f": False, "no": False, "n": False, "off": False}
INTEGERS = {"integer", "integer range"}


class UsageError(Exception):
    """Refused; the message is what the real program prints."""


def ray_start(arguments: list[str]) -> dict[str, Any]:
    """Click's reading: options only, `--a b` or `--a=b`, the last one counts."""
    table = {
        name: option
        for option in json.loads(texts.data("ray_start_options.json"))
        for name in option["names"]
    }
    values: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        option = table.get(name)
        if option is None:
            raise UsageError(_unknown(name, list(table)))
        if option["flag"]:
            values[_key(option)] = True
            continue
        if not equals:
            if not rest:
                raise UsageError(f"Option '{name}' requires an argument.")
            value = rest.pop(0)
        values[_key(option)] = _click_value(name, option, value)
    return values


def _key(option: dict[str, Any]) -> str:
    return option["names"][-1].lstrip("-").replace("-", "_")


def _unknown(name: str, known: list[str]) -> str:
    if not name.startswith("-"):
        return f"Got unexpected extra argument ({name})"
    near = sorted(other for other in known if other.startswith(name[:8]) and len(name) > 8)
    if not near:
        return f"No such option '{name}'."
    if len(near) == 1:
        return f"No such option '{name}'. Did you mean '{near[0]}'?"
    return f"No such option '{name}'. (Did you mean one of: {', '.join(repr(other) for other in near)}?)"


def _click_value(name: str, option: dict[str, Any], value: str) -> Any:
    kind = option["type"]
    if kind in INTEGERS:
        if not re.fullmatch(r"\s*[+-]?\d+\s*", value):
            raise UsageError(f"Invalid value for '{name}': {value!r} is not a valid integer.")
        return int(value)
    if kind == "float":
        try:
            return float(value)
        except ValueError:
            raise UsageError(f"Invalid value for '{name}': {value!r} is not a valid float.") from None
    if kind == "boolean":
        if value.lower() not in BOOLEANS:
            raise UsageError(f"Invalid value for '{name}': {value!r} is not a valid boolean.")
        return BOOLEANS[value.lower()]
    if kind == "choice" and value not in option["choices"]:
        raise UsageError(
            f"Invalid value for '{name}': {value!r} is not one of {str(option['choices'])[1:-1]}."
        )
    return value


def human_int(text: str) -> int:
    """VLLM's numbers: 1k = 1000, 1K = 1024; only small letters take a fraction."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"Invalid int value: {text}")
    number, suffix = match.groups()
    if not suffix:
        return int(number)
    if suffix.islower():
        return int(float(number) * 1000 ** ("kmgt".index(suffix) + 1))
    if "." in number:
        raise argparse.ArgumentTypeError("Decimals are not allowed with binary suffixes like " + suffix)
    return int(number) * 1024 ** ("KMGT".index(suffix) + 1)


def _auto_or_int(text: str) -> int:
    return -1 if text in {"auto", "-1"} else human_int(text)


HUMAN = {
    "max_num_batched_tokens": human_int,
    "kv_cache_memory_bytes": human_int,
    "max_model_len": _auto_or_int,
}
FLOATS = {"gpu_memory_utilization"}


class _Parser(argparse.ArgumentParser):
    """The top parser's usage for everything that is left over, as the real one prints it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def vllm_serve(arguments: list[str]) -> argparse.Namespace:
    """Argparse over the real option table; unknown ones are refused with the real text."""
    parser = _Parser(prog="vllm serve", add_help=False)
    parser.add_argument("model_tag", nargs="?")
    for option in json.loads(texts.data("vllm_serve_options.json")):
        _add(parser, option)
    known, left = parser.parse_known_args(_dotted(arguments))
    if left:
        raise UsageError("unrecognized arguments: " + " ".join(left))
    return known


def _dotted(arguments: list[str]) -> list[str]:
    """`-cc.cudagraph_mode=NONE` is `-cc {"cudagraph_mode": "NONE"}`; underscores in names are dashes."""
    out: list[str] = []
    for argument in arguments:
        match = re.fullmatch(r"(--?[\w-]+)\.([\w.]+)=(.*)", argument)
        if match:
            value: Any = match[3]
            for part in reversed(match[2].split(".")):
                value = {part: value}
            out += [match[1], json.dumps(value)]
        elif argument.startswith("--"):
            name, equals, rest = argument.partition("=")
            out.append(name.replace("_", "-") + equals + rest)
        else:
            out.append(argument)
    return out


def _add(parser: argparse.ArgumentParser, option: dict[str, Any]) -> None:
    names, kind, dest = option["names"], option["kind"], option["dest"]
    if kind == "_HelpAction":
        return
    if kind == "BooleanOptionalAction":
        positive = [name for name in names if not name.startswith("--no-")]
        parser.add_argument(*positive, dest=dest, action=argparse.BooleanOptionalAction)
        return
    if kind == "_StoreTrueAction":
        parser.add_argument(*names, dest=dest, action="store_true", default=None)
        return
    more: dict[str, Any] = {
        "type": HUMAN.get(dest) or (float if dest in FLOATS else _type(option.get("type")))
    }
    if option.get("nargs"):
        more["nargs"] = option["nargs"]
    if option.get("choices"):
        more["choices"] = [_type(option.get("type"))(choice) for choice in option["choices"]]
    if dest == "compilation_config":
        more["type"] = json.loads
    parser.add_argument(*names, dest=dest, **more)


def _type(name: str | None) -> Any:
    return {"int": int, "float": float}.get(name or "", str)
