"""The loop that the teacher and every stage share: one step, its results, evaluation, parallel strategies."""
