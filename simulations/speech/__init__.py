"""The reference service: a small streaming speech recogniser that hears audio and answers with words."""
