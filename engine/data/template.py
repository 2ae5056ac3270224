"""A chat template run in jinja2's sandbox as transformers runs it, with the places of the assistant's words.

Whatever a template can see is plain JSON, the sandbox lets it change nothing, and the helpers are those that
transformers offers: raise_exception, strftime_now, tojson without HTML escapes, loop controls, and the
`{% generation %}` tag, whose text is what an assistant-only loss trains on.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

Span = tuple[int, int]
MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")


class TemplateError(Exception):
    """The template does not compile, or refuses a conversation; the text says why."""


class _Generation(Extension):
    """The `{% generation %}` tag: notes where in the output its text lies."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it so)

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        environment.extend(rendered=[], spans=[])

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        text = str(caller())
        # The output so far has been collected by `render`; blocks inside macros are counted where the macro ends.
        environment: Any = self.environment
        start = sum(len(block) for block in environment.rendered)
        environment.spans.append((start, start + len(text)))
        return text


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, with its checks left out for what templates nearly only do: read keys of JSON objects, call
    methods of texts, ask a loop where it is and a namespace what it holds. The checks would let all of that through.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_ATTRIBUTES:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        elif (kind is str and attribute in _TEXT_METHODS) or (kind is LoopContext and attribute in _LOOP_ATTRIBUTES):
            return getattr(obj, attribute)
        elif kind is _Namespace and attribute[:1] != "_":
            try:
                return getattr(obj, attribute)
            except AttributeError:
                pass
        return super().getattr(obj, attribute)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) is str and __obj.__name__ in _TEXT_METHODS:
            kwargs.pop("_block_vars", None)  # what jinja2 hands along for functions that ask for the context
            kwargs.pop("_loop_vars", None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)


_DICT_ATTRIBUTES = frozenset(dir(dict))
_TEXT_METHODS = frozenset(n for n in dir(str) if not n.startswith("_")) - {"format", "format_map"}
_LOOP_ATTRIBUTES = frozenset(("first", "last", "index", "index0", "length", "revindex", "previtem", "nextitem"))


class _Namespace(jinja2.utils.Namespace):
    """A namespace without attributes that begin with an underscore: they lead into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _Namespace._allow(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _Namespace._allow(name)
        super().__setitem__(name, value)

    @staticmethod
    def _allow(name: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r}")


class _Dict:
    """`dict(...)` for templates, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime(pattern: str) -> str:
    return datetime.now().strftime(pattern)


class Template:
    """A compiled chat template.

    Args:
        text: the template.
        variables: what it sees besides the conversation: bos_token, eos_token and the other special tokens.

    Raises:
        TemplateError: it does not compile.
    """

    def __init__(self, text: str, variables: dict[str, Any] | None = None) -> None:
        self.text = text
        self.variables = variables or {}
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise, strftime_now=_strftime, dict=_Dict(), namespace=_Namespace)
        self._environment: Any = environment
        try:
            self._template = environment.from_string(text)
        except jinja2.TemplateError as error:
            raise TemplateError(str(error)) from error

    @property
    def has_markers(self) -> bool:
        """Whether it marks the assistant's words with `{% generation %}`."""
        return MARKERS.search(self.text) is not None

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        *,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> tuple[str, list[Span]]:
        """The text of a conversation, and the places in it that the assistant wrote.

        Raises:
            TemplateError: the template refuses the conversation.
        """
        rendered: list[str] = []
        spans: list[Span] = []
        self._environment.rendered, self._environment.spans = rendered, spans
        words = {**self.variables, **variables}
        try:
            for block in self._template.generate(
                messages=[_plain(message) for message in messages],
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **words,
            ):
                rendered.append(block)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
            raise TemplateError(str(error) or type(error).__name__) from error
        except (ZeroDivisionError, OverflowError, IndexError, MemoryError) as error:
            raise TemplateError(str(error) or type(error).__name__) from error
        return "".join(rendered), spans


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """A message as templates expect it: no keys without a value, and reasoning under all of its names."""
    message = {key: value for key, value in message.items() if value is not None}
    reasoning = next((message[key] for key in REASONING_FIELDS if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message
