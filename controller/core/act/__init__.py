"""From the plan to the changes of this cycle: targets, rollout order, and admission."""
