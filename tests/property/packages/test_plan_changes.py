"""Plans of updates: no combination of installed, offered and edited files loses the work of the user."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pair.packages.rules import UpdatePlan, list_parents, plan_changes

CONTENTS = ("one", "two")

Files = dict[str, str | None]


def folder_of(contents: st.SearchStrategy[str | None], depth: int = 3) -> st.SearchStrategy[Files]:
    """Return folders with `a` and `b`; each is a file, missing, or a folder of such files."""
    entry: st.SearchStrategy[Files] = st.just({}) | st.builds(lambda content: {"": content}, contents)
    if depth > 1:
        entry |= st.builds(_below, folder_of(contents, depth - 1))
    return st.builds(lambda a, b: _named("a", a) | _named("b", b), entry, entry)


def _below(files: Files) -> Files:
    return {f"/{path}": content for path, content in files.items()}


def _named(name: str, files: Files) -> Files:
    return {f"{name}{path}": content for path, content in files.items()}


def can_lie_in_one_folder(files: Files) -> bool:
    """Return whether no path is a file and a folder at once."""
    return not any(folder in files for path in files for folder in list_parents(path))


@dataclass(frozen=True)
class Case:
    installed: dict[str, str]
    offered: Files
    present: Files
    force: bool
    restore: bool

    @property
    def plan(self) -> UpdatePlan:
        return plan_changes(self.installed, self.offered, self.present, force=self.force, restore=self.restore)

    @property
    def result(self) -> Files:
        leaving = {*self.plan.removed, *self.plan.changed}
        staying = {path: content for path, content in self.present.items() if path not in leaving}
        return staying | {path: self.offered[path] for path in self.plan.files_to_place}


def cases(present: st.SearchStrategy[str | None]) -> st.SearchStrategy[Case]:
    contents = st.sampled_from(CONTENTS)
    return st.builds(Case, folder_of(contents), folder_of(contents), folder_of(present), st.booleans(), st.booleans())


def any_case(test):
    return _thoroughly(given(cases(st.sampled_from(CONTENTS)))(test))


def any_case_with_links(test):
    """Add cases with a file whose content is not read: a link, a socket, or a file of the user."""
    return _thoroughly(given(cases(st.sampled_from([*CONTENTS, None])))(test))


_thoroughly = settings(max_examples=300, deadline=None, database=None)


@pytest.mark.rule("source-26")
@pytest.mark.rule("source-27")
@any_case
def test_what_the_user_wrote_stays_unless_forced(case: Case):
    theirs = {path for path, content in case.present.items() if content != case.installed.get(path)}
    if not case.force:
        assert {path: case.result.get(path) for path in theirs} == {path: case.present[path] for path in theirs}


@pytest.mark.rule("source-26")
@pytest.mark.rule("source-27")
@any_case_with_links
def test_links_and_other_special_files_of_the_user_stay_unless_forced(case: Case):
    special = {path for path, content in case.present.items() if content is None}
    if not case.force:
        assert not special & {*case.plan.removed, *case.plan.changed, *case.plan.unchanged}


@pytest.mark.rule("source-27")
@any_case
def test_what_the_user_deleted_stays_deleted_unless_restored(case: Case):
    deleted = case.installed.keys() - case.present.keys()
    if not case.force and not case.restore:
        assert not deleted & case.result.keys()


@any_case_with_links
def test_with_force_everything_offered_is_there(case: Case):
    if case.force:
        assert {path: case.result.get(path) for path in case.offered} == case.offered
        assert case.plan.kept == ()


@any_case
def test_untouched_installation_becomes_what_is_offered(case: Case):
    untouched = Case(case.installed, case.offered, dict(case.installed), force=False, restore=case.restore)
    assert untouched.result == untouched.offered


@any_case_with_links
def test_result_can_lie_in_one_folder(case: Case):
    assert can_lie_in_one_folder(case.result)


@any_case_with_links
def test_lists_of_a_plan_are_disjoint_and_sorted(case: Case):
    plan = case.plan
    lists = [plan.added, plan.changed, plan.removed, tuple(kept.path for kept in plan.kept), plan.unchanged]
    assert all(paths == tuple(sorted(paths)) for paths in lists)
    assert sum(len(paths) for paths in lists) == len({path for paths in lists for path in paths})


@any_case_with_links
def test_every_offered_path_is_accounted_for(case: Case):
    plan = case.plan
    named = {*plan.files_to_place, *plan.unchanged, *(kept.path for kept in plan.kept)}
    assert case.offered.keys() <= named


@any_case_with_links
def test_plan_removes_and_changes_only_what_is_there(case: Case):
    assert {*case.plan.removed, *case.plan.changed, *case.plan.unchanged} <= case.present.keys()
    assert not set(case.plan.added) & case.present.keys()


@any_case_with_links
def test_second_run_changes_nothing(case: Case):
    kept = {kept.path for kept in case.plan.kept} & case.installed.keys() & case.offered.keys()
    recorded = {path: case.installed[path] for path in kept}
    recorded |= {path: str(case.offered[path]) for path in (*case.plan.files_to_place, *case.plan.unchanged)}
    again = Case(recorded, case.offered, case.result, force=case.force, restore=case.restore)
    assert again.plan.changes_nothing
