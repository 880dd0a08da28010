"""The mechanisms of a cycle, a module each. Each states bounds on replicas, with their reasons and their precedence."""
