"""What holds for every test."""

from hypothesis import settings

# The first example of a property may compile, and a busy machine is no finding: properties are judged by what they say.
settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")
