"""Chooses what the forward program stores for the backward program, and what the latter recomputes. This is a
minimum cut of the graph of expressions."""
from collections import deque

from . import ir

INFINITE = 1 << 60
UNIT = 1000  # costs are integers, in thousandths


class Network:
    """Dinic's maximum flow, with integer capacities."""

    def __init__(self):
        self.edges = []      # (to, remaining capacity); edge i ^ 1 is its reverse
        self.of = []         # for each vertex, the indices of its edges

    def vertex(self):
        self.of.append([])
        return len(self.of) - 1

    def connect(self, a, b, capacity):
        self.of[a].append(len(self.edges))
        self.of[b].append(len(self.edges) + 1)
        self.edges += [[b, capacity], [a, 0]]

    def levels(self, start, backward=False):
        """The distance of each vertex from the start along edges with remaining capacity, or to the start
        (backward). -1: no path."""
        level = [-1] * len(self.of)
        level[start] = 0
        queue = deque([start])
        while queue:
            at = queue.popleft()
            for edge in self.of[at]:
                to = self.edges[edge][0]
                if self.edges[edge ^ backward][1] and level[to] < 0:
                    level[to] = level[at] + 1
                    queue.append(to)
        return level

    def flow(self, source, sink):
        total = 0
        while True:
            level = self.levels(source)
            if level[sink] < 0:
                return total
            unused = [list(reversed(edges)) for edges in self.of]
            path, at = [], source
            while True:
                if at == sink:
                    amount = min(self.edges[edge][1] for edge in path)
                    for edge in path:
                        self.edges[edge][1] -= amount
                        self.edges[edge ^ 1][1] += amount
                    total += amount
                    path, at = [], source
                while unused[at]:
                    to, room = self.edges[unused[at][-1]]
                    if room and level[to] == level[at] + 1:
                        break
                    unused[at].pop()
                if unused[at]:
                    path.append(unused[at][-1])
                    at = to
                elif path:
                    at = self.edges[path.pop() ^ 1][0]
                    unused[at].pop()
                else:
                    break


def keep(needed, cost, fixed=lambda node: False):
    """Chooses the nodes to store so that all needed nodes are stored or can be computed, at the least cost.
    They come in the order of computation. Among equal choices the one that leaves the least to compute wins.

    cost(node): the cost to store it, or None if it cannot be stored. fixed(node): whether it must not be
    recomputed from its operands. Loads are always fixed. Returns None if there is no solution."""
    network = Network()
    source, sink = network.vertex(), network.vertex()
    entry = {}  # nodes that come from memory; constants and what is made of them alone cost nothing
    for node in ir.topological(needed):
        from_memory = node.op == "load" or fixed(node)
        if not from_memory and not any(arg in entry for arg in node.args):
            continue
        entry[node] = network.vertex(), network.vertex()
        price = cost(node)
        network.connect(*entry[node], INFINITE if price is None else round(price * UNIT))
        if from_memory:
            network.connect(source, entry[node][0], INFINITE)
        for arg in dict.fromkeys(node.args):
            if arg in entry:
                network.connect(entry[arg][1], entry[node][0], INFINITE)
    for node in dict.fromkeys(needed):
        if node in entry:
            network.connect(entry[node][1], sink, INFINITE)
    if network.flow(source, sink) >= INFINITE:
        return None
    near = network.levels(sink, backward=True)
    return [node for node, (into, out) in entry.items() if near[into] < 0 <= near[out]]
