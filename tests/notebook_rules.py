"""The conventions of the course's notebooks, as functions that name what is wrong and the way out.

Every function in :data:`RULES` takes a :class:`Notebook` and returns a list of messages, empty where the notebook keeps
the rule. Cells are counted from 0, Markdown cells included.
"""

from __future__ import annotations

import ast
import copy
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import nbformat
import set_address
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode
from nbval.plugin import find_comment_markers, find_metadata_tags, get_sanitize_patterns

ROOT = Path(__file__).resolve().parents[1]
SANITIZE = Path(__file__).with_name("nbval_sanitize.cfg")
LAST_HEADINGS = ["In practice", "Exercises", "What next", "Further reading"]
IGNORE_TAG = "nbval-ignore-output"
MAX_BYTES = 400_000
MAX_LINES = 25
MAX_IGNORED = 0.15
MIN_COMPARED = 0.60
NEVER_COMPARED = {"image/png", "image/jpeg", "application/vnd.jupyter.widget-view+json"}
"""The representations that nbval leaves out of its comparison."""


@dataclass(frozen=True)
class Notebook:
    """A notebook with what the rules need to know of its file.

    Attributes:
        name: file name, such as ``02_static_buffers.ipynb``.
        nb: the content, exactly as stored (nothing is repaired).
        size: bytes of the file.
        root: root of the repository; the notebook lies in its ``notebooks`` folder.
    """

    name: str
    nb: NotebookNode
    size: int
    root: Path = ROOT

    @property
    def number(self) -> str:
        return self.name[:2]

    def code_cells(self) -> Iterator[tuple[int, NotebookNode]]:
        return ((i, cell) for i, cell in enumerate(self.nb.cells) if cell.cell_type == "code")

    def markdown_cells(self) -> Iterator[tuple[int, NotebookNode]]:
        return ((i, cell) for i, cell in enumerate(self.nb.cells) if cell.cell_type == "markdown")

    def headings(self, level: int) -> list[tuple[int, str]]:
        """Return (cell index, text) of every Markdown heading of this level."""
        start = "#" * level + " "
        return [
            (i, line[len(start) :].strip())
            for i, cell in self.markdown_cells()
            for line in _without_code(cell.source).splitlines()
            if line.startswith(start)
        ]


def load(path: Path, root: Path = ROOT) -> Notebook:
    """Read a notebook as it is stored; ``nbformat.read`` would repair it."""
    text = path.read_text(encoding="utf-8")
    return Notebook(path.name, nbformat.v4.reads(text), path.stat().st_size, root)


def load_all(root: Path = ROOT) -> list[Notebook]:
    return [load(path, root) for path in sorted((root / "notebooks").glob("*.ipynb"))]


# What nbval does with a cell --------------------------------------------------------------------------------------


def compared_texts(cell: NotebookNode) -> Iterator[str]:
    """Yield the texts of a code cell's outputs that nbval compares, before they are sanitised."""
    for output in cell.outputs:
        if output.output_type == "stream":
            yield output.text
        for kind, value in output.get("data", {}).items():
            if kind not in NEVER_COMPARED and isinstance(value, str):
                yield value


def output_kind(cell: NotebookNode) -> str:
    """Return what nbval does with a code cell's output: ``skipped``, ``ignored``, ``compared`` or ``empty``.

    The first two follow from nbval's own reading of tags and comments. ``empty``: the comparison sees no text.
    """
    options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    if options.get("skip"):
        return "skipped"
    if options.get("check") is False:
        return "ignored"
    return "compared" if any(text.strip() for text in compared_texts(cell)) else "empty"


@functools.cache
def sanitise_patterns() -> dict[str, str]:
    """Read ``nbval_sanitize.cfg`` with nbval's own reader."""
    return dict(get_sanitize_patterns(SANITIZE.read_text(encoding="ascii")))


def sanitise(text: str) -> str:
    """Apply ``nbval_sanitize.cfg`` in the way nbval does."""
    for pattern, replacement in sanitise_patterns().items():
        text = re.sub(pattern, replacement, text)
    return text


# Helpers ----------------------------------------------------------------------------------------------------------


def _without_code(markdown: str) -> str:
    """Blank out fenced blocks and code spans, so that a rule sees prose alone."""
    markdown = re.sub(r"^```.*?^```[ ]*$", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "``", markdown)


def _tree(source: str) -> ast.Module | None:
    """Parse a cell, magics included; None where it is not Python."""
    try:
        return ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return None


def _called_name(node: ast.AST) -> str:
    """Return the last part of what a call calls: ``assert_close`` for ``torch.testing.assert_close(...)``."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def _texts(cell: NotebookNode) -> Iterator[str]:
    """Yield every text of a cell's outputs, pictures left out."""
    yield from compared_texts(cell)
    for output in cell.outputs:
        if output.output_type == "error":
            yield "\n".join([output.ename, output.evalue, *output.traceback])


def _has_image(cell: NotebookNode) -> bool:
    return any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", {}))


def _search_outputs(notebook: Notebook, patterns: Iterable[tuple[str, str]], way_out: str) -> list[str]:
    """Report the first match of each (pattern, what it is) in each cell's outputs."""
    messages = []
    for i, cell in notebook.code_cells():
        for pattern, what in patterns:
            found = next((m for text in _texts(cell) if (m := re.search(pattern, text))), None)
            if found:
                messages.append(f"{notebook.name}, cell {i}: the output holds {what} ({found.group(0)!r}); {way_out}")
    return messages


# The file ---------------------------------------------------------------------------------------------------------


def file_name(notebook: Notebook) -> list[str]:
    if re.fullmatch(r"\d\d_[a-z0-9]+(_[a-z0-9]+)*\.ipynb", notebook.name):
        return []
    return [f"{notebook.name}: rename it to the form NN_name.ipynb, in lower case with underscores"]


def notebook_format(notebook: Notebook) -> list[str]:
    nb, name = notebook.nb, notebook.name
    if (nb.get("nbformat"), nb.get("nbformat_minor", 0)) < (4, 5):
        return [f"{name}: is of format {nb.get('nbformat')}.{nb.get('nbformat_minor')}; save it in format 4.5 or later"]
    messages = []
    ids = [cell.get("id") for cell in nb.cells]
    for i, cell_id in enumerate(ids):
        if cell_id is None:
            messages.append(f"{name}, cell {i}: has no id; save the notebook from JupyterLab again")
        elif cell_id in ids[:i]:
            messages.append(f"{name}, cell {i}: has the id {cell_id!r} of an earlier cell; give it an id of its own")
    kernel = nb.metadata.get("kernelspec", {}).get("name")
    if kernel != "python3":
        messages.append(f"{name}: names the kernel {kernel!r}; choose the kernel `python3`, which every machine has")
    if not messages:
        try:
            nbformat.validate(copy.deepcopy(nb))  # a copy, since it may repair
        except nbformat.ValidationError as error:
            reason = str(error).splitlines()[0]
            messages.append(f"{name}: is not a valid notebook ({reason}); save it from JupyterLab again")
    return messages


def file_size(notebook: Notebook) -> list[str]:
    if notebook.size < MAX_BYTES:
        return []
    return [
        f"{notebook.name}: {notebook.size / 1000:.0f} kB, {MAX_BYTES / 1000:.0f} kB is the limit; "
        "draw smaller pictures or fewer points"
    ]


# Opening, sections, exercises -------------------------------------------------------------------------------------


def opening(notebook: Notebook) -> list[str]:
    name = notebook.name
    cells = notebook.nb.cells
    if not cells or cells[0].cell_type != "markdown":
        return [f"{name}, cell 0: is not Markdown; begin with the title, `# {notebook.number} · ...`"]
    lines = cells[0].source.splitlines()
    messages = []

    def refuse(what: str, way_out: str) -> None:
        messages.append(f"{name}, cell 0: {what}; {way_out}")

    title = re.fullmatch(r"# (\d\d) · \S.*", lines[0]) if lines else None
    if not title:
        refuse("its first line is no title", f"write `# {notebook.number} · Title`")
    elif title.group(1) != notebook.number:
        refuse(f"the title's number is {title.group(1)}", f"write {notebook.number}, as in the file name")
    will = next((i for i, line in enumerate(lines) if line.startswith("**You will**")), None)
    if will is None:
        refuse("`**You will**` is missing", "list three to five outcomes under it")
    else:
        after = [line for line in lines[will + 1 :] if line.strip()]
        bullets = next((i for i, line in enumerate(after) if not re.match(r"([-*] |\s)", line)), len(after))
        count = sum(bool(re.match(r"[-*] ", line)) for line in after[:bullets])
        if not 3 <= count <= 5:
            refuse(f"`**You will**` is followed by {count} bullets", "list three to five outcomes")
        purpose = [line for line in lines[1:will] if line.strip() and not re.match(r"\[!\[|On your own machine", line)]
        if not any(line.rstrip().endswith(".") for line in purpose):
            refuse("no sentence between the badge and `**You will**`", "say in one what the notebook is for")
    for label, example in (("You need", "what to have read, and whether a GPU helps"), ("Time", "minutes and seconds")):
        line = next((line for line in lines if line.startswith(f"**{label}**")), "")
        if len(line) < len(label) + 10 or (label == "Time" and not re.search(r"\d", line)):
            refuse(f"the line `**{label}**` is missing or empty", f"state {example}")
    if len(notebook.headings(1)) > 1:
        i, text = notebook.headings(1)[1]
        messages.append(f"{name}, cell {i}: `# {text}` is a second title; make it a section, `## {text}`")
    return messages


def address(notebook: Notebook) -> list[str]:
    """The badge line and the set-up cell are what ``scripts/set_address.py`` writes."""
    try:
        rendered = set_address.render(copy.deepcopy(notebook.nb), notebook.name)
    except ValueError as error:
        return [f"{error} Add a line `{{badges}}` under the title, and run `make address`"]
    if len(rendered.cells) != len(notebook.nb.cells):
        return [f"{notebook.name}, cell 1: is not the set-up cell; run `make address`, which inserts it"]
    return [
        f"{notebook.name}, cell {i}: its {what} is not the one that every notebook has; run `make address`"
        for i, what in ((0, "badge"), (1, "set-up cell"))
        if rendered.cells[i].source != notebook.nb.cells[i].source
    ]


def sections(notebook: Notebook) -> list[str]:
    found = [text for _, text in notebook.headings(2)]
    if found[-len(LAST_HEADINGS) :] != LAST_HEADINGS:
        order = ", ".join(f"`## {heading}`" for heading in LAST_HEADINGS)
        return [f"{notebook.name}: its last headings are {found[-len(LAST_HEADINGS) :]}; end with {order}"]
    content = found[: -len(LAST_HEADINGS)]
    messages = [
        f"{notebook.name}, cell {i}: `## {text}` stands twice; each heading names one section"
        for n, (i, text) in enumerate(notebook.headings(2))
        if text in found[:n]
    ]
    if len(content) < 3:
        messages.append(f"{notebook.name}: {len(content)} sections before `## In practice`; write at least three")
    return messages


def exercises(notebook: Notebook) -> list[str]:
    """Each exercise is a task in Markdown, then one code cell with a marked solution and its check."""
    name, cells = notebook.name, notebook.nb.cells
    second = notebook.headings(2)
    start = next((i for i, text in second if text == "Exercises"), None)
    end = next((i for i, text in second if text == "What next"), None)
    if start is None or end is None:
        return []  # `sections` reports it
    tasks = [(i, text) for i, text in notebook.headings(3) if start <= i < end]
    messages = []
    if not 1 <= len(tasks) <= 3:
        messages.append(
            f"{name}, cell {start}: {len(tasks)} headings `### Exercise k: ...`; set one to three exercises"
        )
    for k, (i, text) in enumerate(tasks, start=1):
        if not re.fullmatch(rf"Exercise {k}: \S.*", text):
            messages.append(f"{name}, cell {i}: the heading is `### {text}`; write `### Exercise {k}: name`")
        stop = tasks[k][0] if k < len(tasks) else end
        code = [j for j in range(i + 1, stop) if cells[j].cell_type == "code"]
        if code != [i + 1]:
            messages.append(
                f"{name}, cell {i}: exercise {k} is followed by code cells {code}; put one right after its task"
            )
            continue
        messages += [f"{name}, cell {i + 1}: {message}" for message in _solution(notebook, cells[i + 1].source, k)]
    for i, cell in notebook.code_cells():
        if "SOLUTION" in cell.source and not start < i < end:
            messages.append(f"{name}, cell {i}: a solution outside `## Exercises`; move it there")
    return messages


def _solution(notebook: Notebook, source: str, k: int) -> list[str]:
    lines = [line.strip() for line in source.splitlines()]
    marks = [i for i, line in enumerate(lines) if re.match(r"#+\s*(BEGIN|END)\b.*SOLUTION", line)]
    if [lines[i] for i in marks] != ["### BEGIN SOLUTION", "### END SOLUTION"]:
        return ["needs one line `### BEGIN SOLUTION` and after it one line `### END SOLUTION`"]
    begin, end = marks
    if not any(line and not line.startswith("#") for line in lines[begin + 1 : end]):
        return ["the solution is empty; write it between the two marks"]
    check = f"check_{notebook.number}_{k}"
    tree = _tree(source)
    calls = [node for node in ast.walk(tree) if _called_name(node) == check] if tree else []
    if not any(node.lineno > end + 1 and ast.unparse(node.func) == f"exercises.{check}" for node in calls):
        return [f"call `exercises.{check}(...)` after `### END SOLUTION`"]
    module = notebook.root / "src" / "tutorial_utils" / "exercises.py"
    defined = {n.name for n in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(n, ast.FunctionDef)}
    if check not in defined:
        return [f"`{check}` is not defined in tutorial_utils.exercises; write it there"]
    return []


# Code cells -------------------------------------------------------------------------------------------------------


def execution_counts(notebook: Notebook) -> list[str]:
    counts = [cell.get("execution_count") for _, cell in notebook.code_cells()]
    if counts == list(range(1, len(counts) + 1)):
        return []
    n, (i, _) = next((n, c) for n, c in enumerate(notebook.code_cells()) if counts[n] != n + 1)
    return [
        f"{notebook.name}, cell {i}: its execution count is {counts[n]}, not {n + 1}; run `make refresh`, "
        "which executes the notebook once from a clean kernel"
    ]


def code_cells(notebook: Notebook) -> list[str]:
    messages = []
    for i, cell in notebook.code_cells():
        lines = cell.source.splitlines()
        code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
        if not code:
            messages.append(f"{notebook.name}, cell {i}: holds no code; delete it or make it Markdown")
        if len(lines) > MAX_LINES:
            messages.append(
                f"{notebook.name}, cell {i}: {len(lines)} lines of code, {MAX_LINES} is the limit; split it"
            )
    return messages


def tags(notebook: Notebook) -> list[str]:
    """No cell is skipped, no exception expected by tag, and no comment steers nbval."""
    messages = []
    for i, cell in enumerate(notebook.nb.cells):
        allowed = {IGNORE_TAG} if cell.cell_type == "code" else set()
        where = f"{notebook.name}, cell {i}"
        for tag in cell.metadata.get("tags", []):
            if tag not in allowed:
                messages.append(
                    f"{where}: has the tag {tag!r}; only {IGNORE_TAG!r} is allowed, and on code cells alone "
                    "(catch an expected error and print its class and first line)"
                )
        extra = set(cell.metadata) - {"tags"}
        if extra:
            messages.append(f"{where}: has metadata {sorted(extra)}; `make refresh` stores the notebook without it")
        if cell.cell_type == "code" and (mark := re.search(r"#\s*\w*(NBVAL|PYTEST_VALIDATE)_\w+", cell.source)):
            messages.append(
                f"{where}: the comment `{mark.group(0)}` steers nbval; use the tag {IGNORE_TAG!r} where it cannot be "
                "avoided, and skip no cell"
            )
    return messages


def ignored_cells_assert(notebook: Notebook) -> list[str]:
    """A cell whose output is not compared asserts what it claims, in the cell itself."""
    return [
        f"{notebook.name}, cell {i}: its output is ignored and nothing is asserted; add an `assert`, "
        "`torch.testing.assert_close` or a check of `exercises`, or print a form that can be compared"
        for i, cell in notebook.code_cells()
        if output_kind(cell) == "ignored" and not _asserts(cell.source)
    ]


def _asserts(source: str) -> bool:
    tree = _tree(source)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Assert) and not isinstance(node.test, ast.Constant | ast.Tuple):
            return True
        if _called_name(node) in ("assert_close", "assert_equal") or _called_name(node).startswith("check_"):
            return True
    return False


# Outputs ----------------------------------------------------------------------------------------------------------


def streams(notebook: Notebook) -> list[str]:
    messages = []
    for i, cell in notebook.code_cells():
        for output in cell.outputs:
            if output.output_type == "error":
                messages.append(
                    f"{notebook.name}, cell {i}: stopped with {output.ename}; repair it, or catch an expected error "
                    "and print its class and first line"
                )
            elif output.output_type == "stream" and output.name != "stdout":
                messages.append(
                    f"{notebook.name}, cell {i}: wrote to {output.name}; silence its cause (TQDM_DISABLE=1 and "
                    "KINETO_LOG_LEVEL=6 for progress bars and the profiler)"
                )
    return messages


def warnings_text(notebook: Notebook) -> list[str]:
    patterns = [(r"\b\w*Warning: |\bwarnings\.warn\(", "a warning")]
    return _search_outputs(notebook, patterns, "remove its cause; a warning also carries a path")


def machine_paths(notebook: Notebook) -> list[str]:
    """No absolute path, user or host name: they differ on every machine, and are nobody's business."""
    folders = "home|root|tmp|usr|opt|var|etc|mnt|srv|private|proc|Users|Library|content|kaggle|workspace"
    patterns = [
        (rf"(?<![\w.:/])/(?:{folders})/[\w.]*|\b[A-Za-z]:\\\w*", "an absolute path"),
        (re.escape(str(ROOT)) + r"|\b(?:site|dist)-packages\b", "an installation path"),
        (r"\b[\w.-]+@[\w-]+[:~]|\b(?i:user|login|user ?name|host ?name)[:=]\s*\S+", "a user or host name"),
        (r"ipykernel_\d+", "a temporary file of the kernel"),
    ]
    return _search_outputs(notebook, patterns, "print `path.name`, or a path relative to the repository")


def terminal_codes(notebook: Notebook) -> list[str]:
    return _search_outputs(notebook, [(r"\x1b", "an ANSI escape")], "print plain text")


def progress_bars(notebook: Notebook) -> list[str]:
    patterns = [(r"\d%\||\d(?:it|s)/(?:s|it)\b|[█▏▎▍▌▋▊▉]|\r", "progress-bar text")]
    return _search_outputs(notebook, patterns, "use `tqdm` and execute with TQDM_DISABLE=1, as `make refresh` does")


def vector_pictures(notebook: Notebook) -> list[str]:
    return [
        f"{notebook.name}, cell {i}: shows an SVG picture, whose text nbval compares; draw it as PNG"
        for i, cell in notebook.code_cells()
        for output in cell.outputs
        if "image/svg+xml" in output.get("data", {}) or "<svg" in output.get("data", {}).get("text/html", "")
    ]


def tensor_reprs(notebook: Notebook) -> list[str]:
    patterns = [(r"\btensor\(|\bdevice='|\bdevice\(type=|\bParameter containing", "a printed tensor")]
    return _search_outputs(notebook, patterns, "print its shape, a number or a boolean: a GPU prints tensors otherwise")


def object_reprs(notebook: Notebook) -> list[str]:
    patterns = [
        (r"<matplotlib|\[<|<Axes|<(?:Bar|ErrorBar|Stem)Container|\bText\(", "a bare return value of Matplotlib"),
        (r"\b0x[0-9a-fA-F]{4,}", "a memory address"),
    ]
    return _search_outputs(notebook, patterns, "end a plotting cell with `plt.show()`, and print no object's repr")


def measured_numbers(notebook: Notebook) -> list[str]:
    """A number with three or more decimals is a measurement, unless the notebook itself states it."""
    # An exact 0.1307 in the code or the text is a setting or a quotation, and equal on every machine.
    stated = set(re.findall(r"\d+\.\d+", "\n".join(cell.source for cell in notebook.nb.cells)))
    messages = []
    for i, cell in notebook.code_cells():
        if output_kind(cell) != "compared":
            continue
        for text in compared_texts(cell):
            for number in re.findall(
                r"(?<![\w.])\d+\.\d{3,}(?:[eE][-+]?\d+)?|(?<![\w.])\d\.\d+[eE][-+]?\d+", sanitise(text)
            ):
                if number not in stated:
                    messages.append(
                        f"{notebook.name}, cell {i}: prints {number}, which may differ elsewhere; write a time, ratio "
                        "or size as `12.3 ms`, `3.4x`, `5.6 MiB`, a result as `loss=0.123` or `acc=0.945`, or round it"
                    )
    return messages


def described_pictures(notebook: Notebook) -> list[str]:
    cells = notebook.nb.cells

    def prose(i: int) -> str:
        if not 0 <= i < len(cells) or cells[i].cell_type != "markdown":
            return ""
        lines = [line for line in cells[i].source.splitlines() if not line.startswith("#")]
        return re.sub(r"!\[.*?\]\(.*?\)|\]\(.*?\)", "", " ".join(lines)).strip()  # what a reader sees as text

    messages = [
        f"{notebook.name}, cell {i}: no Markdown cell beside its picture says what it shows; write a sentence there"
        for i, cell in notebook.code_cells()
        if _has_image(cell) and max(len(prose(i - 1)), len(prose(i + 1))) < 40
    ]
    for i, cell in notebook.markdown_cells():
        for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)", _without_code(cell.source)):
            if len(alt.strip()) < 10:
                messages.append(
                    f"{notebook.name}, cell {i}: the picture {target} has the alternative text {alt!r}; describe it"
                )
    return messages


# Prose ------------------------------------------------------------------------------------------------------------


def links(notebook: Notebook) -> list[str]:
    """Relative links lead to files of the repository, others begin with https."""
    messages = []
    folder = notebook.root / "notebooks"
    slugs = {text.replace(" ", "-") for level in (1, 2, 3, 4) for _, text in notebook.headings(level)}
    for i, cell in notebook.markdown_cells():
        text = _without_code(cell.source)
        targets = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r"\b(?:src|href)=[\"']([^\"']+)", text)
        for target in targets:
            where = f"{notebook.name}, cell {i}: the link {target}"
            if re.match(r"https://|attachment:|mailto:", target):
                continue
            if re.match(r"[a-zA-Z][a-zA-Z+.-]*:", target) or target.startswith("/"):
                messages.append(f"{where} is neither relative nor https; write one of these")
                continue
            path, _, fragment = unquote(target).partition("#")
            if not path:
                if fragment not in slugs:
                    messages.append(f"{where} names no heading of this notebook; write it with hyphens for spaces")
                continue
            resolved = (folder / path).resolve()
            if not resolved.is_relative_to(notebook.root.resolve()):
                messages.append(f"{where} leads out of the repository; link to a file inside it")
            elif not resolved.exists():
                messages.append(f"{where} leads to no file; paths begin in the folder notebooks/")
    return messages


FORBIDDEN = re.compile(
    r"\b(obviously|simply|basically|needless to say|awesome|amazing|seamless(?:ly)?|delve|div(?:e|ing) into|let's dive|"
    r"blazing(?:ly)?|lorem ipsum)\b|\b(TODO|FIXME|TBD|XXX)\b"
)


def prose(notebook: Notebook) -> list[str]:
    messages = []
    for i, cell in notebook.markdown_cells():
        text = _without_code(cell.source)
        where = f"{notebook.name}, cell {i}"
        if mark := re.search(r"[^\s!]*[^\s!\[]!(?=[\s)*_\"']|$)", text, flags=re.MULTILINE):
            messages.append(f"{where}: the exclamation mark in {mark.group(0)!r}; end the sentence with a full stop")
        word = FORBIDDEN.search(text) or FORBIDDEN.search(text.lower())
        if word:
            messages.append(f"{where}: the word {word.group(0)!r} says nothing or is left over; drop it")
        if emoji := re.search(r"[\U0001F300-\U0001FAFF\u2600-\u26FF\u2728\u274C\u2705]", text):
            messages.append(f"{where}: the emoji {emoji.group(0)}; write words")
    return messages


RULES: dict[str, Callable[[Notebook], list[str]]] = {
    rule.__name__: rule
    for rule in (
        file_name, notebook_format, file_size, opening, address, sections, exercises, execution_counts, code_cells,
        tags, ignored_cells_assert, streams, warnings_text, machine_paths, terminal_codes, progress_bars,
        vector_pictures, tensor_reprs, object_reprs, measured_numbers, described_pictures, links, prose,
    )
}  # fmt: skip


def check(notebook: Notebook) -> dict[str, list[str]]:
    """Apply every rule; return the messages of those that are broken, by the rule's name.

    Where the notebook is not of the right format, the other rules have nothing to stand on.
    """
    if messages := notebook_format(notebook):
        return {"notebook_format": messages}
    return {name: messages for name, rule in RULES.items() if (messages := rule(notebook))}


def check_shares(notebooks: Iterable[Notebook]) -> list[str]:
    """Over all notebooks together: how many outputs may be ignored, and how many have to be compared."""
    kinds = [output_kind(cell) for notebook in notebooks for _, cell in notebook.code_cells()]
    if not kinds:
        return ["there are no code cells; nothing is tested"]
    messages = []
    ignored, compared = kinds.count("ignored") / len(kinds), kinds.count("compared") / len(kinds)
    if ignored > MAX_IGNORED:
        messages.append(
            f"{kinds.count('ignored')} of {len(kinds)} code cells have their output ignored ({ignored:.0%}), "
            f"{MAX_IGNORED:.0%} is the limit; print counts, shapes, booleans, or number and unit instead"
        )
    if compared < MIN_COMPARED:
        messages.append(
            f"{kinds.count('compared')} of {len(kinds)} code cells have an output that is compared ({compared:.0%}), "
            f"at least {MIN_COMPARED:.0%} must; let more cells print what they show"
        )
    return messages
