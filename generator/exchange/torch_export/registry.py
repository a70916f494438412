"""The functions that export operators, by the operators' names in torch.ops.aten."""

# Each gets the Writer, the Call, and the arguments by the names of PyTorch's schema (its self and input are x
# here). The result is a Value, a Constant, or a tuple of them.
OPERATIONS = {}


def operation(*names):
    """Registers a function for these operators, without overloads. Each operator has one function."""
    def register(function):
        assert not OPERATIONS.keys() & set(names), names
        OPERATIONS.update({name: function for name in names})
        return function
    return register


def reads(*names):
    """Declares the arguments that a function reads besides those in its signature."""
    def mark(function):
        function.reads = names
        return function
    return mark
