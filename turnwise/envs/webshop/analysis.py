"""Turns text into index terms, like Lucene's English analyser with the standard tokenizer.

In order: words by the word-break rules of Unicode (UAX #29), a possessive 's removed, lower case, 33 stop words dropped, Porter's
stemmer. Not obvious: a colon or a full stop between letters joins them ("size:large" is one word), a hyphen and a slash never do, "3.5oz"
is one word, an underscore is part of a word, ideographs and hiragana are words of one character, and emoji are words.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

import regex

_STOP_WORDS = """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
LONGEST_WORD = 255  # Lucene cuts longer ones into chunks of this length

# Extended_Pictographic as Unicode 12.1 has it, which Lucene was built with. Later versions took stars, hearts and hands out of it again.
PICTOGRAPHS = (
    r"\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2"
    r"\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728"
    r"\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf\u2934\u2935\u2b05-\u2b07"
    r"\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171"
    r"\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f"
    r"\U0001f232-\U0001f23a\U0001f23c-\U0001f23f\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    r"\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f"
    r"\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fffd"
)


def _word_pattern() -> regex.Pattern[str]:
    """One match per word, its group is the word. Every character may be followed by marks and invisible characters, which belong to it
    (rule WB4).

    A run of underscores without a word is also matched, with an empty group: otherwise it would be tried again from each of them.
    """
    marks = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*+"
    letter = rf"(?:[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}--\p{{LB=SA}}]{marks})"
    digit = rf"(?:[\p{{WB=Numeric}}\uff10-\uff19]{marks})"
    kana = rf"(?:\p{{WB=Katakana}}{marks})"
    low_line = rf"(?:\p{{WB=ExtendNumLet}}{marks})"
    in_word = rf"(?:[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}:]{marks})"
    in_number = rf"(?:[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{marks})"
    hebrew = rf"(?:\p{{WB=Hebrew_Letter}}{marks}"
    quoted = rf'{hebrew}"{marks}{hebrew}))|{hebrew}\'{marks})'
    run = rf"(?:{letter}(?:(?:{low_line}*|{in_word}){letter})*|{digit}(?:(?:{low_line}*|{in_number}){digit})*|{quoted})+"
    katakana = rf"{kana}(?:{low_line}*{kana})*"
    word = rf"{low_line}*+(?:{katakana}|{run})(?:{low_line}++(?:{katakana}|{run}))*{low_line}*"
    asian = rf"(?:\p{{LB=SA}}{marks})+|\p{{Script=Han}}{marks}|\p{{Script=Hiragana}}{marks}"
    return regex.compile(rf"({word}|{asian}|{_emoji()})|{low_line}++", regex.V1)


def _emoji() -> str:
    """A pictograph with what modifies it, several joined into one, a flag, a keycap. Stars, hearts and trade mark signs are pictographs."""
    one = rf"[{PICTOGRAPHS}](?:\ufe0f|[\U0001f3fb-\U0001f3ff])?(?:[\U000e0020-\U000e007e]+\U000e007f)?"
    return rf"{one}(?:\u200d{one})*|[\U0001f1e6-\U0001f1ff]{{2}}|[0-9#*]\ufe0f?\u20e3"


_WORD = _word_pattern()
# The same for ASCII only, which most text is, in a fraction of the time.
_RUN = r"(?:[A-Za-z]+(?:[.':][A-Za-z]+)*|[0-9]+(?:[.,;'][0-9]+)*)+"
_ASCII_WORD = re.compile(rf"(_*+{_RUN}(?:_++{_RUN})*_*)|_++")


def split_words(text: str) -> list[str]:
    """The words of a text, as the tokenizer splits them."""
    found: list[str] = []
    for piece in (text,) if text.isascii() else text.split():  # no word spans white space
        found += filter(None, (_ASCII_WORD if piece.isascii() else _WORD).findall(piece))
    if not any(len(word) > LONGEST_WORD for word in found):
        return found
    return [word[start : start + LONGEST_WORD] for word in found for start in range(0, len(word), LONGEST_WORD)]


@lru_cache(maxsize=1 << 17)
def term(word: str) -> str:
    """The index term of a word; empty for a stop word."""
    if word[-2:-1] in ("'", "\u2019", "\uff07") and word[-1:] in ("s", "S"):
        word = word[:-2]
    word = "".join([letter.lower()[:1] for letter in word]) if not word.isascii() else word.lower()
    return "" if word in STOP_WORDS else stem(word)


def terms(text: str) -> list[str]:
    """The index terms of a text, in order."""
    return [found for found in map(term, split_words(text)) if found]


# Porter's stemmer as Lucene runs it: the rules of 1980 with the two changes that Porter made later (-bli and -logi). A stem depends only on
# letters. Whatever is not a vowel counts as a consonant, including digits and punctuation, as in Lucene; `y` is a consonant at the start of
# a word and after a vowel. Words of one or two characters stay as they are.

VOWELS = frozenset("aeiou")

# Steps 2 and 3: the suffix is replaced if the stem before it has a measure above zero. The first matching suffix decides, replaced
# or not, so that a longer suffix comes before one that it ends with.
STEP_2 = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"), ("alli", "al")),
    *(("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"), ("ator", "ate"), ("alism", "al")),
    *(("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive"), ("biliti", "ble"), ("logi", "log")),
)
STEP_3 = (("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""))
STEP_4 = (
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou"),
    *("ism", "ate", "iti", "ous", "ive", "ize"),
)


def stem(word: str) -> str:
    """The stem of a word in lower case."""
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _exchange(_exchange(word, STEP_2), STEP_3)
    return _final_e_and_ll(_drop(word))


def _consonants(stem: str) -> list[bool]:
    kinds: list[bool] = []
    for letter in stem:
        kinds.append(not kinds[-1] if letter == "y" and kinds else letter not in VOWELS)
    return kinds


def _measure(stem: str) -> int:
    """How often a vowel is followed by a consonant."""
    kinds = _consonants(stem)
    return sum(not one and two for one, two in pairwise(kinds))


def _has_vowel(stem: str) -> bool:
    return not all(_consonants(stem))


def _double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _short_ending(word: str) -> bool:
    """Consonant, vowel, consonant at the end, the last not w, x or y: an -e was probably lost (hop-, not snow-)."""
    return len(word) > 2 and word[-1] not in "wxy" and _consonants(word)[-3:] == [True, False, True]


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past_and_gerund(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending):
            stem = word[: -len(ending)]
            return _mended(stem) if _has_vowel(stem) else word
    return word


def _mended(stem: str) -> str:
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if _double_consonant(stem):
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _short_ending(stem) else stem


def _exchange(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    for ending, new in rules:
        if word.endswith(ending):
            stem = word[: -len(ending)]
            return stem + new if _measure(stem) > 0 else word
    return word


def _drop(word: str) -> str:
    for ending in STEP_4:
        if word.endswith(ending):
            stem = word[: -len(ending)]
            if ending == "ion" and not stem.endswith(("s", "t")):
                continue
            return stem if _measure(stem) > 1 else word
    return word


def _final_e_and_ll(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short_ending(word[:-1])):
            word = word[:-1]
    if word.endswith("l") and _double_consonant(word) and _measure(word) > 1:
        word = word[:-1]
    return word
