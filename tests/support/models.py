"""A model's folder as far as text goes: a byte-level tokenizer and a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MARKED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def make_model(folder: Path, template: str | None = MARKED, *, bos: bool = False, **config: Any) -> Path:
    """A folder with tokenizer.json (one token a byte, and a few special ones) and tokenizer_config.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: at for at, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|pad|>", "<s>"])
    if bos:
        number = tokenizer.token_to_id("<s>")
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", number)])
        config["bos_token"] = "<s>"
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>", "model_max_length": 2048, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(words | config), encoding="utf-8")
    return folder
