"""Text from outside never becomes a control token.

A tokenizer converts `<|im_start|>` in a text to the token that opens a message, and `<tool_call>` to the one that opens a call, whoever
wrote them: an observation could speak as the system. Text from environments, tools, files, experts and records is therefore *marked*
before it is put into a message: every such string gets a character that Unicode reserves for internal use, and the tokenizer's input is
split there. The model reads the letters, never the token. Our own text (prompt templates, the tags around a response) is not marked.

A server that receives text tokenises it itself. There the mark becomes an invisible space, also inside strings that only other tokenizers
know (`FOREIGN`), because the server's model need not be ours. `for_text` keeps these in the token ids of prompts, which are decoded for it.

Not covered: role markers that are plain words (`User:`, `[INST]` of the first Llama models). No tokenizer can distinguish them from other
words.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from turnwise.util.control_strings import BORDER, CUT, FOREIGN, INVISIBLE, REPLACED, SOFT, cut, each_text, unbordered

KEPT_TEXTS, LONGEST_KEPT = 8192, 20_000


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
        self._known_own = lru_cache(maxsize=KEPT_TEXTS)(
            lambda text: frozenset(self._any.findall(text)) if self._any is not None else frozenset()
        )
        normaliser = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
        self._direct = _direct(tokenizer)
        self._soft = ""
        self._blurs = normaliser is not None and any(token.normalized and str(token) in texts for token in added.values())

    def for_text(self) -> None:
        """From now on token ids keep the marks inside strings that only other tokenizers know, as invisible spaces."""
        self._soft = INVISIBLE

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
        marked = cut(text, self._any, CUT) if self._any is not None else text
        marked = cut(marked, FOREIGN, SOFT)
        if self._blurs and not self._meant.isdisjoint(self.encode(marked)):  # other characters that the tokenizer maps to these
            marked = CUT.join(text)
        return Marked(marked)

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
        return Marked(cut(text, self._any, CUT, self._known_own(written_by_us)) if self._any is not None else text)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Token ids of a text, split at its marks. Nothing is added."""
        pieces = text.replace(SOFT, self._soft).split(CUT)
        if not options and (direct := self._direct) is not None and _is_bare(direct, self.tokenizer):
            if len(text) > LONGEST_KEPT:  # a batch is tokenised without Python's lock, so that other threads continue
                ids_of_pieces = [piece.ids for piece in direct.encode_batch_fast(pieces, add_special_tokens=False)]
            else:
                ids_of_pieces = [direct.encode(piece, add_special_tokens=False).ids for piece in pieces]
        else:
            calls = (self.tokenizer(piece, add_special_tokens=False, verbose=False, **options) for piece in pieces)
            ids_of_pieces = [call["input_ids"] for call in calls]
        return ids_of_pieces[0] if len(ids_of_pieces) == 1 else [token for piece in ids_of_pieces for token in piece]

    def encode_response(self, text: str) -> list[int]:
        """Token ids of a response that arrived as text: no special tokens, because a server's text contains none that was meant as one. The
        tags of a thought or a call become the model's tokens."""
        text = text.replace(CUT, REPLACED).replace(SOFT, REPLACED)
        return self.encode(text if self._special is None else cut(text, self._special, CUT))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt for a server that tokenises it again: control tokens stay, and no other tokens read like one."""
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        whole = str(self.tokenizer.decode(list(ids), **options))
        real = [str(self.tokenizer.convert_ids_to_tokens(int(token))) for token in ids if token in self.ids]
        only_real = all(border[0] in real for border in BORDER.finditer(whole))  # no other text looks like a role marker
        if real == ([] if self._any is None else self._any.findall(whole)) and only_real:
            return whole
        runs = groupby(map(int, ids), self.ids.__contains__)
        parts = [(known, str(self.tokenizer.decode(list(run), **options))) for known, run in runs]
        return "".join(part if known else unbordered(part if self._any is None else cut(part, self._any, CUT)) for known, part in parts)


def _direct(tokenizer: Any) -> Any:
    """The library's own tokenizer inside one of transformers, if that adds nothing to it: then half of the time is saved."""
    kind, backend = type(tokenizer), getattr(tokenizer, "backend_tokenizer", None)
    ways = [getattr(kind, name, None) for name in ("__call__", "_encode_plus")]
    plain = ["transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers"]
    return backend if [getattr(way, "__module__", "") for way in ways] == plain else None


def _is_bare(backend: Any, tokenizer: Any) -> bool:
    """Whether it neither truncates nor pads, which a call of somebody else may have left behind, and reads control strings as usual."""
    return backend.truncation is None and backend.padding is None and backend.encode_special_tokens == tokenizer.split_special_tokens


def _is_no_word(text: str) -> bool:
    return any(not letter.isalnum() and not letter.isspace() for letter in text.replace("▁", " "))  # some write a space this way


def _pattern(texts: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of these texts, the longest first; ordered by first letters, which makes the search of long texts fast."""
    by_first: dict[str, list[str]] = defaultdict(list)
    for text in sorted((text for text in texts if len(text) > 1), key=lambda text: (-len(text), text)):
        by_first[text[0]].append(re.escape(text[1:]))
    return re.compile("|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in by_first.items())) if by_first else None
