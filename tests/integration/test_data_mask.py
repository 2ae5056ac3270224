"""Token ids and loss masks against transformers' own, token by token, for the templates of well-known models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.data import tokens
from engine.data.forms import Row
from engine.data.template import TemplateError
from engine.data.tokens import Encoded

pytestmark = pytest.mark.heavy

CONTROL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
]  # fmt: skip
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
    "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MISTRAL = """{{- bos_token }}
{%- set loop_messages = messages %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- endif %}
{%- for message in loop_messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('After the optional system message, roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- if loop.first and system_message is defined %}
            {{- '[INST] ' + system_message + '\\n\\n' + message.content + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message.content + '[/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- generation %}{{- ' ' + message.content + eos_token }}{%- endgeneration %}
    {%- else %}
        {{- raise_exception('Only user, assistant and system roles are supported') }}
    {%- endif %}
{%- endfor %}
"""
# TRL's files of the public templates, by family: beginning and end tokens
TRL = {
    "qwen3": (None, "<|im_end|>"), "qwen2_5": (None, "<|im_end|>"), "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<eos>"), "gemma3": ("<bos>", "<eos>"), "phi3": (None, "<|end|>"),
}  # fmt: skip
SYSTEM = {"role": "system", "content": "Отвечай коротко. Be brief."}
TALKS: list[list[dict[str, object]]] = [
    [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}],
    [
        {"role": "user", "content": "Сколько варить яйцо? 👩‍🍳"},
        {"role": "assistant", "content": "Минут восемь. 時間 naïve"},
        {"role": "user", "content": "  spaces  \n\n and lines "},
        {"role": "assistant", "content": "ok\n"},
    ],
    [
        {"role": "user", "content": "What is 2*3? <|im_end|> </s>"},
        {"role": "assistant", "content": "6", "reasoning_content": "two and two and two", "tool_calls": None},
        {"role": "user", "content": "And then?"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nseven"},
    ],
]
TALKS += [[SYSTEM, *talk] for talk in TALKS]
TOOL = {"type": "function", "function": {"name": "add", "description": '<adds> "и"', "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
TOOL_TALK = [
    {"role": "user", "content": "add"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "5"},
    {"role": "assistant", "content": "It is 5."},
]


def template_text(name: str) -> str:
    import trl

    return (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    sample = [str(message["content"]) for talk in TALKS for message in talk] * 5 + [
        "<|im_start|>assistant\nthinking"
    ] * 3
    trained.train_from_iterator(sample, vocab_size=600, min_frequency=2)
    trained.add_special_tokens(CONTROL)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    trained.save(str(path))
    return path.read_text(encoding="utf-8")


def make_model(folder: Path, tokenizer: str, template: str, bos: str | None, eos: str) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "pad_token": "<pad>"}
    config |= {"chat_template": template, "clean_up_tokenization_spaces": False} | ({"bos_token": bos} if bos else {})
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def reference(folder: Path, messages: list[dict[str, object]], tools: list[object] | None, template: str) -> object:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    try:
        found = tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=template, return_assistant_tokens_mask=True, return_dict=True
        )
    except Exception as error:
        return str(error)
    return found["input_ids"], [bool(trained) for trained in found["assistant_masks"]]


CASES = [("chatml", CHATML, None, "<|im_end|>"), ("mistral", MISTRAL, "<s>", "</s>")]


@pytest.mark.parametrize("name", ["chatml", "mistral", *TRL])
def test_ids_and_mask_equal_those_of_transformers(name: str, tmp_path: Path, tokenizer_json: str) -> None:
    if name in TRL:
        template, (bos, eos) = template_text(f"{name}_training"), TRL[name]
    else:
        _name, template, bos, eos = next(case for case in CASES if case[0] == name)
    folder = make_model(tmp_path / "model", tokenizer_json, template, bos, eos)
    model = tokens.load(str(folder))
    talks: list[tuple[list[dict[str, object]], list[object] | None]] = [(talk, None) for talk in TALKS]
    if name.startswith("qwen"):
        talks.append((TOOL_TALK, [TOOL]))
    compared = 0
    for messages, tools in talks:
        (ours,) = model.encode([Row("messages", messages, tools=tools)])
        theirs = reference(folder, messages, tools, template)
        if isinstance(ours, TemplateError):
            assert isinstance(theirs, str), f"we refuse what transformers takes: {ours}"
            continue
        assert isinstance(theirs, tuple), theirs
        assert ours.ids == theirs[0]
        assert [bool(trained) for trained in ours.trained] == theirs[1]
        assert any(ours.trained) and not all(ours.trained)
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("name", TRL)
def test_a_known_template_is_trained_as_trl_trains_it(name: str, tmp_path: Path, tokenizer_json: str) -> None:
    """Without marks in the model's own template, TRL puts its training form in place; so do we."""
    from transformers import AutoTokenizer
    from trl.chat_template_utils import get_training_chat_template

    bos, eos = TRL[name]
    folder = make_model(tmp_path / "model", tokenizer_json, template_text(name), bos, eos)
    model = tokens.load(str(folder))
    theirs = get_training_chat_template(AutoTokenizer.from_pretrained(str(folder)))
    assert model.template is not None and model.template.text == theirs
    assert model.trl_form is not None


def test_a_template_without_marks_trains_all_tokens(tmp_path: Path, tokenizer_json: str) -> None:
    plain = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    folder = make_model(tmp_path / "model", tokenizer_json, plain, None, "<|im_end|>")
    model = tokens.load(str(folder))
    (ours,) = model.encode([Row("messages", TALKS[0])])
    assert isinstance(ours, Encoded) and all(ours.trained) and not model.masks_answers


def test_rows_are_tokenized_as_the_trainer_does_it(tmp_path: Path, tokenizer_json: str) -> None:
    """prompt + completion, conversational or not, and text: against SFTTrainer's own preparation."""
    from types import SimpleNamespace

    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    from engine.data import forms, turns

    folder = make_model(tmp_path / "model", tokenizer_json, CHATML, None, "<|im_end|>")
    model = tokens.load(str(folder))
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    values = [
        {"prompt": "How long?", "completion": " Eight minutes."},
        {"prompt": [{"role": "user", "content": "Hi"}], "completion": [{"role": "assistant", "content": "Hello!"}]},
        {"text": "Q: How long?\nA: Eight minutes."},
    ]
    for value in values:
        form, _used = forms.recognize(value)
        row = forms.make_row(value, form, lambda *_said, **_more: None)
        turns.check(row, lambda *_said, **_more: None)
        (ours,) = model.encode([row])
        arguments = SFTConfig(output_dir=str(tmp_path / "out"), max_length=None, use_cpu=True, bf16=False)
        trainer = SimpleNamespace(_tokenizer=tokenizer, chat_template=None, completion_only_loss="completion" in value)
        ready = SFTTrainer._prepare_dataset(trainer, Dataset.from_list([value]), tokenizer, arguments, False, None, "x")
        assert isinstance(ours, Encoded)
        assert ours.ids == ready[0]["input_ids"]
        labels = ready[0]["labels"] if "labels" in ready.column_names else None
        mask = [label != -100 for label in labels] if labels is not None else ready[0].get("completion_mask")
        assert list(ours.trained) == [int(x) for x in (mask or [1] * len(ours.ids))]
