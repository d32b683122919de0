"""What people and peers see of the daemon, from its newest state."""

from __future__ import annotations

import time
from typing import Any

import structlog

from sparkd.api import http as http_api
from sparkd.api import operator as operator_api
from sparkd.config import Loaded
from sparkd.core.events import OperatorAsked, Verb
from sparkd.core.messages import MemberStatus, Report
from sparkd.core.publish import reports_from, status_of
from sparkd.core.records import IncidentClosed, Times
from sparkd.core.state import State
from sparkd.export.explain import explain
from sparkd.export.metrics import Metrics
from sparkd.export.page import page
from sparkd.export.status import About, ready, status_view
from sparkd.loop.runner import Loop
from sparkd.ports import Clock
from sparkd.store.disk import DiskStore
from sparkd.store.view import HistoryUnreadableError
from sparkd.words import Phase

log = structlog.get_logger()


class People:
    """Answers from memory; what is in the history is read when it has changed."""

    def __init__(self, loaded: Loaded, loop: Loop, store: DiskStore, metrics: Metrics, clock: Clock) -> None:
        self._loaded = loaded
        self._loop = loop
        self._store = store
        self._metrics = metrics
        self._clock = clock
        self._last: dict[str, Any] | None = None
        self._learned: dict[str, Any] | None = None

    async def recall(self) -> None:
        """Read from the history what is shown beside the state."""
        try:
            self._last = await self._store.view.last_closed()
            self._learned = await self._store.view.learned()
        except HistoryUnreadableError as error:
            log.warning("history unreadable", reason=str(error))

    async def interrupted(self, state: State) -> list[IncidentClosed]:
        """Return ends for incidents of earlier daemons that have none."""
        try:
            known = await self._store.view.incidents()
        except HistoryUnreadableError:
            return []
        lead = state.coordinator
        mine = lead.incident.number if lead is not None and lead.incident is not None else None
        return [
            IncidentClosed(
                incident=entry["incident"],
                outcome="interrupted",
                cause=entry["cause"] or "unknown",
                generation=entry["generation"] or 0,
                relaunches=entry["relaunches"] or 0,
                times=Times(detected_s=0.0),
                needs="",
            )
            for entry in known
            if entry["outcome"] is None and entry["incident"] != mine
        ]

    def http_views(self) -> http_api.Views:
        """Return what the HTTP handlers ask."""
        return http_api.Views(
            metrics=self._metrics_text,
            status=self.document,
            page=lambda: page(self.document()),
            ready=lambda: ready(self._loop.state),
            step_age_s=lambda: self._loop.age_s,
            failed=self._metrics.handler_failed,
        )

    def operator_views(self) -> operator_api.OperatorViews:
        """Return what the operator socket asks."""
        return operator_api.OperatorViews(
            status=self.document,
            explain=lambda: explain(self._loop.state, self._loaded.policy, self._clock.now()),
            incidents=self._store.view.incidents,
            incident=self._store.view.incident,
            ask=self._ask,
            failed=self._metrics.handler_failed,
        )

    def status_message(self) -> MemberStatus:
        """Return what this node would publish now, for peers that ask."""
        policy = self._loaded.policy
        return status_of(self._loop.state, policy.shared_digest, policy.node_digest, policy.version)

    def reports(self, first_seq: int) -> Report | None:
        """Return this node's evidence from a number on, for peers that ask."""
        return reports_from(self._loop.state, first_seq)

    def document(self) -> dict[str, Any]:
        """Return the status document."""
        return status_view(self._loop.state, self._loaded.policy, self._clock.now(), self._about())

    def _metrics_text(self) -> bytes:
        self._metrics.store(troubled=bool(self._store.trouble), queued=self._store.queued)
        return self._metrics.text()

    def _about(self) -> About:
        loaded, spec = self._loaded, self._loaded.engine
        learned = self._learned
        if learned is not None:
            learned = {**learned, "age_s": max(0.0, time.time() - float(learned.get("wall_s", 0.0)))}
        pipeline = "" if spec.pipeline_parallel == 1 else f" pp {spec.pipeline_parallel}"
        return About(
            cluster=loaded.cluster,
            model=spec.served_name,
            api_url=f"http://{loaded.nodes[0].address}:{spec.api_port}",
            parallel=f"tp {spec.tensor_parallel}{pipeline}",
            engine_version=spec.vllm_version or None,
            last_incident=self._last,
            learned=learned,
            trouble=self._store.trouble,
        )

    def _ask(self, verb: Verb, by: str) -> operator_api.Answer:
        if self._loop.state.coordinator is None:
            head = self._loaded.policy.head
            return operator_api.Answer(accepted=False, text=f"this node does not coordinate: ask on {head}")
        if self._loaded.policy.observe_only:
            text = "it only observes: set recovery.observe_only = false and restart sparkd"
            return operator_api.Answer(accepted=False, text=text)
        lead = self._loop.state.coordinator
        if (answer := without_effect(verb, lead.phase, pausing=lead.pause_wanted)) is not None:
            return answer
        self._loop.emit(OperatorAsked(verb=verb, by=by))
        return operator_api.Answer(accepted=True, text=f"{verb} asked")


def without_effect(verb: Verb, phase: Phase, *, pausing: bool) -> operator_api.Answer | None:
    """Return the answer to a *verb* that would change nothing now, None where it may.

    What is so already is accepted, as often as it is asked; what cannot be had this way is refused.
    """
    if phase in {Phase.STOPPED, Phase.STOPPING} and verb in {Verb.PAUSE, Verb.RESUME}:
        return operator_api.Answer(accepted=False, text=f"it is {phase}: sparkctl start")
    if phase is Phase.STOPPED and verb is Verb.STOP:
        return operator_api.Answer(accepted=True, text="it is stopped already")
    if phase is Phase.PAUSED and pausing and verb is Verb.PAUSE:
        return operator_api.Answer(accepted=True, text="it is paused already")
    if verb is Verb.RESUME and not pausing and phase not in {Phase.PAUSED, Phase.ESCALATED}:
        return operator_api.Answer(accepted=True, text=f"nothing to resume: it is {phase}")
    return None
