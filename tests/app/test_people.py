"""What an operator's verb is answered where it would change nothing."""

from __future__ import annotations

import pytest

from sparkd.app.people import without_effect
from sparkd.core.events import Verb
from sparkd.words import Phase


@pytest.mark.parametrize(
    ("verb", "phase", "pausing", "said"),
    [
        (Verb.STOP, Phase.STOPPED, False, "it is stopped already"),
        (Verb.PAUSE, Phase.PAUSED, True, "it is paused already"),
        (Verb.RESUME, Phase.SERVING, False, "nothing to resume: it is serving"),
    ],
)
def test_what_is_so_already_is_accepted_by_every_verb(verb, phase, pausing, said) -> None:
    answer = without_effect(verb, phase, pausing=pausing)
    assert answer is not None
    assert (answer.accepted, answer.text) == (True, said)


@pytest.mark.parametrize("verb", [Verb.PAUSE, Verb.RESUME])
@pytest.mark.parametrize("phase", [Phase.STOPPED, Phase.STOPPING])
def test_what_is_stopped_can_only_be_started(verb, phase) -> None:
    answer = without_effect(verb, phase, pausing=False)
    assert answer is not None
    assert (answer.accepted, answer.text) == (False, f"it is {phase}: sparkctl start")


@pytest.mark.parametrize(
    ("verb", "phase", "pausing"),
    [
        (Verb.START, Phase.STOPPED, False),
        (Verb.STOP, Phase.SERVING, False),
        (Verb.STOP, Phase.STOPPING, False),
        (Verb.PAUSE, Phase.SERVING, False),
        (Verb.PAUSE, Phase.PAUSED, False),
        (Verb.RESUME, Phase.PAUSED, True),
        (Verb.RESUME, Phase.SERVING, True),
        (Verb.RESUME, Phase.ESCALATED, False),
    ],
)
def test_what_may_change_something_is_asked(verb, phase, pausing) -> None:
    assert without_effect(verb, phase, pausing=pausing) is None
