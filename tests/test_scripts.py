"""The scripts that execute the notebooks and write the repository's address, tried on small notebooks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import address
import make_overview
import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tutorial_utils import results

ROOT = Path(__file__).resolve().parents[1]
RUNNER = [sys.executable, str(ROOT / "scripts" / "run_notebooks.py")]
URL = "https://github.com/someone/course"
HIDE = """
import sys  # the package of the course is not installed, but for what lies in the folder
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path[:] = [path for path in sys.path if not path.endswith("/src")]
"""


def make_notebook(folder: Path, name: str, *code: str, **metadata: object) -> Path:
    cells = [new_markdown_cell("# A < B\n\nIt is small.", id="head")]
    cells += [new_code_cell(source, id=f"code-{i}", metadata=metadata) for i, source in enumerate(code)]
    path = folder / f"{name}.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TQDM_DISABLE"} | {"MPLBACKEND": "Agg"}
    command = [*RUNNER, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def outputs(path: Path) -> list[str]:
    nb = nbformat.read(path, as_version=4)
    return [output.get("text", output.output_type) for cell in nb.cells for output in cell.get("outputs", [])]


def test_run_reports_failures_and_goes_on(tmp_path: Path) -> None:
    paths = [
        make_notebook(tmp_path, "01_bad", "print('before')", "1 / 0", "print('never')"),
        make_notebook(tmp_path, "02_dead", "import os; os._exit(3)"),
        make_notebook(
            tmp_path,
            "04_good",
            "import os, sys, time; block = bytearray(200 * 2**20); time.sleep(1)",
            "print(sys.executable, os.environ['TQDM_DISABLE'], os.environ['MPLBACKEND'])",
        ),
    ]
    nb = nbformat.read(paths[0], as_version=4)
    nb.cells[3].outputs = [new_output("stream", text="of an earlier run\n")]
    nbformat.write(nb, paths[0])
    broken = tmp_path / "03_broken.ipynb"
    broken.write_text('{"cells": [')
    build = tmp_path / "build"
    done = run("--out", build, *paths, broken)
    assert done.returncode == 1 and not done.stderr
    for line in (
        r"01_bad .*FAILED, In \[2\]: ZeroDivisionError: division by zero",
        r"02_dead .*FAILED, In \[1\]: Kernel died",
        r"03_broken .*FAILED, NotJSONError: .*",
        r"04_good +[1-9]\d*\.\d +[2-9]\d\d  passed",
        r"total .* 3 of 4 failed",
    ):
        assert re.search(f"(?m)^{line}$", done.stdout), done.stdout
    assert outputs(build / "04_good.ipynb") == [f"{sys.executable} 1 module://matplotlib_inline.backend_inline\n"]
    assert outputs(build / "01_bad.ipynb") == ["before\n", "error"]
    assert outputs(paths[0]) == ["of an earlier run\n"]
    assert "before" in (build / "01_bad.html").read_text(encoding="utf-8")
    page = (build / "index.html").read_text(encoding="utf-8")
    assert '<a href="01_bad.html">A &lt; B</a>' in page and "In [2]: ZeroDivisionError" in page


def test_in_place_stores_outputs_and_clean_metadata(tmp_path: Path) -> None:
    kept = {"tags": ["solution"], "jupyter": {"source_hidden": True}, "cellView": "form", "mystnb": {"image": {}}}
    code = "from pathlib import Path\nprint(Path.cwd().name)"
    path = make_notebook(tmp_path, "01_good", code, **kept, collapsed=False, execution={"iopub.status.busy": "2026"})
    bad = make_notebook(tmp_path, "02_bad", "print('new')", "raise ValueError('no')")
    before = bad.read_bytes()

    assert run("--in-place", path, bad).returncode == 1
    assert bad.read_bytes() == before, "a notebook that fails is left as it was"
    assert outputs(path) == [f"{tmp_path.name}\n"]
    nb = nbformat.read(path, as_version=4)
    assert nb.metadata.kernelspec.name == "python3"
    assert nb.metadata.language_info == {"name": "python", "file_extension": ".py", "nbconvert_exporter": "python"}
    assert [cell.id for cell in nb.cells] == ["head", "code-0"] and nb.cells[1].metadata == kept

    first = path.read_bytes()
    assert run("--in-place", path).returncode == 0 and path.read_bytes() == first


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_ctrl_c_ends_in_one_line_and_with_the_kernel(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = f"import os, pathlib, time; pathlib.Path({str(note)!r}).write_text(str(os.getpid())); time.sleep(300)"
    command = [*RUNNER, "--out", str(tmp_path), str(make_notebook(tmp_path, "01_slow", code))]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (note.exists() and note.read_text()) and running.poll() is None:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=60)
    assert (running.returncode, stderr) == (130, "\nInterrupted in 01_slow.ipynb.\n")
    assert not psutil.pid_exists(int(note.read_text()))


def test_run_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()  # a folder below a file: not even root can make it
    done = run("--out", tmp_path / "file" / "build")
    assert done.returncode == 2 and "cannot write to" in done.stderr and "--out" in done.stderr


def test_a_missing_file_is_named_before_anything_runs(tmp_path: Path) -> None:
    path = make_notebook(tmp_path, "01_good", "print(1)")
    done = run("--out", tmp_path / "build", path, tmp_path / "02_none.ipynb")
    assert done.returncode == 2 and done.stderr.endswith(f"there is no file {tmp_path / '02_none.ipynb'}\n")
    assert not (tmp_path / "build").exists()


# The address


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A small course with an address, and files that do not have it yet."""
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nRepository = "https://github.com/someone/course.git"\n')
    (tmp_path / "README.md").write_text("# Course\n\n[![Open in Colab](old)](old)\n\n    git clone old\n")
    (tmp_path / "notebooks").mkdir()
    make_notebook(tmp_path / "notebooks", "01_good", "print(1)")
    return tmp_path


def test_address_is_written(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = course / "notebooks" / "01_good.ipynb"
    address.main(course)
    nb = nbformat.read(path, as_version=4)
    link = "https://colab.research.google.com/github/someone/course/blob/main/notebooks/01_good.ipynb"
    lines = nb.cells[0].source.split("\n")
    assert lines[2].endswith(f"]({link})") and "make lab" in lines[3] and lines[4:] == ["", "It is small."]
    assert "https://github.com/someone/course" in nb.cells[1].source and nb.cells[2].source == "print(1)"
    readme = (course / "README.md").read_text()
    assert "    git clone https://github.com/someone/course\n" in readme
    assert "/blob/main/notebooks/00_start_here.ipynb)" in readme

    nb.cells[1].execution_count = 1
    nbformat.write(nb, path)
    before = path.read_bytes()
    address.main(course)
    assert path.read_bytes() == before and capsys.readouterr().out == "written: 01_good.ipynb\n"


@pytest.mark.parametrize("wrong", ["", "https://github.com/only-an-owner", "https://example.org/a/b"])
def test_address_refuses_what_colab_cannot_open(course: Path, wrong: str) -> None:
    (course / "pyproject.toml").write_text(f'[project.urls]\nRepository = "{wrong}"\n')
    with pytest.raises(ValueError, match="https://github.com/<owner>/<repository>"):
        address.main(course)


STUB = "cuda, device = 'stub', 'here'"
RUN = "from IPython.core.interactiveshell import InteractiveShell as S; S.instance(colors='NoColor').run_cell({!r})"


@pytest.mark.parametrize(
    ("files", "pip", "printed"),
    [
        ({"tutorial_utils/__init__.py": STUB}, "raise SystemExit('not called')", ["device: here"]),
        ({}, "open('tutorial_utils.py', 'w').write(STUB)", ["device: here"]),
        ({}, "sys.exit('pip says what is wrong')", ["pip says what is wrong", "Put src/tutorial_utils beside"]),
    ],
    ids=["it is there", "it is installed", "it cannot be installed"],
)
def test_set_up_cell(tmp_path: Path, files: dict[str, str], pip: str, printed: list[str]) -> None:
    """The package is imported, or installed first. Stubs stand in the folder for it, for torch and for pip."""
    files = files | {"torch.py": "def manual_seed(seed): return seed", "pip/__init__.py": ""}
    check = f"assert sys.argv[1:] == ['install', '-q', '--no-deps', 'git+{URL}'], sys.argv"
    files["pip/__main__.py"] = f"import sys; STUB = {STUB!r}; {check}; {pip}"
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    code = HIDE + RUN.format(address.SETUP_CELL.format(address=URL))
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert all(text in done.stdout + done.stderr for text in printed), done.stdout + done.stderr
    assert "CalledProcessError" not in done.stdout + done.stderr


def test_readme_has_the_address() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert address.render_readme(text, address.read()) == text, "run `make address`"


@pytest.mark.parametrize(
    ("where", "file", "row"),
    [
        ("README's table", "README.md", r"^\| \[(\d\d) .*\]\(notebooks/\1_\S+\) \|.*\| (\d+) \|"),
        ("the table in 00", "notebooks/00_start_here.ipynb", r"\| (\d\d) [^|]* \| (\d+) minutes \|"),
    ],
)
def test_a_table_lists_every_notebook_with_its_minutes(where: str, file: str, row: str) -> None:
    minutes = {}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        found = re.search(r"\*\*Time\*\*\D*(\d+) minutes", nbformat.read(path, as_version=4).cells[0].source)
        minutes[path.name[:2]] = found and found[1]
    rows = re.findall(f"(?m){row}", (ROOT / file).read_text(encoding="utf-8"))
    assert dict(rows) == minutes, f"{where} has other notebooks or minutes than the notebooks"


def test_the_readmes_picture_is_described_by_what_it_shows() -> None:
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    alternative = re.search(r"!\[([^]]*)\]\(docs/overview.png\)", text)[1]
    graphs = results.load("graphs")
    for name in make_overview.FORMS.values():
        assert f"{graphs[name].median:,.0f} µs" in alternative, name
