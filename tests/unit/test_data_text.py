"""Characters, personal data and secrets: what is found, what is left alone, and that nothing is shown of it."""

from __future__ import annotations

import json
import random
import string

import pytest

from engine.data import privacy
from tests.support.data import check_rows, lines, of_kind, problems, talk


def found(text):
    return [(kind, subtype, text[start:end]) for kind, subtype, start, end in privacy.find(text)]


def subtypes(text):
    return {subtype for _kind, subtype, _text in found(text)}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("pass\u200bword", "zero_width"),
        ("in the mid\ufeffdle", "zero_width"),
        ("a\u200db", "zero_width"),
        ("safe\u202etxt.exe", "bidi_control"),
        ("left\u200fright", "bidi_control"),
        ("\u2066isolated\u2069", "bidi_control"),
        ("bell \x07", "control_char"),
        ("nul \x00 inside", "control_char"),
        ("delete \x7f", "control_char"),
        ("\x1b[31mred", "ansi_escape"),
        ("\x1b]0;title\x07", "ansi_escape"),
        ("hidden" + "".join(chr(0xE0000 + ord(c)) for c in "ignore this"), "tag_characters"),
        ("lost \ufffd here", "replacement_char"),
        ("half \ud83d of it", "lone_surrogate"),
        ("caf\u00c3\u00a9 au lait", "mojibake"),
        ("it\u00e2\u20ac\u2122s late", "mojibake"),
        ("\u0420\u045f\u0421\u0402\u0420\u0451\u0420\u0406\u0420\u00b5\u0421\u201a", "mojibake"),
    ],
)
def test_odd_characters(text, kind, tmp_path):
    report = check_rows(tmp_path, [talk("A good row?", "Yes, it is one."), talk(text, "Here are some words.")])
    assert problems(report) == {kind}
    assert lines(report, kind) == [2]
    assert json.dumps(report.to_json(), ensure_ascii=False).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "👩‍🍳🏳️‍🌈 🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f ❤️‍🔥",
        "Türkçe İıĞş, русский, עברית \u200f(RTL)\u200f, العربية\u200c، می‌خواهم, हिन्दी क्‍ष",
        "soft\u00adhyphen, tab\there, nbsp\u00a0here, naïve café “quotes” — dash…",
        "«CAFÉ» “IRMÃ” É– SÃO PAULO, Åse, Ñandú, ÂGE, СССР».",
        "ภาษา\u200bไทย 日本語 中文 한국어",
    ],
)
def test_ordinary_characters_are_left_alone(text, tmp_path):
    assert problems(check_rows(tmp_path, [talk(text, "Here are some words.")])) == set()


@pytest.mark.parametrize(
    ("text", "subtype"),
    [
        ("mail me: Anna.Test+x@mail.example.co.uk.", "email"),
        ("почта иван@пример.рф", "email"),
        ("позвони +79001234567", "phone_ru"),
        ("8 (495) 123-45-67", "phone_ru"),
        ("телефон 89161234567", "phone_ru"),
        ("0532 123 45 67", "phone_tr"),
        ("+44 20 7946 0958", "phone_gb"),
        ("+49 (0)30 1234567", "phone_de"),
        ("tel. 030 1234567 please", "phone"),
        ("212.555.0142", "phone_us"),
        ("+1-555-123-4567", "phone_us"),
        ("4111111111111111", "credit_card"),
        ("amex 3782 822463 10005", "credit_card"),
        ("мир 2200 0000 0000 0004", "credit_card"),
        ("GB82 WEST 1234 5698 7654 32 is mine", "iban"),
        ("DE89370400440532013000", "iban"),
        ("ИНН 500100732259", "inn_ru"),
        ("СНИЛС: 11223344595", "snils_ru"),
        ("my ssn is 536-22-1234", "ssn_us"),
        ("CPF 390.533.447-05", "cpf_br"),
        ("PESEL 44051401359", "pesel_pl"),
        ("codice fiscale RSSMRA85T10A562S", "codicefiscale_it"),
        ("паспорт 45 12 345678", "passport_ru"),
        ("login from 203.0.113.77 today", "ip"),
        ("2001:db8:85a3::8a2e:370:7334", "ip"),
        ("My name is Jane Roe.", "name"),
        ("Меня зовут Пётр Ильич", "name"),
    ],
)
def test_personal_data(text, subtype):
    assert {"pii"} == {kind for kind, _subtype, _text in found(text)}
    assert any(name.startswith(subtype) for name in subtypes(text)), subtypes(text)


@pytest.mark.parametrize(
    "text",
    [
        "order 4242 4242 4242 4241, артикул 7800000003, takip 12345678900, zip 10001-1234",
        "git@github.com:owner/name.git and user@host.local and img@2x.png and npm i pkg@1.2.3 and me@home",
        "v10.2.33 on 2024-05-06 12:30:45, version 1.2.3.4, §1.2.3.4, 192.168.0.1, 127.0.0.1, 255.255.255.0, 8.8.8.8",
        "sha 9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f, 123e4567-e89b-12d3-a456-426614174000, 0x4242424242424242",
        "timestamps 1700000000 and 1700000000123, ISBN 978-3-16-148410-0, 3.14159265358979, 1,234,567.89",
        "table 1-10015132-11, years 1996-97, 2019-2020, room 212-B, 24/7, 1 000 000 000, 10:20:30:40",
        "std::vector<int> a::b, 12:30:45, {::}, C::C",
        "call 112 or 911; dial 1-800; Mr. Smith's dog",
        "12.05.2024 14:05, 100-200-300, 555-1234, 1-2-3-4-5-6-7-8-9",
    ],
)
def test_ordinary_numbers_are_left_alone(text):
    assert found(text) == []


def test_a_text_full_of_it_takes_no_quadratic_time():
    assert len(privacy.find("call +7 900 000-01-23 or a.b@example.com; " * 20_000)) == 40_000


def random_key(length, seed=3):
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=length))


# Put together here, so that no scanner of repositories trips over the file.
SECRETS = [
    ("OPENAI_API_KEY=sk-" + "proj-" + random_key(48), "openai_key"),
    ("sk-" + "ant-" + "api03-" + random_key(60), "anthropic_key"),
    ("gh" + "o_" + random_key(36), "github_token"),
    ("github" + "_pat_" + random_key(60), "github_token"),
    ("AK" + "IA" + "QWERTYUIOPASDFG7", "aws_key"),
    ("AI" + "za" + random_key(35), "google_key"),
    ("xo" + "xb-" + "123456789012-" + random_key(24), "slack_token"),
    ("hf" + "_" + random_key(34), "huggingface_token"),
    ("sk" + "_live_" + random_key(24), "stripe_key"),
    (
        "-----BEGIN OPENSSH " + "PRIVATE KEY-----\n" + random_key(200) + "\n-----END OPENSSH " + "PRIVATE KEY-----",
        "private_key",
    ),
    ("-----BEGIN " + "PRIVATE KEY-----\n" + random_key(100), "private_key"),
    ("ey" + "J" + random_key(20) + ".ey" + "J" + random_key(30) + "." + random_key(40), "jwt"),
    ("postgres://admin:" + "h7Gt2kQz" + "@db.example.org/x", "url_password"),
    ('api_key = "' + random_key(32) + '"', "api_key"),
    ("Authorization: Bearer " + random_key(40), "api_key"),
    ("password: " + "Tr4!vial#Pa", "password"),
    ("пароль: " + "Gh7$kLm2!x", "api_key"),
    ("1234567890:AA" + random_key(33), "telegram_token"),
]


@pytest.mark.parametrize(("text", "subtype"), SECRETS, ids=[subtype for _text, subtype in SECRETS])
def test_secrets_are_found_and_not_shown(text, subtype, tmp_path):
    assert subtype in subtypes(text)
    report = check_rows(tmp_path, [talk("Why does it fail?", "Try this one: " + text)])
    assert [f.level for f in of_kind(report, "secret")] == ["warning"]
    shown = json.dumps(report.to_json())
    for word in (piece for piece in text.replace("\n", " ").split() if len(piece) > 10 and "KEY" not in piece):
        assert word not in shown and word[-8:] not in shown


@pytest.mark.parametrize(
    "text",
    [
        "pip install sk-learn and hf_transfer and sk-learn-contrib-metrics-extended",
        "use YOUR_API_KEY_HERE or sk-... or sk-xxxxxxxxxxxxxxxxxxxxxxxx or ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "api_key = os.environ['OPENAI_API_KEY'] and token = get_token_from_keyring()",
        "password: ******** password = <password> passwords must have 8 characters",
        "the token 11f6ad8ec52a2984abaafd7c3b516503785c2072 is a commit",
        "the key is to practice, the secret is patience; key: user_identifier_column",
        "https://user:password@example.com and https://example.com:8080/a@b",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "max_new_tokens=1024 tokenizer: AutoTokenizer.from_pretrained",
    ],
)
def test_ordinary_words_are_no_secrets(text):
    assert [item for item in found(text) if item[0] == "secret"] == []


def test_nothing_personal_is_printed(tmp_path, capsys):
    from tui import cli

    rows = [talk("write to anna.test@example.com", "call (212) 555-0142 or 4242 4242 4242 4242, Mr. John Public")]
    check_rows(tmp_path, [{"messages": [{"role": "anna.test@example.com", "content": "x"}]}, *rows])
    for flag in ([], ["--json"]):
        cli.main(["data", "check", str(tmp_path / "train.jsonl"), *flag])
        out = capsys.readouterr()
        for private in ("anna.test", "555-0142", "4242 4242", "Public"):
            assert private not in out.out + out.err
