"""Rows through a model's template: token figures, masks, cuts, and what is wrong with templates."""

from __future__ import annotations

import json

import pytest

from engine.data.template import Template, TemplateError
from engine.errors import UsageError
from tests.support.data import check_rows, lines, of_kind, problems, talk
from tests.support.models import MARKED, PLAIN, make_model
from tui import cli

ROWS = [talk("How long do eggs boil?", "Eight minutes."), talk("What is a roux?", "Fat and flour, cooked together.")]
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% endfor %}"
)
SYSTEM = {"role": "system", "content": "Be brief."}


def test_figures(tmp_path):
    model = str(make_model(tmp_path / "model"))
    report = check_rows(tmp_path, ROWS, model=model, max_length=70)
    # <|im_start|>user\n…<|im_end|>\n<|im_start|>assistant\n…<|im_end|>\n, one token a byte and special word
    lengths = [
        1 + 5 + len(q) + 2 + 1 + 10 + len(a) + 2
        for q, a in (
            ("How long do eggs boil?", "Eight minutes."),
            ("What is a roux?", "Fat and flour, cooked together."),
        )
    ]
    assert report.tokens == {
        "count": sum(lengths), "p50": lengths[0], "p90": lengths[1], "p99": lengths[1], "max": lengths[1],
        "truncated_share": 0.0, "trained_share": (14 + 1 + 31 + 1) / sum(lengths),
    }  # fmt: skip
    assert problems(report) == set()


def test_cut_rows_and_rows_of_which_nothing_is_left(tmp_path):
    rows = [*ROWS, talk("word " * 30, "An answer."), talk("Short question?", "word " * 30)]
    report = check_rows(tmp_path, rows, model=str(make_model(tmp_path / "model")), max_length=80)
    assert lines(report, "truncated") == [3, 4]
    assert lines(report, "no_trained_tokens") == [3]
    assert of_kind(report, "no_trained_tokens")[0].level == "error"


def test_of_an_enormous_row_only_the_beginning_is_tokenized(tmp_path, monkeypatch):
    monkeypatch.setattr("engine.data.tokens.LIMIT", 1000)
    rows = [talk("Short question?", "word " * 2000)]
    report = check_rows(tmp_path, rows, model=str(make_model(tmp_path / "model")), max_length=100)
    assert lines(report, "truncated") == [1]
    assert report.tokens["max"] == pytest.approx(10_036, rel=0.05)


def test_prompt_and_completion_are_masked_without_a_template(tmp_path):
    rows = [{"prompt": "Eggs?", "completion": " Eight."}, {"text": "Eggs take eight minutes."}]
    report = check_rows(tmp_path, rows, model=str(make_model(tmp_path / "model", None)))
    assert report.tokens["count"] == (5 + 7 + 1) + (24 + 1)
    assert report.tokens["trained_share"] == (8 + 25) / 38
    assert not of_kind(report, "no_chat_template")


@pytest.mark.parametrize(
    ("options", "kind", "level"),
    [
        ({"template": PLAIN}, "no_generation_markers", "warning"),
        ({"template": None}, "no_chat_template", "error"),
        ({"template": "{% for m in %}"}, "template_error", "error"),
        (
            {"template": MARKED.replace("'<|im_end|>' }}{% endgeneration", "'' }}{% endgeneration")},
            "eos_not_trained",
            "warning",
        ),
        ({"template": "{{ bos_token }}" + MARKED, "bos": True}, "double_bos", "warning"),
        ({"pad_token": "<|im_end|>"}, "pad_is_eos", "note"),
        ({"pad_token": None}, "pad_is_eos", "note"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_template_problems(options, kind, level, tmp_path):
    report = check_rows(tmp_path, ROWS, model=str(make_model(tmp_path / "model", **options)))
    assert [(f.kind, f.level) for f in report.findings if f.kind != "languages"] == [(kind, level)]


def test_system_turns_refused_and_dropped(tmp_path):
    rows = [ROWS[0], {"messages": [SYSTEM, *ROWS[1]["messages"]]}]
    report = check_rows(tmp_path, rows, model=str(make_model(tmp_path / "refuses", NO_SYSTEM + MARKED)))
    (found,) = of_kind(report, "template_error")
    assert (found.subtype, found.lines, "System role not supported" in found.detail) == ("system", [2], True)
    silent = MARKED.replace("{{ m.content", "{{ '' if m.role == 'system' else m.content")
    report = check_rows(tmp_path, rows, model=str(make_model(tmp_path / "drops", silent)))
    assert [f.level for f in of_kind(report, "system_dropped")] == ["warning"]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{% set n = namespace(_x=1) %}",
        "{% set _ = messages.append(1) %}",
        "{{ dict.__init__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% for i in range(999999999) %}{% endfor %}",
    ],
)
def test_a_template_cannot_get_out_of_its_sandbox(template):
    try:
        text, _spans = Template(template).render(ROWS[0]["messages"])
    except TemplateError:
        return
    assert text == ""


def test_helpers_that_templates_count_on():
    template = Template(
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
        "{{ strftime_now('%Y') | length }}{{ dict(a=1)['a'] }}{% set n = namespace(x=2) %}{{ n.x }}"
    )
    text, spans = template.render([{"role": "user", "content": "<ы>", "tool_calls": None}])
    assert (text, spans) == ('{"role": "user", "content": "<ы>"}412', [])


def test_a_folder_that_is_no_model(tmp_path):
    (tmp_path / "model").mkdir()
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        check_rows(tmp_path, ROWS, model=str(tmp_path / "model"))
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot be read"):
        check_rows(tmp_path, ROWS, model=str(tmp_path / "model"))


def run(capsys, *argv):
    code = cli.main([str(word) for word in argv])
    return code, capsys.readouterr()


def test_preview_marks_what_is_trained_and_what_is_cut(tmp_path, capsys):
    check_rows(tmp_path, [*ROWS, "{broken", {"foo": "\x1b[31m"}])
    model = make_model(tmp_path / "model")
    file = tmp_path / "train.jsonl"
    code, out = run(capsys, "data", "preview", file, "-n", 1, "--model", model, "--max-length", 52)
    assert code == 0
    assert "«Eight minut»~~es." in out.out and "<|im_start|>assistant" in out.out
    code, out = run(capsys, "data", "preview", file, "-n", 9, "--from", 2, "--model", model, "--json")
    rows = json.loads(out.out)["rows"]
    assert [row["line"] for row in rows] == [2, 3, 4]
    first = rows[0]
    assert "".join(part["text"] for part in first["segments"]).startswith("<|im_start|>user\nWhat is a roux?")
    assert [part["text"] for part in first["segments"] if part["state"] == "trained"] == [
        "Fat and flour, cooked together.<|im_end|>"
    ]
    assert (first["mask"], first["trained"], first["cut"]) == ("template", 32, 0)
    code, out = run(capsys, "data", "preview", file, "--from", 3)
    assert code == 0 and "\x1b" not in out.out and "not a training row" in out.out
    code, out = run(capsys, "data", "preview", file, "--from", 30)
    assert code == 2 and "no row 30" in out.err


def test_check_as_a_command(tmp_path, capsys):
    check_rows(tmp_path, [*ROWS, "{broken"])
    file, model = tmp_path / "train.jsonl", make_model(tmp_path / "model")
    code, out = run(capsys, "data", "check", file, "--model", model)
    assert code == 1
    assert "train.jsonl:3: error: not strict JSON" in out.out and "2 of 3 rows can be trained on" in out.out
    assert "longest 67" in out.out
    code, out = run(capsys, "data", "check", file, "--eval", file, "--json")
    document = json.loads(out.out)
    assert code == 1 and out.err == "" and document["tokens"] is None
    assert "train_eval_overlap" in {finding["kind"] for finding in document["findings"]}
    for wrong in (["--max-length", "0"], ["--column", "prompt"], ["--delimiter", "ab"], ["--model", tmp_path / "no"]):
        code, out = run(capsys, "data", "check", file, *wrong)
        assert code == 2 and "error:" in out.err


def test_the_light_side_stays_light(tmp_path):
    import subprocess
    import sys

    check_rows(tmp_path, ROWS)
    code = (
        "import sys; from engine.data.check import check; check([sys.argv[1]], model=sys.argv[2]);"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'pyarrow', 'pandas'} & sys.modules.keys();"
        "assert not heavy, heavy"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "train.jsonl"), str(make_model(tmp_path / "model"))]
    subprocess.run(argv, check=True)
