"""Landscapes of the real trainer: what searchers are judged by."""
