"""`python -m trainer.export RUN_DIR OUT`: a finished student as a checkpoint of transformers.

target.py       the class of transformers that computes what the student computes
tensors.py      the student's weights under that class's names, dense or packed at two bits each
own_class.py    source code of a class, for a student that transformers has none for
checkpoint.py   the folder, written and read back
"""
