"""How an exported program becomes a spec, in order. generator/export_torch.py takes these steps.

1. capture.py runs torch.export (before PyTorch 2.7: torch.jit.trace) and lists the Calls of operators.
2. symbols.py converts symbolic sizes to the spec's dimensions, and guards to bounds of sizes or errors.
3. writer.py keeps the spec's entries. The module's inputs, parameters and constants are the first operands.
4. lowering.py walks the Calls. It evaluates those of constants only, and resolves in-place changes.
5. For every other Call, registry.py has the operator's function, which adds entries to the writer.
6. lowering.py compares the result's shape and dtype with PyTorch's, and collects errors.
7. export_torch.py keeps the entries that the outputs need, checks the spec and writes both files.

`grep -rn '"roll"' generator/exchange/torch_export` finds the function that exports aten.roll, in a module of
its subject. If operation is called in a loop, the loop's dictionary has the names."""
