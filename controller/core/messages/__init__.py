"""All texts about decisions that users read, made from the values of a decision."""
