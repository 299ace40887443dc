"""From data to pictures: one module a figure, each with ``draw``, ``sentence`` and ``describe``.

Matplotlib is imported here and nowhere else in the package.
"""
