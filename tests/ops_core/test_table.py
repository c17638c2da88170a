"""The core set stays small, and every entry is complete."""

from ops_core import scalars, table
from ops_core.reference import REFERENCES

MEMORY = {"load", "store", "param"}  # the interpreter does these


def test_at_most_32_structural_ops_and_64_scalar_functions():
    assert len(table.STRUCTURAL) <= 32
    assert len(scalars.TABLE) <= 64


def test_names_are_unique():
    assert len(table.BY_NAME) == len(table.TABLE)
    assert len(scalars.BY_NAME) == len(scalars.TABLE)


def test_every_op_has_a_kind_a_signature_a_reference_and_a_doc_line():
    for op in table.TABLE:
        assert op.kind and "->" in op.signature and op.doc
        assert op.name in MEMORY | {"map"} or op.reference is REFERENCES[op.name]
    assert all(fn.doc and callable(fn.reference) for fn in scalars.TABLE)
