"""The same row again, nearly the same row, and training rows among those for evaluation."""

from __future__ import annotations

import random

import pytest

from engine.data.check import check
from tests.bench import bench_data
from tests.support.data import check_rows, lines, of_kind, problems, talk, write_rows

WORDS, WEIGHTS = bench_data.vocabulary()


def rows_of(talks):
    return [bench_data.line(turns).rstrip() for turns in talks]


def test_exact_duplicates_whatever_the_spelling_of_the_json(tmp_path):
    row = '{"messages":[{"content":"How long do eggs boil?","role":"user"},'
    row += '{"content":"Eight min\\u0075tes.","role":"assistant"}]}'
    other = {
        "conversations": [
            {"from": "human", "value": "How long do eggs boil?"},
            {"from": "gpt", "value": "Eight minutes."},
        ]
    }
    report = check_rows(tmp_path, [talk("How long do eggs boil?", "Eight minutes.", id=1), row, other])
    assert lines(report, "duplicate") == [2, 3]
    assert of_kind(report, "duplicate")[0].extra["pairs"] == [[1, 2], [1, 3]]
    assert of_kind(report, "near_duplicate") == []


def test_letters_and_spaces_make_a_near_duplicate(tmp_path):
    report = check_rows(
        tmp_path, [talk("How long do eggs boil?", "Eight."), talk("how LONG  do eggs boil?\n", "eight.")]
    )
    assert (lines(report, "near_duplicate"), problems(report)) == ([2], {"near_duplicate"})


def test_one_prompt_with_other_answers_and_one_answer_to_other_prompts_are_none(tmp_path):
    question, answer = "How do I sharpen a kitchen knife at home?", "Draw it along a wet stone at a steady angle."
    rows = [
        talk(question, answer),
        talk(question, "Take it to the shop next door on Monday."),
        talk("Tell me of scythes!", answer),
    ]
    assert problems(check_rows(tmp_path, rows)) == set()


def test_duplicates_across_files_name_the_other_file(tmp_path):
    write_rows(tmp_path / "a.jsonl", [talk("How long do eggs boil?", "Eight minutes.")])
    write_rows(
        tmp_path / "b.jsonl", [talk("What is a roux?", "Fat, flour."), talk("How long do eggs boil?", "Eight minutes.")]
    )
    (found,) = of_kind(check([str(tmp_path)]), "duplicate")
    assert (found.extra["pairs"], found.extra["file"]) == ([["a.jsonl:1", 2]], str(tmp_path / "b.jsonl"))


@pytest.mark.parametrize("share", [0.05, 0.15])
def test_planted_edits_are_found_and_nothing_else(share, tmp_path):
    rng = random.Random(5)
    base = [bench_data.conversation(rng, WORDS, WEIGHTS, 40) for _ in range(400)]
    copies = [bench_data.edited(rng, turns, WORDS, share) for turns in base[:100]]
    report = check_rows(tmp_path, rows_of(base + copies))
    (found,) = of_kind(report, "near_duplicate")
    assert found.count >= 95
    assert min(found.lines) > 400
    assert sum(first + 400 == second for first, second in found.extra["pairs"]) == len(found.extra["pairs"])


def test_the_same_phrase_in_many_rows_costs_no_time_and_is_found(tmp_path):
    rng = random.Random(6)
    talks = [bench_data.conversation(rng, WORDS, WEIGHTS, 30) for _ in range(1500)]
    phrase = "please answer in the language of the customer and never promise anything that is not in the text " * 2
    talks = [[phrase + turns[0], *turns[1:]] for turns in talks]
    report = check_rows(tmp_path, rows_of([*talks, bench_data.edited(rng, talks[700], WORDS, 0.08)]))
    assert lines(report, "near_duplicate") == [1501]


def test_texts_without_spaces_are_compared_by_their_signs(tmp_path):
    text = "请把鸡蛋放进开水里煮八分钟然后放进冷水里这样蛋壳就很容易剥下来了味道也会更好一些"
    rows = [
        {"text": text},
        {"text": text.replace("八", "九").replace("冷", "冰")},
        {"text": "今天的天气非常好我们去公园散步吧带上水和面包还有一个球"},
    ]
    assert lines(check_rows(tmp_path, rows), "near_duplicate") == [2]


def test_leaks_into_evaluation(tmp_path):
    rng = random.Random(9)
    talks = [bench_data.conversation(rng, WORDS, WEIGHTS, 30)[:2] for _ in range(50)]
    train = write_rows(tmp_path / "train.jsonl", rows_of(talks))
    held_out = [
        [talks[3][0] + " ", talks[3][1].upper()],
        bench_data.edited(rng, talks[4], WORDS, 0.08),
        [talks[5][0], "quite another answer with other words"],
        bench_data.conversation(rng, WORDS, WEIGHTS, 30)[:2],
    ]
    evaluation = write_rows(tmp_path / "eval.jsonl", rows_of(held_out))
    report = check([str(train)], held_out=[str(evaluation)])
    found = {(f.kind, f.subtype): (f.lines, f.extra["pairs"]) for f in report.findings if "train_eval" in f.kind}
    assert found == {
        ("train_eval_overlap", None): ([1], [[4, 1]]),
        ("train_eval_overlap", "near"): ([2], [[5, 2]]),
        ("train_eval_prompt_overlap", None): ([3], [[6, 3]]),
    }
    assert report.rows == 50


def test_preferences_the_other_way_round(tmp_path):
    rows = [
        {"prompt": "Knife?", "chosen": "Use a wet stone.", "rejected": "No idea at all."},
        {"prompt": "Roux?", "chosen": "Fat and flour.", "rejected": "Nobody knows this."},
        {"prompt": "Knife?", "chosen": "No idea at all.", "rejected": "Use a wet stone."},
        {"prompt": "Same?", "chosen": "Just the same.", "rejected": "Just the same."},
    ]
    assert lines(check_rows(tmp_path, rows), "label_conflict") == [1, 3]


def test_one_prompt_with_two_labels(tmp_path):
    rows = [talk("A fine old film!", "yes"), talk("I fell asleep twice.", "no"), talk("a fine old film!", "no")]
    report = check_rows(tmp_path, rows)
    assert (lines(report, "label_conflict", "answer"), problems(report)) == ([1, 3], {"label_conflict"})


def test_one_answer_in_many_rows_is_a_note(tmp_path):
    rows = [talk(f"{' '.join(random.Random(n).choices(WORDS, k=8))}?", "I cannot help with that.") for n in range(9)]
    (found,) = of_kind(check_rows(tmp_path, rows), "boilerplate")
    assert (found.level, found.lines) == ("note", [1]) and "9" in found.detail
