"""Conversations whose words are known: texts of a closed domain, spoken by a synthesiser, with pauses and noise."""
