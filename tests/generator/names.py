"""Whether the name of a tensor hides a variable of the generated C."""
import re
from collections import Counter

VARIABLE = re.compile(r"\b(?:float|int|int64_t|bool|\w+_call)(?: \*?const)? \*?(\w+)(?=[ ,;)[])")


def hidden(text_of):
    """The variables that are declared once more where a tensor has their name, and the number of those that
    were tried. text_of(name): the C of a model whose tensors have _ in their names, but for one, which has
    this name."""
    def declared(name):
        return Counter(VARIABLE.findall(text_of(name)))
    usual = declared("of_the_test")
    tried = [name for name in usual if "_" not in name]
    return [name for name in tried if set(declared(name) - usual) & set(tried)], len(tried)
