"""The sentences of the status, said the same way on the page and by sparkctl. Pure."""

from __future__ import annotations

from typing import Any

from sparkd.export.human import UNKNOWN, about_text, duration_text, percent_text, words


def now_lines(document: dict[str, Any]) -> list[str]:
    """Return what goes on now, as sentences: traffic, progress, the wait and its reason, the incident."""
    lines = []
    if document["serving"]:
        lines.append(traffic_text(document["traffic"]))
    if document["progress"] is not None:
        lines.append(progress_text(document["phase"], document["progress"]))
    if document["phase"] == "waiting":
        lines += [f"waiting: {reason}" for reason in document["waiting"] or [UNKNOWN]]
    lines += [not_back_text(told) for told in document["memory_not_back"]]
    incident = document["incident"]
    if incident is not None:
        lines.append(incident_text(incident))
    if document["backoff_s"] is not None:
        lines.append(f"relaunch in {about_text(document['backoff_s'])}: {(incident or {}).get('remedy', '')}")
    return lines


def not_back_text(told: dict[str, Any]) -> str:
    """Return what a node answered where the memory of a dead generation did not come back in time."""
    return (
        f"{told['node']}: the memory of generation {told['generation']} was not measured back in time; "
        "the next start goes on without"
    )


def traffic_text(traffic: dict[str, Any]) -> str:
    """Return `27.1 tok/s · 3 running · 0 waiting`."""
    rate = traffic["rate_tok_s"]
    said = f"{UNKNOWN} tok/s" if rate is None else f"{rate:.1f} tok/s"
    counts = [f"{UNKNOWN if traffic[key] is None else traffic[key]} {key}" for key in ("running", "waiting")]
    return " · ".join([said, *counts])


def progress_text(phase: str, progress: dict[str, Any]) -> str:
    """Return `loading weights 21 % · 8 of 39 · 18 s each · about 9 min left · stuck if none in 40 s`."""
    done, total = progress["done"], progress["total"]
    parts = [words(phase)]
    if done is not None and total:
        parts = [f"{words(phase)} {percent_text(done / total)}", f"{done} of {total}"]
    if progress["each_s"] is not None:
        parts.append(f"{duration_text(progress['each_s'])} each")
    if progress["left_s"] is not None:
        parts.append(f"about {about_text(progress['left_s'])} left")
    if progress["stuck_in_s"] is not None:
        parts.append(f"stuck if nothing moves in {about_text(progress['stuck_in_s'])}")
    return " · ".join(parts)


def incident_text(incident: dict[str, Any]) -> str:
    """Return the open incident in one line."""
    told = incident["node"] is None or incident["explanation"].startswith(incident["node"])
    where = "" if told else f" on {incident['node']}"
    cause = incident["cause"] or "cause not decided yet"
    why = f": {incident['explanation']}" if incident["explanation"] else ""
    return (
        f"incident {incident['incident']}, open for {duration_text(incident['open_s'])}: {cause}{where}{why}"
    )


def last_text(last: dict[str, Any]) -> str:
    """Return the newest incident that is over, in one line, without its time of day."""
    where = f" on {last['node']}" if last.get("node") else ""
    phase = f" during {words(last['phase'])}" if last.get("phase") else ""
    took = f" in {duration_text(last['recovery_s'])}" if last.get("recovery_s") is not None else ""
    count = last.get("relaunches")
    tries = "" if count is None else f" with {count} relaunch{'' if count == 1 else 'es'}"
    return f"{last['cause']}{where}{phase} → {last['outcome']}{took}{tries}"
