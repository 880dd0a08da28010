"""The closed domain of the reference service: the words that it knows, and the sentences made of them.

Word error rates in this domain show whether the service still recognises what it did before. They do not compare with
those of recognisers for open speech.
"""

import random
from collections.abc import Mapping, Sequence
from types import MappingProxyType

_CLASSES: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "digit": ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        "name": ("anna", "peter", "maria", "john", "susan", "david", "laura", "robert"),
        "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
        "city": ("london", "paris", "berlin", "madrid", "vienna", "oslo"),
        "item": ("coffee", "water", "pizza", "bread", "milk", "soup", "salad", "apples"),
        "colour": ("red", "green", "blue", "white", "black", "yellow"),
        "room": ("kitchen", "bedroom", "garage", "office", "garden"),
        "device": ("light", "heater", "door", "window", "radio"),
        "time": ("morning", "afternoon", "evening", "night"),
    }
)

ENTITIES = frozenset((*_CLASSES["digit"], *_CLASSES["name"]))
"""The words whose errors users notice most: names and digits."""

_SENTENCES: Sequence[str] = (
    "please call {name} at {digit} {digit} {digit} {digit}",
    "book a flight from {city} to {city} on {day}",
    "i would like {digit} {item} and {digit} {item}",
    "turn on the {colour} {device} in the {room}",
    "close the {device} in the {room} this {time}",
    "my number is {digit} {digit} {digit} {digit} {digit}",
    "what is the weather in {city} on {day} {time}",
    "send a message to {name} and {name}",
    "move the meeting with {name} to {day} {time}",
    "is the {colour} {item} still in the {room}",
    "cancel my order number {digit} {digit} {digit}",
    "thank you {name} see you on {day}",
)

WORDS: Sequence[str] = tuple(
    sorted(
        {word for words in _CLASSES.values() for word in words}
        | {word for sentence in _SENTENCES for word in sentence.split() if not word.startswith("{")}
    )
)
"""All words of the domain, in alphabetical order; a word's number in recognition is its place here."""


def sentence(chance: random.Random) -> str:
    """Return one sentence of the domain, in lower case without punctuation, as `chance` draws it."""
    pattern = chance.choice(_SENTENCES)
    return " ".join(chance.choice(_CLASSES[part[1:-1]]) if part[0] == "{" else part for part in pattern.split())
