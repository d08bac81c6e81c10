"""Text from outside never becomes a control token.

A tokenizer converts `<|im_start|>` in a text to the token that opens a message, and `<tool_call>` to the one that opens a call, whoever
wrote them: an observation could speak as the system. Text from environments, tools, files, experts and records is therefore *marked*
before it is put into a message: every such string gets a character that Unicode reserves for internal use, and the tokenizer's input is
split there. The model reads the letters, never the token. Our own text (prompt templates, the tags around a response) is not marked.

A server that receives text tokenises it itself. There the mark becomes an invisible space, also inside strings that only other tokenizers
know (`FOREIGN`), because the server's model need not be ours.

Not covered: role markers that are plain words (`User:`, `[INST]` of the first Llama models). No tokenizer can distinguish them from other
words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

CUT, SOFT = "\ufdd2", "\ufdd3"  # never part of a text: Unicode reserves them for internal use
INVISIBLE = "\u200b"  # a zero-width space: invisible to a reader, but no tokenizer ignores it
REPLACED = "\ufffd"
KEPT_TEXTS, LONGEST_KEPT = 8192, 20_000
_WORDS = "s|bos|eos|pad|unk|mask|cls|sep|sop|eop|start_of_turn|end_of_turn|start_of_image|end_of_image|unused_?\\d+|extra_id_\\d+"
_UPPER = "INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|CALL_ID|ARGS|gMASK|MASK|CLS|SEP|PAD|UNK"
# Role and document markers in the tokenizers of other models: no prompt contains these on purpose.
BORDER = re.compile(
    rf"<\|[^<>|\s]{{1,64}}\|>|<｜[^<>\s]{{1,64}}｜>|\[\|[^\[\]|\s]{{1,64}}\|\]|</?(?:{_WORDS})>|\[/?(?:{_UPPER})\]|<</?SYS>>"
)
# The same, and the tags of thoughts, calls and their results: our own prompts also name these.
FOREIGN = re.compile(rf"{BORDER.pattern}|</?(?:think|tools?|tool_calls?|tool_response|function|image|video|audio)>")


class Marked(str):
    """A text in which parts from outside are marked. Any operation on it returns plain text, which is then marked as a whole."""

    __slots__ = ()


class Control:
    """The control tokens of a tokenizer: all tokens added to its vocabulary, special or not, except for plain words and spaces."""

    def __init__(self, tokenizer: Any):
        added = dict(getattr(tokenizer, "added_tokens_decoder", {}))
        special = set(map(str, tokenizer.all_special_tokens)) | {str(token) for token in added.values() if token.special}
        texts = special | {str(token) for token in added.values() if _is_no_word(str(token))}
        self.tokenizer = tokenizer
        self.ids = frozenset(tokenizer.convert_tokens_to_ids(sorted(filter(None, texts)))) - {None}
        self._meant = self.ids - {tokenizer.unk_token_id}  # an unknown character is not a control token
        self._any, self._special = _pattern(texts), _pattern(special)
        self._single = re.compile(f"[{re.escape(''.join(singles))}]") if (singles := [text for text in texts if len(text) == 1]) else None
        # the attempts of a group read the same texts repeatedly
        self._known_marked = lru_cache(maxsize=KEPT_TEXTS)(self._mark)
        self._known_own = lru_cache(maxsize=KEPT_TEXTS)(self._strings_of)
        normaliser = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._direct = _direct(tokenizer)
        self._blurs = normaliser is not None and any(token.normalized and str(token) in texts for token in added.values())

    def mark(self, text: str) -> Marked:
        """A text from outside, marked. A marked text is returned unchanged."""
        if isinstance(text, Marked):
            return text
        return self._known_marked(text) if len(text) <= LONGEST_KEPT else self._mark(text)

    def _mark(self, text: str) -> Marked:
        if CUT in text or SOFT in text:
            text = text.replace(CUT, REPLACED).replace(SOFT, REPLACED)
        if self._single is not None:
            text = self._single.sub(REPLACED, text)
        found = _cut(text, self._any, CUT) if self._any is not None else text
        found = _cut(found, FOREIGN, SOFT)
        if self._blurs and not self._meant.isdisjoint(self.encode(found)):  # other characters that the tokenizer maps to these
            found = CUT.join(text)
        return Marked(found)

    def mark_all(self, texts: Sequence[str]) -> Sequence[str]:
        """Each of these texts marked; a list without any such string is returned unchanged."""
        whole = "\n".join(texts)
        return texts if self.mark(whole) == whole else [self.mark(text) for text in texts]

    def mark_deep(self, value: Any) -> Any:
        """A JSON value with all its texts marked."""
        return each_text(value, self.mark)

    def own(self, text: str, written_by_us: str) -> Marked:
        """A message made of marked texts and our own text. It may contain only control strings that we wrote ourselves: others arose where
        two texts meet."""
        return Marked(_cut(text, self._any, CUT, self._known_own(written_by_us)) if self._any is not None else text)

    def _strings_of(self, text: str) -> frozenset[str]:
        return frozenset(self._any.findall(text)) if self._any is not None else frozenset()

    def encode(self, text: str, **options: Any) -> list[int]:
        """Token ids of a text, split at its marks. Nothing is added."""
        pieces = text.replace(SOFT, "").split(CUT)
        if not options and (direct := self._direct) is not None and _is_bare(direct, self.tokenizer):
            if len(text) > LONGEST_KEPT:  # a batch is tokenised without Python's lock, so that other threads continue
                found = [piece.ids for piece in direct.encode_batch_fast(pieces, add_special_tokens=False)]
            else:
                found = [direct.encode(piece, add_special_tokens=False).ids for piece in pieces]
        else:
            found = self._encode_each(pieces, options)
        return found[0] if len(found) == 1 else [token for piece in found for token in piece]

    def _encode_each(self, pieces: Sequence[str], options: Mapping[str, Any]) -> list[list[int]]:
        return [self.tokenizer(piece, add_special_tokens=False, verbose=False, **options)["input_ids"] for piece in pieces]

    def encode_response(self, text: str) -> list[int]:
        """Token ids of a response that arrived as text: no special tokens, because a server's text contains none that was meant as one. The
        tags of a thought or a call become the model's tokens."""
        text = text.replace(CUT, REPLACED).replace(SOFT, REPLACED)
        return self.encode(text if self._special is None else _cut(text, self._special, CUT))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt for a server that tokenises it again: control tokens stay, and no other tokens read like one."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        whole = str(self.tokenizer.decode(list(ids), **options))
        real = [str(self.tokenizer.convert_ids_to_tokens(int(token))) for token in ids if token in self.ids]
        if real == ([] if self._any is None else self._any.findall(whole)) and not _strangers(whole, real):
            return whole
        runs = groupby(map(int, ids), self.ids.__contains__)
        parts = [(known, str(self.tokenizer.decode(list(run), **options))) for known, run in runs]
        return "".join(part if known else unbordered(part if self._any is None else _cut(part, self._any, CUT)) for known, part in parts)


def _direct(tokenizer: Any) -> Any:
    """The library's own tokenizer inside one of transformers, if that adds nothing to it: then half of the time is saved."""
    kind, backend = type(tokenizer), getattr(tokenizer, "backend_tokenizer", None)
    ways = [getattr(kind, name, None) for name in ("__call__", "_encode_plus")]
    plain = ["transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers"]
    return backend if [getattr(way, "__module__", "") for way in ways] == plain else None


def _is_bare(backend: Any, tokenizer: Any) -> bool:
    """Whether it neither truncates nor pads, which a call of somebody else may have left behind, and reads control strings as usual."""
    return backend.truncation is None and backend.padding is None and backend.encode_special_tokens == tokenizer.split_special_tokens


def neutral(text: str) -> str:
    """A marked text for a reader that does not know the marks: an invisible space replaces them."""
    return str(text).replace(CUT, INVISIBLE).replace(SOFT, INVISIBLE)


def unbordered(text: str) -> str:
    """An unmarked text, for a server: it cannot open a message of another role."""
    return neutral(_cut(text, BORDER, SOFT))


def neutral_deep(value: Any) -> Any:
    """A JSON value from outside, for a server."""
    return each_text(value, lambda text: neutral(_cut(text, FOREIGN, SOFT)))


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with every text in it changed, names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {each_text(key, change): each_text(inner, change) for key, inner in value.items()}
    return [each_text(inner, change) for inner in value] if isinstance(value, (list, tuple)) else value


def deeper_than(levels: int, value: Any) -> bool:
    """Whether a JSON value is nested more deeply than this."""
    inner = [value]
    for _ in range(levels + 1):
        inner = [part for one in inner if isinstance(one, (dict, list)) for part in (one.values() if isinstance(one, dict) else one)]
        if not inner:
            return False
    return True


def _is_no_word(text: str) -> bool:
    return any(not letter.isalnum() and not letter.isspace() for letter in text.replace("▁", " "))  # some write a space this way


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of these texts, the longest first; ordered by first letters, which makes the search of long texts fast."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for text in sorted((text for text in texts if len(text) > 1), key=lambda text: (-len(text), text)):
        by_first[text[0]].append(re.escape(text[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_first.items())) if by_first else None


def _cut(text: str, pattern: re.Pattern[str], mark: str, allowed: frozenset[str] = frozenset()) -> str:
    """The text with a mark inside each match, after its first character, so that no string that starts there or later stays intact."""
    found = pattern.search(text)
    if found is None:
        return text
    parts, start = [], 0
    while found is not None:
        keeps = found[0] in allowed
        end = found.end() if keeps else found.start() + 1
        parts += [text[start:end]] if keeps else [text[start:end], mark]
        start, found = end, pattern.search(text, end)
    return "".join([*parts, text[start:]])


def _strangers(whole: str, real: Sequence[str]) -> bool:
    """Whether the text contains role markers that are not among these control tokens."""
    return any(found[0] not in real for found in BORDER.finditer(whole))
