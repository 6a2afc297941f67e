"""Decision trees as tables, from the attributes of TreeEnsemble and of the operators it replaces.

    nodes_featureids = [0, 3, …]        links  [node]: feature, next if true, next if false, missing
    nodes_values     = [0.5, 1.5, …] -> values [node]: the threshold
    nodes_modes      = [BRANCH_GT, …]   targets, weights: what each leaf adds to which result

A table has one kind of branch, x <= threshold. Others become such branches: x < t is x <= t' of the
next smaller number t', and x > t swaps the sides of x <= t. See
https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...rewrite.errors import UnsupportedError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Branch:
    """A node that sends a row to one of two other nodes."""

    feature: int
    threshold: Any
    """A number of the type that the features are compared in; numbers for BRANCH_MEMBER."""
    mode: str
    missing: bool
    """Whether NaN goes the way of a comparison that holds."""
    then: int
    """The position of the next node where the comparison holds."""
    otherwise: int


@dataclass(frozen=True)
class Leaf:
    """A node that adds weights to results."""

    weights: tuple[tuple[int, Any], ...]
    """Results and what is added to them."""


@dataclass(frozen=True)
class Trees:
    """The nodes of all trees."""

    nodes: Sequence[Branch | Leaf]
    roots: Sequence[int]

    def leaves(self) -> list[list[Leaf]]:
        """The leaves of each tree. Raises UnsupportedError where a row might walk for ever."""
        return [self._below(root) for root in self.roots]

    def _below(self, root: int) -> list[Leaf]:
        """The leaves below a node. Branches may share what is below them."""
        leaves, left, entered = [], set(), set()
        waiting = [(root, False)]
        while waiting:
            number, is_left = waiting.pop()
            node = self.nodes[number]
            if is_left:
                left.add(number)
            elif number not in left:
                if number in entered:
                    raise UnsupportedError(f"node {number} is below itself")
                entered.add(number)
                waiting.append((number, True))
                if isinstance(node, Leaf):
                    leaves.append(node)
                else:
                    waiting += ((side, False) for side in (node.then, node.otherwise))
        return leaves

    def features(self) -> int:
        """How many features a row must have, at least one."""
        branches = [node.feature for node in self.nodes if isinstance(node, Branch)]
        if branches and min(branches) < 0:
            raise UnsupportedError(f"a branch compares feature {min(branches)}")
        return 1 + max(branches, default=0)


def trees_of_nodes(
    nodes: Sequence[tuple[int, int, Branch | None]], weights: dict[tuple[int, int], list[Any]]
) -> Trees:
    """Trees whose nodes are given as (tree, number, branch); those without a branch are leaves.

    The numbers that branches have in place of positions are those of the same tree. The first node
    of a tree is its root. Raises UnsupportedError where the nodes are not trees.
    """
    places = {(tree, number): place for place, (tree, number, _) in enumerate(nodes)}
    if len(places) < len(nodes):
        raise UnsupportedError("two nodes of a tree have the same number")
    result: list[Branch | Leaf] = []
    for tree, number, branch in nodes:
        if branch is None:
            result.append(Leaf(tuple(weights.get((tree, number), ()))))
            continue
        then, otherwise = (places.get((tree, side)) for side in (branch.then, branch.otherwise))
        if then is None or otherwise is None:
            raise UnsupportedError(f"a branch of tree {tree} leads to a node that does not exist")
        result.append(replace(branch, then=then, otherwise=otherwise))
    runs = [tree for tree, _ in itertools.groupby(tree for tree, _, _ in nodes)]
    if len(set(runs)) < len(runs):
        raise UnsupportedError("the nodes of a tree are not next to each other")
    first = {tree: place for place, (tree, _, _) in reversed(list(enumerate(nodes)))}
    return Trees(result, [first[tree] for tree in runs])


@dataclass
class Table:
    """All trees in arrays, with branches of one kind."""

    dtype: str
    links: list[tuple[int, int, int, int]] = field(default_factory=list)
    """For a branch its feature, both next nodes, and whether NaN goes the first way. A leaf has
    itself as both next nodes, and then its number."""
    values: list[Any] = field(default_factory=list)
    """For a branch its threshold, for a leaf its first weight."""
    ends: list[int] = field(default_factory=lambda: [0])
    """Where the weights of a leaf start, and those of the next one."""
    targets: list[int] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def arrays(self) -> list[Array]:
        """links, values, ends, targets and weights; none is empty."""
        return [
            np.array(self.links, "int32"),
            np.array(self.values, self.dtype),
            np.array(self.ends, "int32"),
            np.array(self.targets or [0], "int32"),
            np.array(self.weights or [0], self.dtype),
        ]

    @property
    def has_missing(self) -> bool:
        """Whether NaN goes the first way of a branch."""
        return any(then != otherwise and missing for _, then, otherwise, missing in self.links)


def tabulated(trees: Trees, dtype: str) -> tuple[Table, Array]:
    """The table of trees, and the positions of their roots in it."""
    table = Table(dtype)
    sizes = [_steps(node) for node in trees.nodes]
    places = [0, *itertools.accumulate(sizes)]
    for node in trees.nodes:
        if isinstance(node, Leaf):
            place = len(table.links)
            table.links.append((0, place, place, len(table.ends) - 1))
            table.targets += [target for target, _ in node.weights]
            table.weights += [weight for _, weight in node.weights]
            table.ends.append(len(table.targets))
            table.values.append(node.weights[0][1] if node.weights else 0)
        else:
            _add_branch(table, node, places[node.then], places[node.otherwise])
    return table, np.array([places[root] for root in trees.roots], "int32")


def _steps(node: Branch | Leaf) -> int:
    """How many branches of a table a node becomes."""
    if isinstance(node, Leaf):
        return 1
    if node.mode == "BRANCH_MEMBER":
        return 2 * max(len(node.threshold), 1)
    return 2 if node.mode in ("BRANCH_EQ", "BRANCH_NEQ") else 1


def _add_branch(table: Table, node: Branch, then: int, otherwise: int) -> None:
    """Adds a branch to the table. NaN is not less than, equal to or greater than any number."""

    def add(threshold: Any, then: int, otherwise: int, missing: bool = False) -> None:
        table.links.append((node.feature, then, otherwise, int(missing)))
        table.values.append(threshold)

    def add_equal(number: Any, then: int, otherwise: int, missing: bool) -> None:
        """x <= number, and not x <= the next smaller number."""
        add(number, len(table.links) + 1, otherwise, missing)
        add(_below(number, table.dtype), otherwise, then)

    number = node.threshold
    if node.mode == "BRANCH_LEQ":
        add(number, then, otherwise, node.missing)
    elif node.mode == "BRANCH_LT":
        add(_below(number, table.dtype), then, otherwise, node.missing)
    elif node.mode == "BRANCH_GT":
        add(number, otherwise, then, not node.missing)
    elif node.mode == "BRANCH_GTE":
        add(_below(number, table.dtype), otherwise, then, not node.missing)
    elif node.mode == "BRANCH_EQ":
        add_equal(number, then, otherwise, node.missing)
    elif node.mode == "BRANCH_NEQ":
        add_equal(number, otherwise, then, missing=False)
    elif node.mode == "BRANCH_MEMBER":
        numbers = list(number) or [np.nan]  # No number is equal to NaN.
        for place, member in enumerate(numbers):
            is_last = place == len(numbers) - 1
            rest = otherwise if is_last else len(table.links) + 2
            add_equal(member, then, rest, node.missing and place == 0)
    else:
        raise UnsupportedError(f"a node has the mode {node.mode!r}")


def _below(number: Any, dtype: str) -> Any:
    """The greatest number that is less; NaN, which nothing is less than, if there is none."""
    value = np.dtype(dtype).type(number)
    if value == -np.inf:
        return np.nan
    return np.nextafter(value, np.dtype(dtype).type(-np.inf))


def scored(trees: Trees, count: int) -> tuple[set[int], set[int]]:
    """The results that every row gets a weight for, and those that some rows may.

    Raises UnsupportedError for a weight of a result that does not exist.
    """
    always: set[int] = set()
    ever: set[int] = set()
    for leaves in trees.leaves():
        held = Counter(itertools.chain.from_iterable(map(_targets, leaves)))
        ever |= held.keys()
        always |= {target for target, leaf_count in held.items() if leaf_count == len(leaves)}
    if ever and not (min(ever) >= 0 and max(ever) < count):
        raise UnsupportedError(f"a leaf has a weight for result {max(ever)} of {count}")
    return always, ever - always


def _targets(leaf: Leaf) -> Iterable[int]:
    return {target for target, _ in leaf.weights}
