"""Prompts like those of ``examples/prompts``: the same ten tasks with new inputs, wordings and last words.

R18 to R20, R22 and R23 were set after looking at those. These prompts were written before any model had read them, and
nothing was changed afterwards. Every task has the same inputs and the same last words equally often.
"""

from __future__ import annotations

import random

INPUTS = (
    *("a bright lamp", "a dull knife", "a loud bell", "a new coat", "a short rope", "a thin wall", "a warm blanket"),
    *("an angry dog", "an easy test", "the first page", "the hidden door", "the honest clerk", "the light basket"),
    *("the long road", "the poor farmer", "the rough sea", "the shallow lake", "the wide field", "beginning", "child"),
    *("departure", "enemy", "evening", "failure", "loss", "mountain", "seller", "student", "summer", "victory"),
)
ENDINGS = (
    *(5 * ("Response:", "Solution:", "Completion:", "Reaction:")),
    *(2 * ("Thank you.", "Be brief.", "No explanation.", "One line only.")),
    *(2 * ("Once more: {x}.",)),
)
WORDINGS = {
    "antonym": (
        'State what is contrary to "{x}".',
        "If something is not {x} but the reverse, what is it?",
        "Opposites exercise. Entry: {x}.",
        'My crossword asks for the antithesis of "{x}".',
        "Replace '{x}' by its contrary.",
        'Think of "{x}", then say what differs from it most.',
    ),
    "category": (
        'To which class of things does "{x}" belong?',
        "Is {x} a person, a place, an object, a time or an event?",
        "Classification exercise. Entry: {x}.",
        'My catalogue needs a type for "{x}".',
        "File '{x}' under a heading.",
        'Think of "{x}", then name the kind that it is one of.',
    ),
    "count_letters": (
        'Count how many characters from a to z occur in "{x}".',
        "If every letter of {x} is a bead, how many beads are there?",
        "Letter counting exercise. Entry: {x}.",
        'My typesetter charges per letter and has to set "{x}". How many are charged?',
        "Give the length of '{x}' without spaces.",
        'Think of "{x}", then number its letters.',
    ),
    "plural": (
        'Write "{x}" so that it is more than one.',
        "One is called {x}. What are three called?",
        "Plurals exercise. Entry: {x}.",
        'My list has two of them, yet it says "{x}". Correct the number.',
        "Make '{x}' several.",
        'Think of "{x}", then name a pair of these.',
    ),
    "reverse": (
        'Spell "{x}" from its end to its start.',
        "If {x} is typed from right to left, what stands there?",
        "Mirror writing exercise. Entry: {x}.",
        'My puzzle shows "{x}" in a mirror. Write what is seen.',
        "Turn the characters of '{x}' round.",
        'Think of "{x}", then list its letters from the last one on.',
    ),
    "rhyme": (
        'Say a word that ends with the sound of "{x}".',
        "If a couplet closes with {x}, how may the other line close?",
        "Rhymes exercise. Entry: {x}.",
        'My verse stops at "{x}" and the next line has to rhyme.',
        "Pair '{x}' with a rhyming partner.",
        'Think of "{x}", then of something that sounds like its last syllable.',
    ),
    "sentence": (
        'Put "{x}" to use within a whole sentence.',
        "If a story mentions {x}, how may that line read?",
        "Sentence writing exercise. Entry: {x}.",
        'My pupils have to see how "{x}" is used. Write them an example.',
        "Build a statement with '{x}' as a part.",
        'Think of "{x}", then describe it within one line of prose.',
    ),
    "sentiment": (
        'Does "{x}" carry a good or a bad feeling?',
        "If a review said {x} and no more, would it be favourable?",
        "Feelings exercise. Entry: {x}.",
        'My survey asks how people feel about "{x}". Give the mood.',
        "Mark '{x}' as positive, negative or neutral.",
        'Think of "{x}", then say whether that is pleasant.',
    ),
    "translate_french": (
        'Express "{x}" in the language of France.',
        "If a shop in Nice sells {x}, what does its sign say?",
        "French exercise. Entry: {x}.",
        'My aunt in Paris asks what "{x}" is called there.',
        "Put '{x}' into French.",
        'Think of "{x}", then name it as the French do.',
    ),
    "uppercase": (
        'Write every letter of "{x}" large.',
        "If {x} is typed with shift held down, what appears?",
        "Capitals exercise. Entry: {x}.",
        'My stencil has capitals only and I need "{x}" from it.',
        "Set '{x}' in upper case.",
        'Think of "{x}", then write it as on a headline in capitals.',
    ),
}


def fresh_rows() -> list[dict[str, str]]:
    """One prompt for each task and input; wordings and endings are dealt out at random, each equally often."""
    draw = random.Random(0)
    rows = []
    for task, wordings in WORDINGS.items():
        dealt = draw.sample(wordings * (len(INPUTS) // len(wordings)), len(INPUTS))
        endings = draw.sample(ENDINGS, len(ENDINGS))
        for text, wording, ending in zip(INPUTS, dealt, endings, strict=True):
            rows.append({"prompt": f"{wording} {ending}".format(x=text), "task": task, "input": text})
    return rows
