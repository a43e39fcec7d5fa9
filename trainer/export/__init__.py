"""`python -m trainer.export RUN_DIR OUT`: a finished student as a checkpoint of transformers.

target.py       which class of transformers computes what the student computes
tensors.py      the student's weights under that class's names, dense or packed at two bits each
own_class.py    the file that a checkpoint brings along where no class of transformers does
checkpoint.py   the folder, written and read back
"""
