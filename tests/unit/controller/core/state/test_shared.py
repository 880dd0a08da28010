from dataclasses import replace

import pytest
from backlogs import a_backlog
from builders import a_spec, a_stage
from sharing import BORROWER, OWNER, SHARED, owning, unfilled

from controller.core.messages.problems import unresolved_sharing
from controller.core.state.shared import SharingProblem, resolved, users_of
from controller.core.state.spec import StageKey
from optimizer.model import PipelineKey, StageName


def test_a_shared_stage_has_the_servers_of_the_other_and_its_own_place() -> None:
    found, unresolved = resolved([unfilled(), owning()])
    assert unresolved == {}
    encoder, asr = found[OWNER].stages[0], found[BORROWER].stages[0]
    assert asr.placements == encoder.placements
    assert (asr.name, asr.after, asr.rules, asr.shared_from) == ("asr", (), (), SHARED)
    assert found[BORROWER].stages[1].placements != encoder.placements


@pytest.mark.parametrize(
    ("to", "problem"),
    [
        ((PipelineKey("speech/nobody"), StageName("encoder")), SharingProblem.NO_PIPELINE),
        ((OWNER, StageName("vad")), SharingProblem.NO_STAGE),
        ((BORROWER, StageName("asr")), SharingProblem.CHAIN),
        ((PipelineKey("speech/third"), StageName("summary")), SharingProblem.ITSELF),
    ],
)
def test_what_cannot_be_shared_is_named(to: StageKey, problem: SharingProblem) -> None:
    third = a_spec(replace(a_stage("own"), shared_from=to), name="third")
    found, unresolved = resolved([owning(), unfilled(), third])
    assert found.keys() == {OWNER, BORROWER}
    assert (unresolved[third.key].to, unresolved[third.key].problem) == (to, problem)


def test_a_stage_of_a_backlog_is_not_shared() -> None:
    backlog = a_backlog(due_s=3600.0)
    to = (backlog.key, StageName("asr"))
    third = a_spec(replace(a_stage("own"), shared_from=to), name="third")
    found, unresolved = resolved([backlog, third])
    assert found.keys() == {backlog.key}
    assert unresolved[third.key].problem is SharingProblem.BACKLOG
    assert "speech/archive has demand.backlog" in unresolved_sharing(unresolved[third.key])


def test_the_last_valid_spec_of_the_owner_is_enough() -> None:
    found, unresolved = resolved([unfilled()], [owning()])
    assert found.keys() == {BORROWER}
    assert not unresolved


def test_the_users_of_a_stage_are_its_owner_and_those_that_borrow_it() -> None:
    specs = resolved([unfilled(), owning()])[0]
    assert users_of(specs.values()) == {SHARED: [SHARED, (BORROWER, "asr")]}
    assert users_of([specs[BORROWER]]) == {SHARED: [(BORROWER, "asr")]}
