"""Confirmation: the best trials run again with fresh seeds, and what their losses say of the winner."""
