"""What a complete PyTorch device integrates: a module's docstring is an area, a test's docstring one item of it.

`docs/integration.md` is made from them: `python -m tests.integration.page > docs/integration.md`.
"""
