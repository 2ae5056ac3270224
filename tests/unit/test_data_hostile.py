"""Odd inputs of every kind, and what must be said of each: one line a case."""

from __future__ import annotations

import gzip
import json
import random
import string

import pytest

from engine.data import privacy
from engine.data.check import check
from tests.support.data import check_rows, talk

GOOD = talk("What is the boiling point of water?", "It boils at 100 degrees Celsius.")
LINE = json.dumps(GOOD) + "\n"
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object", "required": ["c"]}}}


def user(content):
    return {"role": "user", "content": content}


def assistant(content):
    return {"role": "assistant", "content": content}


def called(arguments='{"c": 1}', **message):
    call = {"id": "c1", "type": "function", "function": {"name": "w", "arguments": arguments}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call]} | message
    answer = {"role": "tool", "tool_call_id": "c1", "content": "fine"}
    return {"messages": [user("weather now?"), turn, answer, assistant("There you are, done.")], "tools": [TOOL]}


def share(*turns):
    return {"conversations": [{"from": who, "value": text} for who, text in turns]}


ROWS = {
    "answer of invisible characters": ({"messages": [user("a b"), assistant("\u200b\u200b")]}, "empty_content"),
    "question of no-break spaces": ({"messages": [user("\u00a0"), assistant("a b c")]}, "empty_content"),
    "speakers in capitals": (share(("Human", "What is it?"), ("GPT", "A stone.")), "role_case"),
    "arguments with NaN": (called('{"c": NaN}'), "tool_arguments_bad_json"),
    "arguments in single quotes": (called("{'c': 1}"), "tool_arguments_bad_json"),
    "arguments as a list": (called("[1]"), "tool_arguments_bad_json"),
    "arguments encoded twice": (called(json.dumps('{"c": 1}')), "tool_arguments_bad_json"),
    "a required argument is missing": (called('{"d": 1}'), "tool_schema"),
    "calls as a text": (called(tool_calls='[{"id": 1}]'), "tool_arguments_bad_json"),
    "two calls with one id": (called(tool_calls=called()["messages"][1]["tool_calls"] * 2), "tool_call_id_mismatch"),
    "tools that are not JSON": ({**called(), "tools": "[{bad"}, "tool_schema"),
    "answers that differ in spaces": ({"prompt": "q", "chosen": "a b", "rejected": "a  b "}, "chosen_equals_rejected"),
    "a text and messages": ({"prompt": "q", "chosen": "a b", "rejected": [assistant("c d")]}, "non_string_content"),
    "transcripts of two questions": (
        {"chosen": "\n\nHuman: hi\n\nAssistant: yes", "rejected": "\n\nHuman: ho\n\nAssistant: no"},
        "prompt_differs",
    ),
    "selectors that hide bytes": (talk("read it", "a" + "".join(chr(0xE0100 + n) for n in range(9))), "tag_characters"),
    "a filler that shows nothing": (talk("read it to me", "a\u3164b c d"), "zero_width"),
    "a character that is none": (talk("read it to me", "a\uffffb c d"), "control_char"),
    "columns by other names": ({"question": "a b c", "answer": "d e f"}, "missing_messages"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows(name, tmp_path):
    row, kind = ROWS[name]
    report = check_rows(tmp_path, [GOOD, row])
    assert [finding.lines for finding in report.findings if finding.kind == kind] == [[2]]


def test_one_answer_called_good_and_bad(tmp_path):
    rows = [{"prompt": "a b c d", "completion": "e f g h", "label": good} for good in (True, False)]
    kinds = {f.kind: f.lines for f in check_rows(tmp_path, rows).findings}
    assert kinds["label_conflict"] == [1, 2] and "duplicate" not in kinds


FILES = {
    "CR alone between rows": ("a.jsonl", (LINE + LINE).replace("\n", "\r"), "line_endings", 2),
    "CSV of a spreadsheet": ("a.csv", "sep=;\nprompt;completion\na b c;d e f\n", None, 1),
    "an index column": ("a.csv", ",prompt,completion\n0,a b c,d e f\n", "csv_header", 1),
    "CSV with CR alone": ("a.csv", "prompt,completion\ra b c,d e f\r", "line_endings", 1),
    "CSV named JSON lines": ("a.jsonl", "prompt,completion\na b c,d e f\n", "container", 1),
    "JSON lines named CSV": ("a.csv", LINE, "container", 1),
    "a zero byte in CSV": ("a.csv", "prompt,completion\na\0 b c,d e f\ng h,i j k\n", "control_char", 2),
    "a name that says packed": ("a.jsonl.gz", LINE, "compressed", 1),
    "a web page": ("a.jsonl", "<!DOCTYPE html><html>404</html>", "binary", 0),
    "a pointer of Git LFS": ("a.jsonl", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "binary", 0),
    "a PDF": ("a.jsonl", "%PDF-1.4\n%abc\n", "binary", 0),
    "packed twice": ("a.jsonl.gz", gzip.compress(gzip.compress(LINE.encode())), "binary", 0),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name, tmp_path):
    file, content, kind, usable = FILES[name]
    path = tmp_path / file
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    report = check([str(path)])
    assert report.usable == usable
    assert kind is None or kind in {finding.kind for finding in report.findings}
    assert kind is not None or not [f for f in report.findings if f.level == "error"]


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("Привет, как дела сегодня?", "koi8-r", "koi8-r"),
        ("Привет, как дела сегодня?", "cp1251", "cp1251"),
        ("日本語のテストをします", "shift_jis", "shift_jis"),
        ("Où est passé l'été dernier?", "latin-1", "cp1252"),
        ("ağaç yaş ışık şişe ığdır", "cp1254", "cp1254"),
    ],
)
def test_code_pages_are_named(text, encoding, name, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(talk(text, "ok then, fine"), ensure_ascii=False).encode(encoding) + b"\n")
    (found,) = [finding for finding in check([str(path)]).findings if finding.kind == "encoding"]
    assert name in found.detail and found.extra["byte_offset"] > 30


RANDOM = random.Random(5)


def letters(count, alphabet=string.ascii_letters + string.digits):
    return "".join(RANDOM.choices(alphabet, k=count))


def hexes(count):
    return letters(count, "0123456789abcdef")


SECRETS = {
    "mailgun": "key-" + hexes(32), "linear": "lin_api_" + letters(40), "notion": "ntn_" + letters(46),
    "figma": "figd_" + letters(40), "vault": "hvs." + letters(90), "docker": "dckr_pat_" + letters(27),
    "atlassian": "ATATT3xFfGF0" + letters(180), "terraform": letters(14) + ".atlasv1." + letters(67),
    "grafana": "glsa_" + letters(32) + "_" + hexes(8), "supabase": "sbp_" + hexes(40), "vk": "vk1.a." + letters(80),
    "mapbox": "sk.eyJ1" + letters(60) + "." + letters(22),
    "heroku": "HEROKU_API_KEY=" + "-".join(hexes(size) for size in (8, 4, 4, 4, 12)),
    "redis": "redis://:p4ssW0rdX9@cache.host:6379", "sshpass": "sshpass -p 'Zx9kQ2mLpT!' ssh root@host",
    "curl": "curl -u admin:Zx9kQ2mLpT https://x.y",
    "putty": "PuTTY-User-Key-File-2: ssh-rsa\nPrivate-Lines: 8\n" + letters(99),
    "discord": "M" + letters(23) + "." + letters(6) + "." + letters(27), "square": "sq0atp-" + letters(22),
}  # fmt: skip


@pytest.mark.parametrize("name", SECRETS)
def test_keys_of_services(name):
    assert "secret" in {kind for kind, *_place in privacy.find(f"Here it is: {SECRETS[name]} ok")}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<mailto:bob@x.io>", "email"),
        ("E-mail:anna@example.com", "email"),
        ("anna (at) example (dot) com", "email"),
        ("Contact: o'brien@mail.ie", "email"),
        ("89161234567", "phone_ru"),
        ("0212 345 67 89", "phone_tr"),
        ("4111.1111.1111.1111", "credit_card"),
        ("4111\u00a01111\u00a01111\u00a01111", "credit_card"),
        ("de89370400440532013000", "iban"),
        ("TC kimlik 100 000 001 46", "tckn_tr"),
        ("my social security number is 123 45 6789", "ssn_us"),
        ("паспорт серия 4508 номер 123456", "passport_ru"),
        ("http://185.12.44.7/x", "ip"),
    ],
)
def test_personal_data_as_people_write_it(text, kind):
    assert [found[1] for found in privacy.find(text)] == [kind]


@pytest.mark.parametrize(
    "text",
    [
        "postgres://app:secret@db.example.com/x", "idempotency_key: 550e8400-e29b-41d4-a716-446655440000",
        "https://user@host.com/path", "order 1234567890123456", "It's meet at (dot) the corner", "commit " + hexes(40),
        "use -u name: see the manual", "primary key = 550e8400-e29b-41d4-a716-446655440000",
    ],
)  # fmt: skip
def test_what_is_no_personal_data(text):
    assert [found for found in privacy.find(text) if found[0] == "pii"] == []
