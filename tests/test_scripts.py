"""The scripts that execute the notebooks and write the repository's address, tried on small notebooks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
import set_address  # the root's conftest.py puts scripts/ on the path

ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "https://github.com/someone/course"
HEAD = "# {number} · Small\n{{badges}}\n\nThis one says `what` it is for.\n\n**You will**\n- see"


def make_notebook(folder: Path, name: str, *code: str) -> Path:
    cells = [nbformat.v4.new_markdown_cell(HEAD.format(number=name[:2]), id="head")]
    cells += [nbformat.v4.new_code_cell(source, id=f"code-{i}") for i, source in enumerate(code)]
    nb = nbformat.v4.new_notebook(cells=cells, metadata={"language_info": {"name": "python", "version": "0.0"}})
    path = folder / f"{name}.ipynb"
    nbformat.write(nb, path)
    return path


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A copy of the scripts and pyproject.toml, with an empty folder for notebooks."""
    for name in ("set_address.py", "run_notebooks.py"):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "README.md").write_text("# Course\n\n[![Open in Colab](old)](old)\n\n    git clone old\n")
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def script(course: Path, name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(course / "scripts" / name), *map(str, arguments)]
    return subprocess.run(
        command, cwd=course, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, check=False
    )


def address(course: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Call the address script in this process; return its exit status and what it wrote to stdout and stderr."""
    capsys.readouterr()
    status = set_address.main(list(arguments), root=course)
    return status, *capsys.readouterr()


def set_pyproject_address(course: Path, address: str) -> None:
    path = course / "pyproject.toml"
    text, count = re.subn(r'^Repository = ".*"$', f'Repository = "{address}"', path.read_text(), flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)


def outputs(path: Path) -> list[str]:
    nb = nbformat.read(path, as_version=4)
    return [output.get("text", output.output_type) for cell in nb.cells for output in cell.get("outputs", [])]


# The runner


def test_run_reports_a_failure_and_goes_on(course: Path) -> None:
    source = make_notebook(course / "notebooks", "01_bad", "print('before')", "1 / 0", "print('never')")
    make_notebook(
        course / "notebooks",
        "02_good",
        "import os, time; block = bytearray(200 * 2**20); time.sleep(1)",
        "print(6 * 7, os.environ['TQDM_DISABLE'])",
    )
    before = source.read_bytes()

    done = script(course, "run_notebooks.py")

    assert done.returncode == 1
    assert re.search(
        r"^01_bad +\d+\.\d +\d+  FAILED, code cell 2: ZeroDivisionError: division by zero$", done.stdout, re.MULTILINE
    )
    passed = re.search(r"^02_good +(\d+\.\d) +(\d+)  passed$", done.stdout, re.MULTILINE)
    assert passed and float(passed[1]) > 0 and int(passed[2]) >= 200
    assert "1 of 2 notebooks failed: 01_bad" in done.stderr
    assert source.read_bytes() == before
    assert outputs(course / "build" / "02_good.ipynb") == ["42 1\n"]
    assert outputs(course / "build" / "01_bad.ipynb") == ["before\n", "error"]
    assert "42 1" in (course / "build" / "02_good.html").read_text(encoding="utf-8")
    page = (course / "build" / "index.html").read_text(encoding="utf-8")
    assert '<a href="01_bad.html">01 · Small</a>' in page and "This one says <code>what</code> it is for." in page
    assert "2 of 2 notebooks have run; 1 failed." in page and "code cell 2: ZeroDivisionError" in page
    assert str(course) not in page


def test_in_place_stores_outputs_and_clean_metadata(course: Path) -> None:
    path = make_notebook(course / "notebooks", "01_good", "from pathlib import Path\nprint(Path.cwd().name)")
    done = script(course, "run_notebooks.py", "--in-place")
    assert done.returncode == 0, done.stderr
    assert outputs(path) == ["notebooks\n"]
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3" and nb.metadata.language_info == {"name": "python"}
    assert [cell.id for cell in nb.cells] == ["head", "code-0"]
    assert [cell.metadata for cell in nb.cells] == [{}, {}] and nb.cells[1].execution_count == 1
    assert not (course / "build").exists() and [p.name for p in path.parent.iterdir()] == [path.name]

    first = path.read_bytes()
    assert script(course, "run_notebooks.py", "--in-place").returncode == 0
    assert path.read_bytes() == first


def test_in_place_leaves_a_failing_notebook_alone(course: Path) -> None:
    path = make_notebook(course / "notebooks", "01_bad", "print('new')", "raise ValueError('no')")
    before = path.read_bytes()
    done = script(course, "run_notebooks.py", "--in-place")
    assert done.returncode == 1
    assert "code cell 2: ValueError: no" in done.stdout and "left as they were" in done.stderr
    assert path.read_bytes() == before


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
def test_run_says_in_one_line_where_it_was_interrupted(course: Path) -> None:
    note = course / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(300)"
    make_notebook(course / "notebooks", "01_slow", code)
    command = [sys.executable, str(course / "scripts" / "run_notebooks.py")]
    running = subprocess.Popen(command, cwd=course, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 100
    while not (note.exists() and note.read_text()) and time.monotonic() < deadline:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Interrupted in 01_slow.ipynb." in stderr and "Traceback" not in stderr
    kernel = int(note.read_text())
    while psutil.pid_exists(kernel) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(kernel), "the kernel has ended, too"


def test_run_names_a_broken_file_and_a_dead_kernel(course: Path) -> None:
    (course / "notebooks" / "01_broken.ipynb").write_text('{"cells": [')
    make_notebook(course / "notebooks", "02_dead", "import os; os._exit(3)")
    make_notebook(course / "notebooks", "03_good", "print(1)")
    done = script(course, "run_notebooks.py")
    assert done.returncode == 1
    assert re.search(r"^01_broken .*FAILED, NotJSONError: ", done.stdout, re.MULTILINE)
    assert re.search(r"^02_dead .*FAILED, code cell 1: the kernel died", done.stdout, re.MULTILINE)
    assert re.search(r"^03_good .*passed$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no notebooks found in notebooks/"),
        (["notebooks/99_none.ipynb"], "no such file: 99_none.ipynb"),
    ],
)
def test_run_without_notebooks(course: Path, arguments: list[str], message: str) -> None:
    done = script(course, "run_notebooks.py", *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_run_cannot_write(course: Path) -> None:
    make_notebook(course / "notebooks", "01_good", "print(1)")
    (course / "file").touch()  # a folder below a file: not even root can make it
    done = script(course, "run_notebooks.py", "--out", course / "file" / "build")
    assert done.returncode == 2
    assert "cannot write to" in done.stderr and "--out" in done.stderr and "Traceback" not in done.stderr


# The address


def test_address_check_and_rewrite(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_notebook(course / "notebooks", "01_good", "print(1)")
    assert address(course, capsys)[0] == 0
    assert address(course, capsys, "--check")[0] == 0
    nb = nbformat.read(path, as_version=4)
    nb.cells[1].execution_count = 1
    nbformat.write(nb, path)

    set_pyproject_address(course, ADDRESS + ".git")
    before = path.read_bytes()
    status, out, _ = address(course, capsys, "--check")
    assert status == 1
    assert out.splitlines() == ["differs: notebooks/01_good.ipynb", "differs: README.md"]
    assert path.read_bytes() == before

    status, out, _ = address(course, capsys)
    assert status == 0 and "written: notebooks/01_good.ipynb" in out
    assert address(course, capsys, "--check")[0] == 0
    nb = nbformat.read(path, as_version=4)
    link = "https://colab.research.google.com/github/someone/course/blob/main/notebooks/01_good.ipynb"
    lines = nb.cells[0].source.split("\n")
    assert lines[1].endswith(f"]({link})") and "make lab" in lines[2]
    assert lines[3:5] == ["", "This one says `what` it is for."]
    assert f'address = "{ADDRESS}"' in nb.cells[1].source and nb.cells[1].execution_count == 1
    assert [cell.cell_type for cell in nb.cells] == ["markdown", "code", "code"]
    readme = (course / "README.md").read_text()
    assert f"    git clone {ADDRESS}\n" in readme and "/blob/main/notebooks/00_start_here.ipynb)" in readme


@pytest.mark.parametrize("wrong", ["", "https://github.com/only-an-owner", "https://example.org/a/b"])
def test_address_refuses_what_colab_cannot_open(course: Path, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    set_pyproject_address(course, wrong)
    status, _, err = address(course, capsys)
    assert status == 2 and "pyproject.toml" in err and "https://github.com/<owner>/<repository>" in err


def test_address_names_a_notebook_without_a_badge_line(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_notebook(course / "notebooks", "01_good", "print(1)")
    path.write_text(path.read_text().replace("{badges}", "nothing"))
    status, _, err = address(course, capsys)
    assert status == 2 and "01_good.ipynb" in err and "{badges}" in err


def test_repository_agrees_with_its_address() -> None:
    assert list((ROOT / "notebooks").glob("*.ipynb"))
    done = script(ROOT, "set_address.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_readme_lists_every_notebook_with_its_minutes() -> None:
    rows = re.findall(r"^\| \[.*\]\(notebooks/(\S+)\) \|.*\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    minutes = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        time = re.search(r"\*\*Time\*\*\D*(\d+) minutes", nbformat.read(path, as_version=4).cells[0].source)
        minutes[path.name] = time and time[1]
    assert dict(rows) == minutes


# The set-up cell, run as a learner's machine would, with stubs for what it imports


HIDE = """
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "tutorial_utils" else found(name)
"""


def run_setup(folder: Path, address: str, hide: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the set-up cell in ``folder``, by default with ``tutorial_utils`` not to be found."""
    code = (HIDE if hide else "") + set_address.SETUP_CELL.format(address=address) + "\nprint(cuda, device)"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def stub(folder: Path) -> None:
    (folder / "tutorial_utils").mkdir(parents=True)
    (folder / "tutorial_utils" / "__init__.py").write_text("cuda, device = 'stub', 'here'")
    (folder / "torch.py").write_text("def manual_seed(seed): return seed")
    (folder / "pip").mkdir()
    (folder / "pip" / "__init__.py").touch()
    (folder / "pip" / "__main__.py").write_text("import sys; print('pip', *sys.argv[1:], flush=True)")


def test_setup_cell_in_a_clone_uses_its_source(tmp_path: Path) -> None:
    stub(tmp_path / "src")
    (tmp_path / "notebooks").mkdir()
    done = run_setup(tmp_path / "notebooks", ADDRESS)
    assert (done.stdout, done.returncode) == ("stub here\n", 0), done.stderr


def test_setup_cell_asks_for_the_address(tmp_path: Path) -> None:
    stub(tmp_path)
    done = run_setup(tmp_path, set_address.PLACEHOLDER)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: Set the course's address in pyproject.toml") and "`make address`" in last
    assert (done.stdout, done.returncode) == ("", 1)


def test_setup_cell_installs_the_package_alone(tmp_path: Path) -> None:
    stub(tmp_path)
    done = run_setup(tmp_path, ADDRESS)
    assert done.stdout == f"pip install --quiet --no-deps git+{ADDRESS}\nstub here\n", done.stderr


def test_setup_cell_prints_and_installs_nothing_where_the_package_is(tmp_path: Path) -> None:
    stub(tmp_path)
    done = run_setup(tmp_path, set_address.PLACEHOLDER, hide=False)
    assert (done.stdout, done.stderr, done.returncode) == ("stub here\n", "", 0)
