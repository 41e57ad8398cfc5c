"""Prompts with a planted structure."""

import json

TASKS = ("a", "b", "c")


def last_word_tells_the_task():
    """27 prompts: the last word is the task's, the first word runs through all with every task."""
    return [
        {"prompt": f"w{first} w{middle} w{10 + k}", "task": task, "first": first}
        for k, task in enumerate(TASKS)
        for first in range(3)
        for middle in (4, 5, 6)
    ]


def endings_hide_the_task():
    """54 prompts: the last word is one of three endings, whatever the task; the task's word is the one before."""
    return [
        {"prompt": f"w{first} w{10 + k} w{14 + ending}", "task": task, "ending": ending}
        for k, task in enumerate(TASKS)
        for ending in range(3)
        for first in range(6)
    ]


def write_prompts(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path
