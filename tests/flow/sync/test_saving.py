"""The delay until a finished change is in both files, measured by another process during the run."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from pair.sync.rules import SyncSettings
from support.command import PAIR, Workplace, write_files
from support.sync_parts import Page, Project
from support.sync_runs import URL

SOURCES = 300
LONGEST_SECONDS = 15
"""Far more than the allowed second, for a busy machine, and far less than the pause of 30 s."""


def is_seen(project: Project, source_id: str, summary: str) -> bool:
    """Wait until both files show this summary of a source, or none yet if it is empty."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        if project.places.cache.exists():
            record = project.records.get(source_id)
            if record is not None and record["summary_text"] == summary and summary in project.index:
                return True
        time.sleep(0.01)
    return False


@pytest.mark.rule("sync-49")
def test_a_finished_change_is_in_both_files_while_the_next_summary_is_written(project: Project) -> None:
    project.policy = SyncSettings(summarization_concurrency=1)
    for number in range(SOURCES):
        project.write(f"{number:03}.md", f"text {number}")
    project.run()
    for number in range(3):
        project.write(f"{number:03}.md", "other text")
        project.summariser.answers[f"{number:03}.md"] = f"Other summary {number}."
    seen: list[bool] = []

    def look_for_the_one_before(source_id: str) -> None:
        if (number := int(source_id[:3])) > 0:
            seen.append(is_seen(project, f"{number - 1:03}.md", f"Other summary {number - 1}."))

    project.summariser.on_call = look_for_the_one_before
    project.run()
    assert seen == [True, True]


@pytest.mark.rule("sync-22")
@pytest.mark.rule("sync-49")
def test_the_record_of_a_new_page_is_in_the_state_file_during_its_model_call(project: Project) -> None:
    for number in range(SOURCES):
        project.write(f"{number:03}.md", f"text {number}")
    project.run()
    project.serve(URL, Page("page"))
    seen: list[bool] = []
    project.summariser.on_call = lambda source_id: seen.append(is_seen(project, source_id, ""))
    project.run()
    assert seen == [True]


@pytest.mark.rule("sync-49")
def test_the_journal_is_on_disk_and_changes_that_finish_together_share_an_fsync(
    workplace: Workplace, tmp_path: Path
) -> None:
    write_files(workplace.target, {f"{number:03}.md": f"# Page {number}\n" for number in range(SOURCES)})
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", str(trace), *PAIR, "sync", "--json"]
    done = subprocess.run(
        command, cwd=workplace.folder, env=workplace.environment, check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["added"] == SOURCES
    synced = re.findall(r"sync\(\d+<[^>]*index-cache\.json\.journal-\d+[^>]*>", trace.read_text())
    assert 1 <= len(synced) <= SOURCES / 3
