"""cut.py: the cheapest sufficient set, against every possible set; and the result for well-known groups."""
import itertools
import random
import unittest

from generator import cut, grad, ir
from generator.program import Operand


def load(graph, name, place=ir.WHOLE):
    return graph.load(Operand(name, "value", 0, "f32", place, (0, 1)))


def suffices(kept, needed, fixed):
    there = {}
    for node in ir.topological(needed):
        there[node] = node in kept or (node.op != "load" and not fixed(node) and
                                       all(there[arg] for arg in node.args))
    return all(there[node] for node in needed)


class Cut(unittest.TestCase):
    def test_against_every_set(self):
        rng = random.Random(6)
        impossible = 0
        for _ in range(400):
            graph = ir.Graph()
            pool = [load(graph, "l%d" % i) for i in range(rng.randint(1, 3))]
            for _ in range(rng.randint(1, 7)):
                op = rng.choice(("add", "mul", "exp", "tanh", "sub"))
                pool.append(graph.op(op, *(rng.choice(pool) for _ in range(ir.ARITY[op]))))
            needed = rng.sample(pool, min(len(pool), rng.randint(1, 3)))
            costs = {node: rng.choice((0, 0.5, 1, 2, 3, 5, 8, None)) for node in graph.nodes}
            stuck = {node: rng.random() < 0.15 for node in graph.nodes}
            best = None
            possible = [node for node in ir.topological(needed) if costs[node] is not None]
            for count in range(len(possible) + 1):
                for kept in itertools.combinations(possible, count):
                    if suffices(kept, needed, stuck.get):
                        total = sum(costs[node] for node in kept)
                        best = total if best is None else min(best, total)
            found = cut.keep(needed, costs.get, stuck.get)
            if found is None:
                impossible += 1
                self.assertIsNone(best)
            else:
                self.assertTrue(suffices(found, needed, stuck.get))
                self.assertEqual(sum(costs[node] for node in found), best)
        self.assertTrue(10 < impossible < 200)

    def test_ties_leave_the_least_to_compute(self):
        graph = ir.Graph()
        last = graph.op("tanh", graph.op("exp", load(graph, "x")))
        self.assertEqual(cut.keep([last], lambda node: 4), [last])
        self.assertEqual([node.op for node in cut.keep([last], lambda node: 4 if node is last else 3)],
                         ["exp"])

    def test_what_needs_no_memory_is_not_kept(self):
        graph = ir.Graph()
        half = graph.mul(graph.const(0.5), graph.count(0, 4))
        product = graph.mul(graph.op("exp", half), graph.op("sin", load(graph, "x")))
        self.assertEqual([node.op for node in cut.keep([product, half],
                                                       lambda node: 4 if node.op == "load" else 0)], ["mul"])
        self.assertEqual(cut.keep([half], lambda node: 0), [])

    def kept(self, build):
        """For a group in training: the values that its backward pass reads. Whole ones cost 4 bytes, twice
        that if they are not stored anyway, and narrow ones almost nothing. build(graph) -> (result, [(op,
        attrs, operands, value), ...])."""
        graph = ir.Graph()
        y, entries = build(graph)
        forward = {node.id for node in graph.nodes}
        adjoints = {y: load(graph, "g")}
        for op, attrs, operands, value in reversed(entries):
            for node, part in zip(operands,
                                  grad.backward(graph, op, attrs, operands, value, adjoints.pop(value), 8)):
                if part is not None:
                    adjoints[node] = grad.accumulate(graph, adjoints.get(node), part)
        roots = list(adjoints.values())
        needed = [arg for node in ir.topological(roots) if node.id not in forward
                  for arg in node.args if arg.id in forward]
        needed += [node for node in roots if node.id in forward]

        def cost(node):
            if node.op == "load" and node.attr.place != ir.WHOLE or node.op == "rowred":
                return 0.01
            return (None if node.is_condition or node.op == "const" else 4 if node.op == "load" or
                    node is y else 8)
        names = {y: "y"}
        return sorted(names.get(node, node.attr.name if node.op == "load" else node.op)
                      for node in cut.keep(needed, cost, lambda node: node.op == "rowred"))

    def chain(self, *ops):
        def build(graph):
            h, entries = load(graph, "x"), []
            for op in ops:
                operands = ((h,) if op not in ("add", "mul") else
                            (h, load(graph, "b" if op == "add" else "s", (1, 8))))
                h = grad.forward(graph, op, {}, operands, 8)
                entries.append((op, {}, operands, h))
            return h, entries
        return build

    def test_known_groups(self):
        self.assertEqual(self.kept(self.chain("add", "gelu")), ["b", "x"])
        self.assertEqual(self.kept(self.chain("add", "relu")), ["y"])
        self.assertEqual(self.kept(self.chain("add", "tanh")), ["y"])
        self.assertEqual(self.kept(self.chain("square", "exp")), ["x"])
        self.assertEqual(self.kept(self.chain("add")), [])
        self.assertEqual(self.kept(self.chain("mul", "relu")), ["s", "x"])
        self.assertEqual(self.kept(self.chain("softmax")), ["y"])

    def test_large_graphs(self):
        graph = ir.Graph()
        pool = [load(graph, "l%d" % i) for i in range(20)]
        rng = random.Random(7)
        for _ in range(600):
            pool.append(graph.add(graph.op("sin", rng.choice(pool[-40:])), rng.choice(pool[-40:])))
        found = cut.keep(pool[-3:], lambda node: 4 if node.op == "load" else 8)
        self.assertTrue(suffices(found, pool[-3:], lambda node: False))
        self.assertLessEqual(len(found), 3)


if __name__ == "__main__":
    unittest.main()
