"""Porter's stemmer as Lucene runs it: the rules of 1980 with the two changes that Porter made later (-bli and -logi).

A stem depends only on letters. Whatever is not a vowel counts as a consonant, including digits and punctuation, as in Lucene; `y` is a
consonant at the start of a word and after a vowel. Words of one or two characters stay as they are.
"""

from __future__ import annotations

from itertools import pairwise

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
