"""Twenty-three tasks for MOSSA on a small real model: seven of real questions, and sixteen made by rule.

    python -m tests.real.mossa_tasks QUESTIONS OUT

``QUESTIONS`` is a folder of tasks of FLAN v2's chain-of-thought part, as ``mechclust mossa --tasks`` reads them. Words
of other languages are those of Unicode's Common Locale Data Repository, as Babel carries them. Tasks have 80 to 800
examples for training, spread evenly in logarithm and given to the tasks at random, and 200 for testing.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
from babel import Locale
from babel.dates import format_date

N_TEST = 200
LEAST_TRAIN, MOST_TRAIN = 80, 800
HELD_OUT = ("event_text", "gsm8k_work", "initials", "match_text", "review_summary", "sort_words", "translate_en_es")
QUESTIONS = {
    "creak": "question",
    "strategyqa": "question",
    "ecqa": "question",
    "creak_explain": "explanation",
    "ecqa_explain": "explanation",
    "sensemaking_explain": "explanation",
    "gsm8k_work": "explanation",
}

NAMES = ["Ada", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ines", "Jonas", "Kira", "Leo", "Maria"]
SURNAMES = ["Adams", "Berg", "Costa", "Diaz", "Evans", "Fischer", "Garcia", "Hansen", "Ito", "Jones", "Kowalski"]
TOWNS = ["Athens", "Berlin", "Cairo", "Dublin", "Florence", "Geneva", "Hanoi", "Istanbul", "Kyoto", "Lima", "Madrid"]
JOBS = ["baker", "carpenter", "dentist", "farmer", "gardener", "judge", "lawyer", "mechanic", "nurse", "painter"]
THINGS = ["bag", "bench", "bottle", "bowl", "chair", "clock", "coat", "cup", "desk", "door", "fork", "hat", "jar"]
COLOURS = ["black", "blue", "brown", "green", "grey", "orange", "pink", "purple", "red", "white", "yellow"]
EVENTS = ["book fair", "concert", "festival", "film night", "flower show", "lecture", "market", "parade", "play"]
TEAMS = ["Arrows", "Bears", "Comets", "Dragons", "Eagles", "Foxes", "Giants", "Hawks", "Jets", "Kings", "Lions", "Owls"]
PARTS_OF_ROOMS = ["bed", "breakfast", "garden", "lift", "pool", "room", "service", "shower", "staff", "view", "wifi"]
PRAISE = ["was a delight", "was excellent", "was far better than we hoped", "was great", "was lovely"]
BLAME = ["was a disappointment", "was awful", "was far worse than we feared", "was poor", "was terrible"]
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
UNITS = (
    *("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)


class Example(NamedTuple):
    """What a prompt asks about, and the answer."""

    content: str
    answer: str


class Rule(NamedTuple):
    """A task made by rule: its cluster, the wordings of its prompts, and what draws an example."""

    cluster: str
    wordings: tuple[str, ...]
    draw: Callable[[random.Random], Example]


def _day(rng: random.Random) -> date:
    return date(1980, 1, 1) + timedelta(days=rng.randrange(16_000))


def _json(**fields: object) -> str:
    return json.dumps(fields, ensure_ascii=False)


# ---- translation ----


class Translation(NamedTuple):
    """Translate entries of a diary: day, country and language."""

    source: str
    target: str

    def __call__(self, rng: random.Random) -> Example:
        """Draw an entry and write it in both languages."""
        day = _day(rng)
        country = rng.choice(COUNTRIES)
        language = rng.choice(LANGUAGES)
        return Example(*(_entry(day, country, language, Locale(locale)) for locale in self))


def _entry(day: date, country: str, language: str, locale: Locale) -> str:
    written = format_date(day, "full", locale=locale)
    return f"{written}: {locale.territories[country]}, {locale.languages[language]}"


COUNTRIES = ["AT", "BE", "BR", "CA", "CH", "CL", "CN", "CZ", "DE", "DK", "EG", "ES", "FI", "FR", "GB", "GR", "HR", "HU"]
LANGUAGES = ["ar", "cs", "da", "de", "el", "en", "es", "fi", "fr", "he", "hi", "hr", "hu", "is", "it", "ja", "ko", "nl"]

# ---- data to text ----


def person_text(rng: random.Random) -> Example:
    """Describe a person."""
    name = f"{rng.choice(NAMES)} {rng.choice(SURNAMES)}"
    age = rng.randint(18, 90)
    job = rng.choice(JOBS)
    town = rng.choice(TOWNS)
    text = f"{name} from {town} is {age} years old and works as a {job}."
    return Example(_json(name=name, age=age, job=job, town=town), text)


def event_text(rng: random.Random) -> Example:
    """Describe an event."""
    event = rng.choice(EVENTS)
    town = rng.choice(TOWNS)
    day = _day(rng)
    visitors = rng.randint(20, 900)
    text = f"On {format_date(day, 'd MMMM y', locale='en')}, {visitors} people came to the {event} in {town}."
    return Example(_json(event=event, place=town, date=day.isoformat(), visitors=visitors), text)


def product_text(rng: random.Random) -> Example:
    """Describe goods in a shop."""
    thing = rng.choice(THINGS)
    colour = rng.choice(COLOURS)
    price = rng.randint(2, 300)
    stock = rng.randint(0, 9)
    left = "none is left" if stock == 0 else f"{stock} in stock"
    text = f"{colour.capitalize()} {thing}, {price} euros, {left}."
    return Example(_json(item=thing, colour=colour, price=price, stock=stock), text)


def match_text(rng: random.Random) -> Example:
    """Describe a match."""
    home, away = rng.sample(TEAMS, 2)
    scores = rng.randint(0, 9), rng.randint(0, 9)
    town = rng.choice(TOWNS)
    result = f"{max(scores)}-{min(scores)} in {town}."
    if scores[0] == scores[1]:
        text = f"The {home} and the {away} drew {result}"
    elif scores[0] > scores[1]:
        text = f"The {home} beat the {away} {result}"
    else:
        text = f"The {home} lost to the {away} {result}"
    return Example(_json(home=home, away=away, goals=scores, place=town), text)


# ---- summarisation ----


def report_summary(rng: random.Random) -> Example:
    """Summarise a report of an accident in one line."""
    town = rng.choice(TOWNS)
    thing = rng.choice(THINGS)
    job = rng.choice(JOBS)
    hour = rng.randint(1, 11)
    detail = rng.choice(["The street was closed for hours.", "Neighbours had called for help.", "It rained that day."])
    text = (
        f"It happened in {town} at about {hour} in the morning. A {job} on the way to work fell over a {thing} that "
        f"somebody had left on the pavement. {detail} Nobody else was hurt, and the police are looking for the owner "
        f"of the {thing}."
    )
    return Example(text, f"A {job} in {town} was hurt by a {thing}.")


def dialogue_summary(rng: random.Random) -> Example:
    """Summarise what two people agree on."""
    first, second = rng.sample(NAMES, 2)
    early = rng.randint(1, 5)
    late = early + rng.randint(1, 5)
    town = rng.choice(TOWNS)
    agreed, answer = rng.choice([(early, "That suits me."), (late, f"Rather at {late}.")])
    text = (
        f"{first}: Are you in {town} this week too? {second}: Yes, until Friday. {first}: Shall we meet at {early}? "
        f"{second}: {answer} {first}: Good, see you then."
    )
    return Example(text, f"{first} and {second} will meet in {town} at {agreed}.")


def review_summary(rng: random.Random) -> Example:
    """Summarise which parts of a hotel were liked."""
    parts = rng.sample(PARTS_OF_ROOMS, 4)
    liked = sorted(parts[:2])
    disliked = sorted(parts[2:])
    sentences = [f"The {part} {rng.choice(PRAISE)}." for part in liked]
    sentences += [f"The {part} {rng.choice(BLAME)}." for part in disliked]
    rng.shuffle(sentences)
    text = f"We spent {rng.randint(2, 9)} nights there. " + " ".join(sentences)
    return Example(text, f"Good: {', '.join(liked)}. Bad: {', '.join(disliked)}.")


# ---- rewriting ----


def number_words(rng: random.Random) -> Example:
    """Write a number in words."""
    number = rng.randint(1_000, 999_999)
    words = f"{number_in_words(number // 1_000)} thousand {number_in_words(number % 1_000)}"
    return Example(str(number), words.strip())


def number_in_words(number: int) -> str:
    """Return a number below a thousand in English. Empty for 0."""
    words = [f"{UNITS[number // 100]} hundred"] if number >= 100 else []
    rest = number % 100
    if rest >= 20:
        words += [TENS[rest // 10], UNITS[rest % 10]]
    else:
        words.append(UNITS[rest])
    return " ".join(word for word in words if word)


def iso_date(rng: random.Random) -> Example:
    """Write a date in digits."""
    day = _day(rng)
    return Example(format_date(day, "EEEE, d MMMM y", locale="en"), day.isoformat())


def reverse_words(rng: random.Random) -> Example:
    """Write words in the opposite order."""
    words = _words(rng)
    return Example(" ".join(words), " ".join(reversed(words)))


def sort_words(rng: random.Random) -> Example:
    """Write words in alphabetical order."""
    words = _words(rng)
    return Example(" ".join(words), " ".join(sorted(words)))


def initials(rng: random.Random) -> Example:
    """Write the first letter of each word."""
    words = _words(rng)
    return Example(" ".join(words), "".join(word[0].upper() for word in words))


def _words(rng: random.Random) -> list[str]:
    return rng.sample(THINGS + COLOURS + JOBS, rng.randint(4, 6))


def _translation(source: str, target: str, name: str) -> Rule:
    wordings = ("{x}\nTranslate to " + name + ".", name + " for: {x}", "Say this in " + name + ": {x}")
    return Rule("translation", wordings, Translation(source, target))


def _data_to_text(draw: Callable[[random.Random], Example]) -> Rule:
    return Rule("data_to_text", ("{x}\nWrite this as a sentence.", "Data: {x}\nText:", "Put into words: {x}"), draw)


def _summary(draw: Callable[[random.Random], Example]) -> Rule:
    return Rule("summarisation", ("{x}\nSummarise this.", "Text: {x}\nIn one line:", "In short? {x}"), draw)


def _rewriting(request: str, draw: Callable[[random.Random], Example]) -> Rule:
    return Rule("rewriting", (request + ": {x}", "{x}\n" + request + ".", request + " for '{x}'."), draw)


RULES = {
    "translate_en_de": _translation("en", "de", "German"),
    "translate_en_fr": _translation("en", "fr", "French"),
    "translate_de_en": _translation("de", "en", "English"),
    "translate_en_es": _translation("en", "es", "Spanish"),
    "person_text": _data_to_text(person_text),
    "event_text": _data_to_text(event_text),
    "product_text": _data_to_text(product_text),
    "match_text": _data_to_text(match_text),
    "report_summary": _summary(report_summary),
    "dialogue_summary": _summary(dialogue_summary),
    "review_summary": _summary(review_summary),
    "number_words": _rewriting("Give the number in words", number_words),
    "iso_date": _rewriting("Give the date in digits", iso_date),
    "reverse_words": _rewriting("Give the words in the opposite order", reverse_words),
    "sort_words": _rewriting("Give the words in alphabetical order", sort_words),
    "initials": _rewriting("Give the first letters of the words", initials),
}
CLUSTERS = {**QUESTIONS, **{name: rule.cluster for name, rule in RULES.items()}}


def n_train(task: str) -> int:
    """Return the number of a task's examples for training."""
    sizes = np.geomspace(LEAST_TRAIN, MOST_TRAIN, len(CLUSTERS)).round()
    return int(np.random.default_rng(0).permutation(sizes)[list(CLUSTERS).index(task)])


def made(task: str) -> list[dict[str, str]]:
    """Return different examples of a task made by rule, those for training first."""
    rule = RULES[task]
    rng = random.Random(task)
    rows: dict[str, dict[str, str]] = {}
    while len(rows) < n_train(task) + N_TEST:
        example = rule.draw(rng)
        prompt = rng.choice(rule.wordings).format(x=example.content)
        rows[prompt] = {"inputs": prompt, "targets": example.answer, "task": task}
    return list(rows.values())


def _read(questions: Path, task: str, split: str) -> list[dict[str, str]]:
    lines = (questions / f"{task}_{split}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def write(questions: Path, out: Path) -> None:
    """Write every task's examples, and the clusters."""
    out.mkdir(parents=True, exist_ok=True)
    for task in CLUSTERS:
        if task in RULES:
            rows = made(task)
            splits = {"train": rows[: n_train(task)], "test": rows[n_train(task) :]}
        else:
            splits = {"train": _read(questions, task, "train")[: n_train(task)], "test": _read(questions, task, "test")}
        for split, rows in splits.items():
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            (out / f"{task}_{split}.jsonl").write_text(text, encoding="utf-8")
    clusters: dict[str, list[str]] = {}
    for task, cluster in CLUSTERS.items():
        clusters.setdefault(cluster, []).append(task)
    lines = ["[clusters]", *(f"{cluster} = {json.dumps(tasks)}" for cluster, tasks in clusters.items())]
    lines += ["", "[held_out]", f"tasks = {json.dumps(HELD_OUT)}"]
    (out / "clusters.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
