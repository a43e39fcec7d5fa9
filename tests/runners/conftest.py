"""No fixtures: pytest puts the folder of a conftest.py on the import path, and tests below import `runners_pools`."""
