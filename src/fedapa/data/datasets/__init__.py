"""One file per data set (or family): ``DATASETS`` in it says what it is, where its files are and how to read them.

Every file of this folder is found by itself. None imports NumPy at its top: a listing needs no arrays.
"""
