"""The example folders do what the documents say, each by its own entry: the action's step, the hook's command."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
GIT = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ENVIRONMENT = os.environ | GIT | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
FOLDED = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)


def commit(folder: Path, text: str) -> None:
    """A commit in which the job is another."""
    (folder / "job.toml").write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "job")


@pytest.fixture
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """An example folder as a repository: its first commit, and one with twice the micro-batch."""
    folder = tmp_path / "repository"
    shutil.copytree(EXAMPLES / request.param, folder)
    job = (folder / "job.toml").read_text()
    git(folder.parent, "init", "--quiet", str(folder))
    commit(folder, job)
    commit(folder, job.replace("micro-batch = 1", "micro-batch = 2"))
    return folder


class GitHub(ThreadingHTTPServer):
    """Comments of one pull request, as GitHub's API keeps them: a hundred and one of others are there."""

    def __init__(self) -> None:
        self.comments = [{"id": number, "body": f"comment {number}"} for number in range(101)]
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(BaseHTTPRequestHandler):
    """Lists, makes and changes comments for those who may."""

    server: GitHub

    def do_GET(self) -> None:
        page = int(self.path.rpartition("page=")[2])
        self.reply(self.server.comments[100 * (page - 1) : 100 * page])

    def do_POST(self) -> None:
        self.server.comments.append({"id": len(self.server.comments), **self.body()})
        self.reply({})

    def do_PATCH(self) -> None:
        self.server.comments[int(self.path.rpartition("/")[2])].update(self.body())
        self.reply({})

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def reply(self, what: object) -> None:
        self.server.asked.append(self.command)
        is_allowed = self.headers["Authorization"] == "Bearer token" and self.path.startswith("/repos/me/it/issues/")
        self.send_response(200 if is_allowed else 403)
        self.end_headers()
        self.wfile.write(json.dumps(what).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def github() -> Iterator[GitHub]:
    server = GitHub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def act(repository: Path, server: GitHub, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The last step of the action, as the example's workflow calls it in a pull request."""
    event = repository.parent / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7}}))
    workflow = yaml.safe_load((repository / ".github/workflows/memory.yml").read_text())
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    used = next(step for step in workflow["jobs"]["memory"]["steps"] if "vramcast" in step["uses"])
    assert used["with"].keys() <= action["inputs"].keys()
    given = {name: str(one.get("default", "")) for name, one in action["inputs"].items()}
    given |= {name: str(text) for name, text in used["with"].items()} | {"token": "token"} | inputs
    step = action["runs"]["steps"][-1]
    values = {name: FOLDED.sub(lambda found: given[found[1]], text.replace("${{ github.action_path }}", str(ROOT)))
              for name, text in step["env"].items()}
    about = {
        "GITHUB_API_URL": f"http://127.0.0.1:{server.server_port}", "GITHUB_REPOSITORY": "me/it",
        "GITHUB_EVENT_PATH": str(event), "GITHUB_STEP_SUMMARY": str(repository.parent / "summary.md"),
    }
    return subprocess.run(["bash", "-e", "-c", step["run"]], cwd=repository, env=ENVIRONMENT | values | about,
                          capture_output=True, text=True, check=False)


@pytest.mark.parametrize("repository", ["github-action"], indirect=True)
def test_the_action_keeps_one_comment_that_says_what_changed_the_peak(repository: Path, github: GitHub) -> None:
    past = act(repository, github)
    assert past.returncode == 1, past.stderr
    body = github.comments[101]["body"]
    assert re.search(r"\+\d.*GiB, \+\d.*%\); 23.64 GiB usable: fits", body)
    assert "past the budget +5%" in body and "| workload.micro\\_batch" not in body
    assert "| activations/head/" in body and "| workload.micro_batch | 1 | 2 |" in body
    assert (repository.parent / "summary.md").read_text() in body

    within = act(repository, github, budget="22GiB")
    assert within.returncode == 0, within.stderr
    assert len(github.comments) == 102 and "within the budget 22GiB" in github.comments[101]["body"]
    assert github.asked == ["GET", "GET", "POST", "GET", "GET", "PATCH"]


@pytest.mark.parametrize("repository", ["github-action"], indirect=True)
def test_the_action_judges_without_a_comment_and_refuses_in_a_sentence(repository: Path, github: GitHub) -> None:
    refused = act(repository, github, token="of a fork")
    assert refused.returncode == 1 and "::warning::vramcast: no comment" in refused.stdout
    silent = act(repository, github, token="", budget="")
    assert silent.returncode == 0 and github.asked == ["GET"]
    new = act(repository, github, base="HEAD^1", command="train --file new.toml")
    assert new.returncode == 2 and new.stderr.count("\n") == 1 and "new.toml" in new.stderr
    shutil.copy(repository / "job.toml", repository / "new.toml")
    added = act(repository, github, command="train --file new.toml", token="")
    assert added.returncode == 0 and "no answer at HEAD^1" in added.stdout and "not judged" in added.stdout
    assert "no such revision" in act(repository, github, base="nothing").stderr


@pytest.mark.parametrize("repository", ["pre-commit"], indirect=True)
def test_the_hook_passes_what_fits_and_shows_what_does_not(repository: Path) -> None:
    hook, = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    config = yaml.safe_load((repository / ".pre-commit-config.yaml").read_text())
    used, = config["repos"][0]["hooks"]
    assert used["id"] == hook["id"] and re.search(used["files"], "job.toml")
    words = [*shlex.split(hook["entry"]), *used["args"]]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=repository, capture_output=True, text=True, check=False)

    assert run().returncode == 0
    commit(repository, (repository / "job.toml").read_text().replace("micro-batch = 2", "micro-batch = 64"))
    told = run()
    assert told.returncode == 1 and told.stdout.startswith("does not fit"), told
